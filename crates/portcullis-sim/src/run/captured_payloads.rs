//! What a capture shows about the lengths of buffers, and about the fill of those that a device wrote.

use super::footprint::Replay;
use super::live::Slot;
use crate::traffic::{Payload, pages};
use portcullis::{PAGE_SIZE, Segment};
use portcullis_trace::{Joined, Target, Trace};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The capture; `None` for synthetic work.
pub(super) struct CapturedPayloads(Option<Captured>);

struct Captured {
    trace: Arc<Trace>,
    /// If the device's accesses were logged: by mapping, the furthest byte that it was seen to access. The log does
    /// not give the length of that access.
    furthest: Option<FxHashMap<Slot, u64>>,
    /// By mapping: the bytes of its buffer, if the capture shows only pages.
    of_pages: Option<Vec<Payload>>,
}

impl CapturedPayloads {
    pub(super) fn of(replay: Option<&Replay>) -> Self {
        Self(replay.map(|replay| {
            let Replay { trace, joined } = replay;
            let furthest = joined.as_ref().map(|joined| furthest(trace, joined));
            let of_pages = replay.is_of_pages_alone().then(|| pages::buffers(trace));
            Captured { trace: trace.clone(), furthest, of_pages }
        }))
    }

    /// What is known about the buffer of `len` bytes in mapping `slot`. Its `dma:` events are exact. A page that
    /// carries several packets while it is mapped has more payload than bytes.
    pub(super) fn of_mapping(&self, slot: Slot, len: u64) -> Option<Payload> {
        let Captured { trace, furthest, of_pages } = self.0.as_ref()?;
        if let Some(bytes) = trace.payload_of(slot) {
            return Some(Payload { min: bytes, max: bytes });
        }
        match (furthest, of_pages) {
            (Some(furthest), _) => Some(match furthest.get(&slot) {
                Some(at) => Payload { min: (at + 1).min(len), max: len },
                None => Payload { min: 0, max: 0 },
            }),
            (None, Some(buffers)) => buffers.get(slot as usize).copied(),
            (None, None) => None,
        }
    }

    /// The bytes of the buffer in mapping `slot`, if the capture shows only its pages.
    pub(super) fn buffer_in_pages(&self, slot: Slot) -> Option<Payload> {
        self.0.as_ref()?.of_pages.as_ref()?.get(slot as usize).copied()
    }
}

/// By mapping: how far into its buffer the device got, in bytes.
fn furthest(trace: &Trace, joined: &Joined) -> FxHashMap<Slot, u64> {
    let mut furthest = FxHashMap::default();
    for access in &joined.accesses {
        let Target::Mapping { mapping, page, offset } = access.target else { continue };
        let segments = trace.segments_of(&trace.mappings[mapping as usize]);
        let into = bytes_before(segments, u64::from(page), u64::from(offset));
        let known = furthest.entry(mapping).or_default();
        *known = into.max(*known);
    }
    furthest
}

/// The bytes of the buffer before byte `offset` of its page `page`.
fn bytes_before(segments: &[Segment], page: u64, offset: u64) -> u64 {
    let (mut pages, mut bytes) = (0, 0);
    for segment in segments {
        let further = segment.pages();
        if page < pages + further {
            let into = (page - pages) * PAGE_SIZE + offset;
            return bytes + into.saturating_sub(segment.phys.page_offset()).min(segment.len);
        }
        pages += further;
        bytes += segment.len;
    }
    bytes
}
