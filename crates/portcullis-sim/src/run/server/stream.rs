//! The Netperf stream test: each flow sends messages as fast as its core and its window allow.

use super::Host;
use super::flows::cookie;
use crate::run::driver::Driver;
use crate::run::world::Wanted;

pub(super) fn run(host: &Host, driver: &mut Driver<'_>, core: usize) {
    let software = &host.server.software;
    let flows: Vec<usize> = (0..host.work.flows as usize).filter(|flow| host.work.core_of(*flow) == core).collect();
    let segments = software.message_bytes.div_ceil(software.segment_bytes);
    let mut turn = 0;
    while !host.is_over() {
        let next = (0..flows.len()).map(|step| (turn + step) % flows.len()).find(|at| host.may_send(flows[*at]));
        let Some(at) = next else {
            flows.iter().for_each(|flow| host.card.ask_for_room(host, host.transmit_ring(*flow)));
            let may_send = || flows.iter().any(|flow| host.may_send(*flow));
            host.world.engine.wait_until(Wanted::Flows(core).into(), || may_send() || host.is_over());
            continue;
        };
        turn = at + 1;
        for _ in 0..segments {
            if host.is_over() || !host.may_send(flows[at]) {
                break;
            }
            send(host, driver, flows[at]);
        }
        if core == 0 {
            host.look_at_progress();
        }
    }
}

/// Builds a packet and sends it.
fn send(host: &Host, driver: &mut Driver<'_>, flow: usize) {
    let software = &host.server.software;
    host.world.engine.busy(software.cycles_per_packet);
    let number = {
        let mut flows = host.flows.borrow_mut();
        flows[flow].sent += 1;
        flows[flow].queued += 1;
        flows[flow].sent
    };
    let (headers, payload) = (software.header_bytes, software.segment_bytes);
    let apart: &[u32] = if host.server.driver.headers_apart { &[headers, payload] } else { &[headers + payload] };
    host.card.transmit(host, driver, host.transmit_ring(flow), apart, cookie(flow, number));
}
