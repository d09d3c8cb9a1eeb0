//! How much of a buffer its driver looked at: a packet may be shorter than the buffer that it was received in.
//!
//! A driver that is done with a buffer for good may unmap it with the size of what came. One that leaves it mapped, and has the
//! next packet put in it, syncs the bytes that it is about to look at.

use super::{Grouper, NONE, Owner};
use portcullis::{PAGE_SHIFT, PAGE_SIZE};
use std::iter;

/// Mappings that are looked at for the one that holds an address: other devices may have theirs between.
pub(super) const LOOKED_AT_MAX: usize = 32;

impl Grouper {
    /// A driver is about to look at these bytes.
    pub(super) fn sync(&mut self, device: &[u8], iova: u64, size: u64) {
        let Some(&device) = self.device_index.get(device) else { return };
        let owner = Owner::Device(device);
        let mut near = self.live.range(..=(iova >> PAGE_SHIFT, owner)).rev().take(LOOKED_AT_MAX);
        if let Some((&(iova_pfn, _), &first)) = near.find(|&(&(_, found), _)| found == owner) {
            let bytes = u64::from(self.pieces[first as usize].pages) * PAGE_SIZE;
            self.look_at(first, bytes, (iova - (iova_pfn << PAGE_SHIFT), size));
        }
    }

    /// `size` bytes are payload of the mapping that begins with the piece `first`, so far into it, if its `bytes` hold all of them.
    pub(super) fn look_at(&mut self, first: u32, bytes: u64, (from, size): (u64, u64)) {
        if size > 0 && from.checked_add(size).is_some_and(|end| end <= bytes) {
            let payload = self.payloads.entry(first).or_default();
            *payload = payload.saturating_add(size);
        }
    }

    /// The device has unmapped `size` bytes: of the mapping that this context has ended last, if they are there.
    pub(super) fn unmapped(&mut self, context: u32, device: u16, iova: u64, size: u64) {
        let Some(first) = self.ended.remove(&context) else { return };
        let piece = self.pieces[first as usize];
        let is_there = (piece.iova_pfn..piece.iova_pfn + u64::from(piece.pages)).contains(&(iova >> PAGE_SHIFT));
        if is_there && piece.claim.is_some_and(|(owner, _)| owner == device) {
            self.ended_with(first, size);
        }
    }

    /// The mapping has ended by an unmap of `size` bytes. What was synced tells more.
    pub(super) fn ended_with(&mut self, first: u32, size: u64) {
        if size < self.bytes_of(first) {
            self.payloads.entry(first).or_insert(size);
        }
    }

    /// Bytes of the mapping that begins with this piece.
    pub(super) fn bytes_of(&self, first: u32) -> u64 {
        let next = |&piece: &u32| Some(self.pieces[piece as usize].next).filter(|&next| next != NONE);
        iter::successors(Some(first), next).map(|piece| self.segments[piece as usize].len).sum()
    }
}
