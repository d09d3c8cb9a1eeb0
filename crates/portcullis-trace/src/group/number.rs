//! Makes mappings from pieces: the last step, when it is known which map events belong together.

use super::{Grouper, NONE};
use crate::{
    Events, Format, Operation, OperationKind, Payload, Statistics, Trace, TraceMapping, UNKNOWN_DEVICE, UnmatchedUnmap,
};
use portcullis::Access;
use std::num::NonZeroU32;

impl Grouper {
    /// Ends the waiting unmaps and renumbers everything, leaving out the pieces that became parts of other mappings.
    pub(super) fn finish(mut self, name: String, format: Format, events: Events) -> Trace {
        for unmap in std::mem::take(&mut self.waiting) {
            self.end_any(unmap);
        }
        self.unmatched.sort_by_key(|unmap| unmap.at_operation);
        let partial_unmaps = self.partial_unmaps();
        drop((std::mem::take(&mut self.live), std::mem::take(&mut self.parts)));
        let unknown = u16::try_from(self.devices.len()).unwrap_or(u16::MAX);
        if self.pieces.iter().any(|piece| !piece.absorbed && piece.claim.is_none()) {
            self.devices.push(UNKNOWN_DEVICE);
        }

        let mut mappings = Vec::with_capacity(self.pieces.iter().filter(|piece| !piece.absorbed).count());
        let mut segments = Vec::with_capacity(self.segments.len());
        let mut new_index = vec![NONE; self.pieces.len()];
        for (index, piece) in self.pieces.iter().enumerate().filter(|(_, piece)| !piece.absorbed) {
            new_index[index] = mappings.len() as u32;
            let segments_start = segments.len() as u32;
            let mut at = index;
            while at != NONE as usize {
                segments.push(self.segments[at]);
                at = self.pieces[at].next as usize;
            }
            let (device, access) = piece.claim.unwrap_or((unknown, Access::DeviceReadsAndWrites));
            mappings.push(TraceMapping {
                segments_start,
                segments_count: segments.len() as u32 - segments_start,
                iova_pfn: piece.iova_pfn,
                pages: piece.pages,
                map_operation: NONE,
                unmap_operation: None,
                device,
                access,
            });
        }
        drop((self.pieces, self.segments));
        let payload = |(first, bytes): (u32, u64)| Payload { mapping: new_index[first as usize], bytes };
        let mut payloads: Vec<_> = self.payloads.into_iter().map(payload).filter(|it| it.mapping != NONE).collect();
        payloads.sort_unstable_by_key(|payload| payload.mapping);

        let mut operations = self.operations;
        let mut invalidations = self.invalidations.iter_mut().peekable();
        let mut unmatched = Vec::with_capacity(self.unmatched.len());
        let mut old_unmatched = self.unmatched.into_iter().peekable();
        let mut kept = 0u32;
        for old in 0..=operations.len() {
            while let Some(invalidation) = invalidations.next_if(|it| it.at_operation as usize == old) {
                invalidation.at_operation = kept;
            }
            while let Some(unmap) = old_unmatched.next_if(|it| it.at_operation as usize == old) {
                unmatched.push(UnmatchedUnmap { at_operation: kept, ..unmap });
            }
            let Some(&operation) = operations.get(old) else { break };
            let mapping = new_index.get(operation.mapping as usize).copied().unwrap_or(NONE);
            let Some(entry) = mappings.get_mut(mapping as usize) else { continue };
            match operation.kind {
                OperationKind::Map => entry.map_operation = kept,
                OperationKind::Unmap => entry.unmap_operation = NonZeroU32::new(kept),
            }
            operations[kept as usize] = Operation { mapping, ..operation };
            kept += 1;
        }
        operations.truncate(kept as usize);
        operations.shrink_to_fit();

        let unmatched_maps = mappings.iter().filter(|mapping| mapping.unmap_operation.is_none()).count() as u64;
        let unmatched_unmaps = unmatched.len() as u64;
        let (faults, index) = (self.faults, self.device_index);
        let mut device_names = vec![String::new(); self.devices.len()];
        for (name, device) in &index {
            device_names[usize::from(*device)] = String::from_utf8_lossy(name).into_owned();
        }
        let statistics = Statistics {
            refused_accesses: faults.count,
            unmatched_maps,
            unmatched_unmaps,
            partial_unmaps: self.counts.partial_unmaps + partial_unmaps,
            unmapped_never: unmatched_maps,
            ..self.counts
        };
        let faults =
            faults.explained(&mappings, &operations, &self.devices, |name| index.get(name.as_bytes()).copied());
        Trace {
            name,
            format,
            events,
            statistics,
            devices: self.devices,
            device_names,
            mappings,
            segments,
            operations,
            contexts: self.contexts,
            invalidations: self.invalidations,
            unmatched,
            payloads,
            faults,
        }
    }
}
