//! The memory that the streams of the server lie in. What a process writes to sockets lies in chunks, one after the
//! other, whatever frame it leaves in: a frame begins where the one before has ended. So most frames take parts of
//! three chunks, and two that follow each other share a page (`sk_page_frag` of Linux, from memory). A file that is
//! sent without a copy lies in single pages.

use crate::run::live::{Buffer, Slot};
use portcullis::{PhysAddr, Segment};
use std::cell::RefCell;

/// The bytes of a chunk of what a process writes: `SKB_FRAG_PAGE_ORDER`, from memory.
pub(super) const WRITTEN_BYTES: u64 = 32 << 10;

/// The chunk that a flow fills, and how many of its bytes are used.
#[derive(Clone, Copy)]
struct Filled {
    chunk: u32,
    used: u64,
}

struct State {
    /// Free chunks and free slots. The one that was freed last is used first.
    chunks: Vec<u32>,
    slots: Vec<Slot>,
    /// By chunk: how many parts are mapped, and one more while it is filled.
    users: Vec<u32>,
    /// By slot, from the first one on: the chunk.
    chunk_of: Vec<u32>,
    /// By flow.
    filled: Vec<Option<Filled>>,
}

/// The chunks of all flows, each of which one process writes.
pub(super) struct Chunks {
    base: u64,
    chunk_bytes: u64,
    first_slot: Slot,
    state: RefCell<State>,
}

/// How many chunks there are for so many parts: as if each had one of its own, and one that each flow fills.
pub(super) fn chunks(parts: Slot, flows: u32) -> u32 {
    if parts == 0 { 0 } else { parts + flows }
}

impl Chunks {
    /// Chunks from `base` on, for so many parts at a time, which have the slots from `first_slot` on.
    pub(super) fn new(base: u64, chunk_bytes: u64, first_slot: Slot, parts: Slot, flows: u32) -> Self {
        let chunks = chunks(parts, flows);
        let state = State {
            chunks: (0..chunks).rev().collect(),
            slots: (first_slot..first_slot + parts).rev().collect(),
            users: vec![0; chunks as usize],
            chunk_of: vec![0; parts as usize],
            filled: vec![None; flows as usize],
        };
        Self { base, chunk_bytes, first_slot, state: RefCell::new(state) }
    }

    /// Takes the next bytes of a flow, at most `most`: what its chunk has left. Returns a buffer, with its slot.
    pub(super) fn take(&self, flow: usize, most: u64) -> (Slot, Buffer) {
        let mut state = self.state.borrow_mut();
        let filled = state.filled[flow].take().unwrap_or_else(|| {
            let chunk = state.chunks.pop().expect("there are as many chunks as the rings can hold");
            state.users[chunk as usize] += 1;
            Filled { chunk, used: 0 }
        });
        let Filled { chunk, used } = filled;
        let slot = state.slots.pop().expect("there are as many slots as the rings can hold");
        let len = most.min(self.chunk_bytes - used);
        state.chunk_of[(slot - self.first_slot) as usize] = chunk;
        if used + len < self.chunk_bytes {
            state.users[chunk as usize] += 1;
            state.filled[flow] = Some(Filled { used: used + len, ..filled });
        }
        let phys = PhysAddr::new(self.base + u64::from(chunk) * self.chunk_bytes + used);
        (slot, Buffer::from(Segment { phys, len }))
    }

    /// Whether a slot is that of a part.
    pub(super) fn has(&self, slot: Slot) -> bool {
        slot >= self.first_slot
    }

    /// Gives a part back.
    pub(super) fn give_back(&self, slot: Slot) {
        let mut state = self.state.borrow_mut();
        let chunk = state.chunk_of[(slot - self.first_slot) as usize];
        state.slots.push(slot);
        state.users[chunk as usize] -= 1;
        if state.users[chunk as usize] == 0 {
            state.chunks.push(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_follow_each_other_in_chunks_which_are_used_again_when_all_parts_are_back() {
        const FRAME: u64 = 63_168;
        let chunks = Chunks::new(1 << 32, WRITTEN_BYTES, 100, 12, 2);
        let take = |flow: usize| {
            let (mut left, mut parts) = (FRAME, Vec::new());
            while left > 0 {
                let (slot, buffer) = chunks.take(flow, left);
                left -= buffer[0].len;
                parts.push((slot, buffer[0]));
            }
            parts
        };
        let (first, second, other) = (take(0), take(0), take(1));
        assert_eq!([first.len(), second.len(), other.len()], [2, 3, 2]);
        let end = first[1].1.phys.as_u64() + first[1].1.len;
        assert_eq!(second[0].1.phys.as_u64(), end, "in the page in which the first has ended");
        assert!(end % 4096 != 0);
        // The second chunk comes back when the parts of both frames are back, and not before.
        let free = || chunks.state.borrow().chunks.len();
        let before = free();
        first.iter().for_each(|(slot, _)| chunks.give_back(*slot));
        assert_eq!(free(), before + 1);
        chunks.give_back(second[0].0);
        assert_eq!(free(), before + 2);
        // Again and again, with what was given back.
        second[1..].iter().chain(&other).for_each(|(slot, _)| chunks.give_back(*slot));
        for _ in 0..1000 {
            take(0).iter().for_each(|(slot, _)| chunks.give_back(*slot));
        }
        assert_eq!(chunks.state.borrow().slots.len(), 12);
    }
}
