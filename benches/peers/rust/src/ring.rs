//! A ring of buffers: the oldest is freed, and a new one takes its place.

use crate::allocators::Pages;

/// A ring, and the allocator that it uses.
pub(crate) struct Ring<A> {
    allocator: A,
    pages: u32,
    live: Vec<u32>,
    at: usize,
}

impl<A: Pages> Ring<A> {
    /// A full ring of `live` buffers of `pages` pages each.
    pub(crate) fn new(mut allocator: A, live: usize, pages: u32) -> Self {
        let live = (0..live).map(|_| allocator.allocate(pages)).collect();
        Self { allocator, pages, live, at: 0 }
    }

    /// Frees the oldest buffer and allocates a new one, `pairs` times.
    pub(crate) fn run(&mut self, pairs: u64) {
        for _ in 0..pairs {
            let slot = &mut self.live[self.at];
            self.allocator.free(*slot, self.pages);
            *slot = self.allocator.allocate(self.pages);
            self.at = if self.at + 1 == self.live.len() { 0 } else { self.at + 1 };
        }
    }
}

/// Checks rings that share one allocator: no page may be in two buffers.
///
/// # Panics
///
/// Panics if a page is in two buffers.
pub(crate) fn check<A>(rings: &[&Ring<A>]) {
    let mut held: Vec<u32> = rings.iter().flat_map(|ring| ring.live.iter().copied()).collect();
    held.sort_unstable();
    let apart = held.windows(2).all(|pair| pair[1] - pair[0] >= rings[0].pages);
    assert!(apart && held[0] > 0, "the allocator did not do what was timed: it handed out a page twice");
}
