//! Collecting segments into a contiguous list for the duration of a map.

use crate::address::Segment;
use crate::error::NoMemory;
use crate::platform::memory::{move_into, push_within};
use alloc::vec::Vec;
use arrayvec::ArrayVec;

/// A list of segments.
pub(crate) enum SegmentList<const FEW: usize> {
    /// Up to `FEW` segments need no heap memory.
    Few(ArrayVec<Segment, FEW>),
    Many(Vec<Segment>),
}

impl<const FEW: usize> Default for SegmentList<FEW> {
    fn default() -> Self {
        Self::Few(ArrayVec::new_const())
    }
}

impl<const FEW: usize> SegmentList<FEW> {
    /// Adds the segments of `segments`. `room` allocates space for a number of segments if there are more than `FEW`.
    /// If `joins` is true, segments that meet at a page boundary are joined. It must be false if each segment has
    /// addresses of its own, which are found by its index.
    ///
    /// # Errors
    /// [`NoMemory`].
    // Not inlined, so that what it takes of the stack is free again when the list is mapped.
    #[inline(never)]
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
                // An empty segment is kept, so that the request refuses it.
                Some(len) if joins && last.len > 0 && next.len > 0 => last.len = len,
                _ => self.push(&room, core::mem::replace(&mut last, next))?,
            }
        }
        self.push(&room, last)
    }

    pub(crate) fn as_slice(&self) -> &[Segment] {
        match self {
            Self::Few(few) => few,
            Self::Many(many) => many,
        }
    }

    /// Adds one segment. `room` allocates space for a number of segments if the list is full.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn push(
        &mut self,
        room: impl Fn(usize) -> Result<Vec<Segment>, NoMemory>,
        segment: Segment,
    ) -> Result<(), NoMemory> {
        match self {
            Self::Few(few) if !few.is_full() => few.push(segment),
            Self::Few(few) => {
                let mut many = room(2 * FEW)?;
                let all = few.iter().copied().chain([segment]);
                all.for_each(|segment| push_within(&mut many, segment));
                *self = Self::Many(many);
            }
            Self::Many(many) => {
                if many.len() == many.capacity() {
                    let mut larger = room(2 * many.len())?;
                    move_into(many, &mut larger);
                }
                push_within(many, segment);
            }
        }
        Ok(())
    }
}
