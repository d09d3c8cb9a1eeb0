//! A flaw, planted for the test kit to find: a range is handed out again as soon as an unmap has claimed its mapping,
//! while the hardware still holds its translations (S3).

use portcullis::iova::{Claim, IovaAllocator, IovaRequest};
use portcullis::proof::Proof;
use portcullis::{IovaRange, MapError, Platform, UnmapError};
use std::sync::{Mutex, PoisonError};

/// An allocator that does not wait for the proof.
pub struct ReusesEarly<A> {
    allocator: A,
    claimed: Mutex<Option<IovaRange>>,
}

impl<A> ReusesEarly<A> {
    pub(crate) fn new(allocator: A) -> Self {
        Self { allocator, claimed: Mutex::default() }
    }

    fn claimed(&self) -> std::sync::MutexGuard<'_, Option<IovaRange>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: it breaks the promise on purpose, so that the kit finds out. Use it only over fakes and models, which have no
// memory to lose.
unsafe impl<A: IovaAllocator<P>, P: Platform> IovaAllocator<P> for ReusesEarly<A> {
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        let early = self.claimed().take_if(|range| range.pages() == request.pages);
        early.map_or_else(|| self.allocator.allocate(platform, request), Ok)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        let claim = self.allocator.claim(platform, range)?;
        *self.claimed() = Some(range);
        Ok(claim)
    }

    fn free(&self, platform: &P, range: IovaRange, proof: &Proof) {
        // A range that was freed properly may be handed out by the inner allocator.
        self.claimed().take_if(|claimed| *claimed == range);
        self.allocator.free(platform, range, proof);
    }

    fn live(&self) -> usize {
        self.allocator.live()
    }
}
