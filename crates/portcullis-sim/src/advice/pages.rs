//! What the advice says about a capture without `dma:` events, whose pages are all that is known.

use crate::machine::Machine;
use crate::run::Work;
use crate::traffic::Traffic;

/// What is not known, how the answer covers it, and what would narrow the answer.
pub(super) fn of(work: &Work, machine: &Machine) -> String {
    let capture = "The capture has no `dma:` events, which Linux has since 6.12, so it names neither devices nor the lengths of buffers.";
    let is_said = machine.known_traffic().is_some();
    let kind = work.kind(machine);
    let why = match (kind.traffic, kind.is_unknown) {
        _ if is_said => "",
        (_, true) => {
            " Nothing shows which kind of device it is of: the ranges cover both, and `--traffic disk` or `--traffic network` decides it."
        }
        (Traffic::Disk, false) => {
            " It is taken for a disk's, because tasks map its buffers, hard interrupts unmap them, and none share a page; for a network card's: `--traffic network`."
        }
        (Traffic::Network, false) => {
            " It is taken for a network card's, because interrupts map buffers; for a disk's: `--traffic disk`."
        }
    };
    let lengths = match kind.traffic {
        Traffic::Disk => "",
        Traffic::Network => {
            " The ranges reach from buffers that fill a third of the room that their pages leave them, or more, to full ones. They do not \
             hold for packets far shorter than that, such as acknowledgements alone, for data that several packets share, or for several \
             devices in one capture. What narrows them: a capture with `dma:` events, or `--payload` where all packets have one length."
        }
    };
    format!("{capture}{why}{lengths}")
}
