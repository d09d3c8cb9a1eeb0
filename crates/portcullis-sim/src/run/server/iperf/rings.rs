//! The shapes of the rings of mlx5, and the memory that they take.

use super::transmit::pieces;
use crate::machine::{NicDriver, Striding};
use crate::run::server::ServerWork;
use crate::run::server::choices::REGION_PAGES;
use crate::run::server::memory::RingShape;
use portcullis::PAGE_SIZE;
use portcullis_model::{Direction, EVENT_BYTES, RingFormat};

fn striding(driver: &NicDriver) -> Striding {
    driver.striding.expect("only drivers with striding rings have these")
}

/// Receive ring `index` for so many frames.
pub(super) fn receive(driver: &NicDriver, frames: u32, index: u32) -> RingShape {
    let striding = striding(driver);
    RingShape {
        direction: Direction::Receive,
        entries: striding.entries(frames),
        pieces: striding.entry_pages,
        moderation: driver.receive_moderation,
        vector: index as u8,
        format: RingFormat {
            completion_bytes: striding.completion_bytes.into(),
            completions_per_entry: striding.entry_pages * PAGE_SIZE as u32 / striding.stride_bytes,
            stride_bytes: Some(striding.stride_bytes),
            drops_without_buffer: true,
            ..RingFormat::default()
        },
    }
}

/// Transmit ring `index`.
pub(super) fn transmit(driver: &NicDriver, work: &ServerWork, index: u32) -> RingShape {
    let striding = striding(driver);
    RingShape {
        direction: Direction::Transmit,
        entries: work.transmit_entries,
        pieces: pieces(work),
        moderation: driver.transmit_moderation,
        vector: index as u8,
        format: RingFormat {
            least_entry_bytes: striding.transmit_entry_bytes.into(),
            completion_bytes: striding.completion_bytes.into(),
            ..RingFormat::default()
        },
    }
}

/// The bytes that all rings and their event queues take.
pub(in crate::run::server) fn bytes(driver: &NicDriver, work: &ServerWork) -> u64 {
    let events = (u64::from(striding(driver).events) * EVENT_BYTES).next_multiple_of(PAGE_SIZE);
    let receive = u64::from(driver.receive_rings) * (receive(driver, work.receive_entries, 0).bytes() + events);
    let transmit = u64::from(driver.transmit_rings) * transmit(driver, work, 0).bytes();
    receive + transmit
}

/// The regions of 2 MiB that the pages of all receive rings fill.
pub(in crate::run::server) fn regions(driver: &NicDriver, receive_entries: u32) -> u32 {
    let striding = striding(driver);
    (driver.receive_rings * striding.entries(receive_entries) * striding.entry_pages).div_ceil(REGION_PAGES)
}
