//! The Netperf request-response test: the server answers each small frame with a small frame.

use super::Host;
use super::flows::cookie;
use crate::run::driver::Driver;
use crate::run::world::Wanted;

pub(super) fn run(host: &Host, driver: &mut Driver<'_>, core: usize) {
    let software = &host.server.software;
    let flows: Vec<usize> = (0..host.work.flows as usize).filter(|flow| host.work.core_of(*flow) == core).collect();
    if core == 0 {
        host.begin_requests();
    }
    while !host.is_over() {
        let asked = || flows.iter().copied().find(|flow| host.flows.borrow()[*flow].requests > 0);
        host.world.engine.wait_until(Wanted::Flows(core).into(), || asked().is_some() || host.is_over());
        let Some(flow) = asked() else { continue };
        host.world.engine.busy(software.cycles_per_transaction);
        let number = {
            let mut flows = host.flows.borrow_mut();
            flows[flow].requests -= 1;
            flows[flow].sent += 1;
            flows[flow].queued += 1;
            flows[flow].sent
        };
        let ring = host.transmit_ring(flow);
        host.card.transmit(host, driver, ring, &[software.small_frame_bytes], cookie(flow, number));
        if core == 0 {
            host.look_at_progress();
        }
    }
}
