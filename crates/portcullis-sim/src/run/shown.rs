//! What a capture shows of how full the buffers were that a device wrote.

use super::Work;
use super::live::Slot;
use crate::traffic::Payload;
use portcullis::PAGE_SIZE;
use portcullis_trace::{Joined, Target, Trace};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// By the numbers of mappings.
pub(super) enum ShownPayloads {
    /// There is no capture.
    Nothing,
    /// What its `dma:` events tell.
    Events(Arc<Trace>),
    /// The furthest byte that the device was seen to access. The log does not tell how far that access went.
    Accesses(FxHashMap<Slot, u64>),
}

impl ShownPayloads {
    pub(super) fn of(work: &Work) -> Self {
        match work {
            Work::Trace(trace, Some(joined)) => Self::Accesses(furthest(trace, joined)),
            Work::Trace(trace, None) => Self::Events(trace.clone()),
            Work::Rings(_) | Work::Churn(_) => Self::Nothing,
        }
    }

    /// What is known of the buffer of `len` bytes in mapping `slot`.
    pub(super) fn of_mapping(&self, slot: Slot, len: u64) -> Option<Payload> {
        match self {
            Self::Nothing => None,
            Self::Events(trace) => {
                trace.payload_of(slot).map(|bytes| Payload { min: bytes.min(len), max: bytes.min(len) })
            }
            Self::Accesses(furthest) => Some(match furthest.get(&slot) {
                Some(at) => Payload { min: (at + 1).min(len), max: len },
                None => Payload { min: 0, max: 0 },
            }),
        }
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

/// Bytes of the buffer before byte `offset` of its page `page`.
fn bytes_before(segments: &[portcullis::Segment], page: u64, offset: u64) -> u64 {
    let (mut pages, mut bytes) = (0, 0);
    for segment in segments {
        let further = segment.pages();
        if page < pages + further {
            return bytes
                + ((page - pages) * PAGE_SIZE + offset).saturating_sub(segment.phys.page_offset()).min(segment.len);
        }
        pages += further;
        bytes += segment.len;
    }
    bytes
}
