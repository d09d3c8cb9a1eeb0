//! The devices of a capture, the part of the capture that is of one of them, and what the device received in all.

use crate::{OperationKind, Payload, Statistics, Trace, TraceMapping, TracedFault};
use portcullis::Access;
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::num::NonZeroU32;

/// A device of a capture, and how much it has mapped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TracedDevice {
    /// Its name, as events give it: for PCI, `0000:3b:00.0`. It is empty for the mappings that no event gives to a
    /// device.
    pub device: String,
    /// Its mappings.
    pub maps: u64,
    /// The pages of these mappings.
    pub pages: u64,
}

impl Trace {
    /// The devices, in the order of [`Trace::devices`].
    pub fn traced_devices(&self) -> Vec<TracedDevice> {
        let none = |device: &String| TracedDevice { device: device.clone(), maps: 0, pages: 0 };
        let mut devices: Vec<TracedDevice> = self.device_names.iter().map(none).collect();
        for mapping in &self.mappings {
            let device = &mut devices[usize::from(mapping.device)];
            device.maps += 1;
            device.pages += u64::from(mapping.pages);
        }
        devices
    }

    /// What one device has mapped and unmapped. Invalidations and unmatched unmaps name no device, so it has none.
    /// [`Statistics::lost_events`] and the span are those of the whole capture.
    ///
    /// # Panics
    /// Panics if the capture has no device with this index into [`Trace::devices`].
    #[must_use]
    pub fn of_device(&self, device: u16) -> Self {
        const NONE: u32 = u32::MAX;
        let mut segments = Vec::new();
        let mut mappings: Vec<TraceMapping> = Vec::new();
        let mut new_index = vec![NONE; self.mappings.len()];
        for (index, mapping) in self.mappings.iter().enumerate().filter(|(_, mapping)| mapping.device == device) {
            new_index[index] = mappings.len() as u32;
            let segments_start = segments.len() as u32;
            segments.extend_from_slice(self.segments_of(mapping));
            mappings.push(TraceMapping { segments_start, unmap_operation: None, device: 0, ..*mapping });
        }
        let mut operations = Vec::new();
        for operation in &self.operations {
            let mapping = new_index[operation.mapping as usize];
            let Some(entry) = mappings.get_mut(mapping as usize) else { continue };
            let index = operations.len() as u32;
            match operation.kind {
                OperationKind::Map => entry.map_operation = index,
                OperationKind::Unmap => entry.unmap_operation = NonZeroU32::new(index),
            }
            operations.push(crate::Operation { mapping, ..*operation });
        }
        let is_kept = |mapping: u32| Some(new_index[mapping as usize]).filter(|index| *index != NONE);
        let payload = |payload: &Payload| Some(Payload { mapping: is_kept(payload.mapping)?, ..*payload });
        let name = &self.device_names[usize::from(device)];
        let fault = |fault: &TracedFault| TracedFault { mapping: fault.mapping.and_then(is_kept), ..fault.clone() };
        let faults: Vec<TracedFault> = self.faults.iter().filter(|fault| fault.device == *name).map(fault).collect();
        let unmatched_maps = mappings.iter().filter(|mapping| mapping.unmap_operation.is_none()).count() as u64;
        let statistics = Statistics {
            maps: segments.len() as u64,
            pages: mappings.iter().map(|mapping| u64::from(mapping.pages)).sum(),
            unmaps: mappings.len() as u64 - unmatched_maps,
            unmatched_maps,
            unmapped_never: unmatched_maps,
            refused_accesses: faults.iter().map(|fault| fault.count).sum(),
            lost_events: self.statistics.lost_events,
            cpus: operations.iter().map(|operation| operation.cpu).collect::<FxHashSet<u16>>().len() as u64,
            span_us: self.statistics.span_us,
            ..Statistics::default()
        };
        Self {
            name: self.name.clone(),
            format: self.format,
            events: self.events,
            statistics,
            devices: vec![self.devices[usize::from(device)]],
            device_names: vec![name.clone()],
            segments,
            contexts: self.contexts.clone(),
            invalidations: Vec::new(),
            unmatched: Vec::new(),
            payloads: self.payloads.iter().filter_map(payload).collect(),
            mappings,
            operations,
            faults,
        }
    }

    /// The same capture, of a disk that is known to have served so many requests while it was made. Where that is more
    /// than its mappings, each of them stands for several, and has as much payload. Otherwise nothing changes.
    #[must_use]
    pub fn with_requests(mut self, requests: u64) -> Self {
        let maps = self.mappings.len() as u128;
        if u128::from(requests) <= maps {
            return self;
        }
        let payload = |(index, mapping): (usize, &TraceMapping)| {
            let len: u64 = self.segments_of(mapping).iter().map(|segment| segment.len).sum();
            let bytes = u128::from(len) * u128::from(requests) / maps;
            Payload { mapping: index as u32, bytes: u64::try_from(bytes).unwrap_or(u64::MAX) }
        };
        self.payloads = self.mappings.iter().enumerate().map(payload).collect();
        self
    }

    /// The same capture, of a device that is known to have received so many bytes while it was made. Its payloads are
    /// replaced: each buffer that the device may write gets its share, by length. If these buffers are too few for all
    /// that was received, their driver uses pages again while they stay mapped, and a buffer gets more than its length.
    /// If the driver maps no such buffer any more, each buffer that is sent stands for its share too.
    #[must_use]
    pub fn with_received(mut self, bytes: u64) -> Self {
        let len = |mapping: &TraceMapping| self.segments_of(mapping).iter().map(|segment| segment.len).sum::<u64>();
        let is_written = |mapping: &TraceMapping| mapping.access != Access::DeviceReads;
        let any_is_written = self.mappings.iter().any(is_written);
        let of = |mapping: &TraceMapping| if !any_is_written || is_written(mapping) { len(mapping) } else { 0 };
        let all = u128::from(self.mappings.iter().map(of).sum::<u64>().max(1));
        // What all buffers up to this one got, so that rounding loses nothing.
        let given = |up_to: u64| (u128::from(bytes) * u128::from(up_to) / all) as u64;
        let mut up_to = 0;
        let mut payloads = Vec::new();
        for (index, mapping) in self.mappings.iter().enumerate() {
            let before = up_to;
            up_to += of(mapping);
            if up_to > before {
                let sent = if any_is_written { 0 } else { up_to - before };
                payloads.push(Payload { mapping: index as u32, bytes: sent + given(up_to) - given(before) });
            }
        }
        self.payloads = payloads;
        self
    }
}
