//! The actor for the card and its link.

use super::Host;
use crate::run::world::Wanted;
use portcullis_model::Output;

/// Lets the card do what is due. Returns when its next event is.
pub(super) fn act(host: &Host) -> Option<u64> {
    let (engine, propagation_ps) = (&host.world.engine, host.server.software.propagation_ps);
    let mut nic = host.nic.borrow_mut();
    nic.advance(engine.now_ps());
    while let Some((at_ps, output)) = nic.take_output() {
        match output {
            Output::Interrupt(vector) => engine.raise(host.card.cpu_of(host, vector), at_ps, vector),
            Output::Sent(frame) => {
                host.clients.borrow_mut().arrives(at_ps + propagation_ps, frame);
                engine.notify(Wanted::Clients.into());
            }
        }
    }
    nic.next_event_ps()
}
