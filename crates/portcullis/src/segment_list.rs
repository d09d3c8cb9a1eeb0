//! Segments that come one by one, side by side for as long as a map takes.

use crate::address::Segment;
use crate::error::NoMemory;
use crate::platform::memory::{move_into, push_within};
use alloc::vec::Vec;
use arrayvec::ArrayVec;

/// A list of segments. Up to `FEW` of them take no memory of the heap.
#[derive(Default)]
pub(crate) struct SegmentList<const FEW: usize> {
    few: ArrayVec<Segment, FEW>,
    /// All of them, where they are more.
    many: Vec<Segment>,
}

impl<const FEW: usize> SegmentList<FEW> {
    /// Adds what `segments` gives, in `room` for so many where they are more than a few. If `joins`, neighbours that meet where a page ends
    /// are joined: not where each segment has addresses of
    /// its own, which are found by its number.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn collect(
        &mut self,
        room: impl Fn(usize) -> Result<Vec<Segment>, NoMemory>,
        segments: impl IntoIterator<Item = Segment>,
        joins: bool,
    ) -> Result<(), NoMemory> {
        let mut segments = segments.into_iter();
        let Some(mut last) = segments.next() else { return Ok(()) };
        for next in segments {
            let end = last.phys.checked_add(last.len).filter(|end| *end == next.phys && end.page_offset() == 0);
            match end.and_then(|_| last.len.checked_add(next.len)) {
                // One without a length is for the request to refuse.
                Some(len) if joins && last.len > 0 && next.len > 0 => last.len = len,
                _ => self.push(&room, core::mem::replace(&mut last, next))?,
            }
        }
        self.push(&room, last)
    }

    pub(crate) fn as_slice(&self) -> &[Segment] {
        if self.many.is_empty() { &self.few } else { &self.many }
    }

    /// Adds one, in `room` for so many where there are too many.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn push(
        &mut self,
        room: impl Fn(usize) -> Result<Vec<Segment>, NoMemory>,
        segment: Segment,
    ) -> Result<(), NoMemory> {
        if self.many.is_empty() {
            let Err(full) = self.few.try_push(segment) else { return Ok(()) };
            self.many = room(2 * FEW)?;
            let all = self.few.iter().copied().chain([full.element()]);
            all.for_each(|segment| push_within(&mut self.many, segment));
            return Ok(());
        }
        if self.many.len() == self.many.capacity() {
            let mut larger = room(2 * self.many.len())?;
            move_into(&mut self.many, &mut larger);
        }
        push_within(&mut self.many, segment);
        Ok(())
    }
}
