//! How much of a buffer its driver read: a packet may be shorter than the buffer that received it.
//!
//! A driver that is done with a buffer may unmap it with the size of the packet. A driver that keeps the buffer mapped
//! for the next packet syncs the bytes that it is about to read.

use super::{Grouper, NONE, Owner};
use portcullis::{PAGE_SHIFT, PAGE_SIZE};
use std::iter;

/// How many mappings are searched for the one that holds an address: mappings of other devices may lie between.
pub(super) const LOOKED_AT_MAX: usize = 32;

impl Grouper {
    /// Handles a sync: the driver is about to read these bytes.
    pub(super) fn sync(&mut self, device: &[u8], iova: u64, size: u64) {
        let Some(&device) = self.device_index.get(device) else { return };
        let owner = Owner::Device(device);
        let mut near = self.live.range(..=(iova >> PAGE_SHIFT, owner)).rev().take(LOOKED_AT_MAX);
        if let Some((&(iova_pfn, _), &first)) = near.find(|&(&(_, found), _)| found == owner) {
            let bytes = u64::from(self.pieces[first as usize].pages) * PAGE_SIZE;
            self.look_at(first, bytes, (iova - (iova_pfn << PAGE_SHIFT), size));
        }
    }

    /// Counts `size` bytes as payload of the mapping whose first piece is `first`, if they lie within its `bytes`.
    /// They begin `from` bytes into it.
    pub(super) fn look_at(&mut self, first: u32, bytes: u64, (from, size): (u64, u64)) {
        if size > 0 && from.checked_add(size).is_some_and(|end| end <= bytes) {
            let payload = self.payloads.entry(first).or_default();
            *payload = payload.saturating_add(size);
        }
    }

    /// Handles the size of an unmap. It belongs to the mapping that this context ended last, if that mapping holds the
    /// address and is the device's.
    pub(super) fn unmapped(&mut self, context: u32, device: u16, iova: u64, size: u64) {
        let Some(first) = self.ended.remove(&context) else { return };
        let piece = self.pieces[first as usize];
        let is_there = (piece.iova_pfn..piece.iova_pfn + u64::from(piece.pages)).contains(&(iova >> PAGE_SHIFT));
        if is_there && piece.claim.is_some_and(|(owner, _)| owner == device) {
            self.ended_with(first, size);
        }
    }

    /// Records that an unmap of `size` bytes ended the mapping. Syncs are more exact, so they take precedence.
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
