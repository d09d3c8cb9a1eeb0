//! Faults that the capture shows: accesses that the IOMMU has refused.

use crate::{Operation, SourceId, TraceMapping, TracedFault, UNKNOWN_DEVICE};
use portcullis::PAGE_SHIFT;

/// How many faulted runs are kept. A device in a loop faults millions of times.
const KEPT_MAX: usize = 64;

/// How much is kept of the name of a device.
const NAME_MAX: usize = 64;

/// Faults in the order of the capture. Faults of one device in pages that follow each other are one run.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) count: u64,
    runs: Vec<TracedFault>,
}

impl Faults {
    pub(super) fn add(&mut self, device: &[u8], iova: u64, time_ns: u64) {
        self.count += 1;
        // The name comes from the file, and is printed.
        let device = device[..device.len().min(NAME_MAX)].escape_ascii().to_string();
        let follows = |last: &&mut TracedFault| {
            let pages = last.first_iova >> PAGE_SHIFT..=(last.last_iova >> PAGE_SHIFT) + 1;
            last.device == device && pages.contains(&(iova >> PAGE_SHIFT))
        };
        if let Some(last) = self.runs.last_mut().filter(follows) {
            last.last_iova = last.last_iova.max(iova);
            last.count += 1;
        } else if self.runs.len() < KEPT_MAX {
            self.runs.push(TracedFault { device, first_iova: iova, last_iova: iova, count: 1, time_ns, mapping: None });
        }
    }

    /// Finds the mapping behind each run: the youngest at its first address, of this device or else of an unknown one.
    /// `index` finds the number of a device from its name.
    pub(super) fn explained(
        mut self,
        mappings: &[TraceMapping],
        operations: &[Operation],
        devices: &[SourceId],
        index: impl Fn(&str) -> Option<u16>,
    ) -> Vec<TracedFault> {
        for fault in &mut self.runs {
            let (page, device) = (fault.first_iova >> PAGE_SHIFT, index(&fault.device));
            let holds = |mapping: &TraceMapping| {
                let is_before = operations[mapping.map_operation as usize].time_ns <= fault.time_ns;
                let run = mapping.iova_pfn..mapping.iova_pfn + u64::from(mapping.pages);
                is_before && run.contains(&page)
            };
            let of = |is_its: &dyn Fn(u16) -> bool| mappings.iter().rposition(|it| is_its(it.device) && holds(it));
            let its_own = of(&|number| Some(number) == device);
            let mapping = its_own.or_else(|| of(&|number| devices[usize::from(number)] == UNKNOWN_DEVICE));
            fault.mapping = mapping.map(|at| at as u32);
        }
        self.runs
    }
}
