//! The actor for the card and its link.

use super::Host;
use crate::run::world::Wanted;
use portcullis_model::Output;

pub(super) fn run(host: &Host, _: usize) {
    let (engine, propagation_ps) = (&host.world.engine, host.server.software.propagation_ps);
    loop {
        host.nic.borrow_mut().advance(engine.now_ps());
        loop {
            let output = host.nic.borrow_mut().take_output();
            match output {
                None => break,
                Some((at_ps, Output::Interrupt(vector))) => engine.raise(host.card.cpu_of(host, vector), at_ps, vector),
                Some((at_ps, Output::Sent(frame))) => {
                    host.clients.borrow_mut().arrives(at_ps + propagation_ps, frame);
                    engine.notify(Wanted::Clients.into());
                }
            }
        }
        let next_ps = host.nic.borrow().next_event_ps();
        engine.wait_for(Wanted::Link.into(), next_ps);
    }
}
