//! What the replay of a trace takes of a machine: cores, live pages, entries of a ring, and memory. All of it shows in
//! the trace, before there is a machine.

use super::workload::Workload;
use crate::machine::Machine;
use crate::traffic::{self, Traffic};
use portcullis::iommu::rings::RING_ENTRIES_MAX;
use portcullis::{PAGE_SIZE, SourceId};
use portcullis_trace::{Events, Joined, OperationKind, Trace, TraceMapping};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A trace to replay, with the device's own accesses if there is a log of them.
#[derive(Clone)]
pub struct Replay {
    /// The trace.
    pub trace: Arc<Trace>,
    /// Its device's accesses.
    pub joined: Option<Arc<Joined>>,
}

impl Replay {
    /// A trace without a log of accesses.
    pub fn of(trace: Arc<Trace>) -> Self {
        Self { trace, joined: None }
    }

    /// Whether the trace has pages, but neither the lengths of buffers nor the devices.
    pub(super) fn is_of_pages_alone(&self) -> bool {
        self.trace.events == Events::Iommu
    }

    /// Logged accesses that no mapping explains.
    pub(super) fn unexplained_accesses(&self) -> u64 {
        self.joined.as_ref().map_or(0, |joined| joined.unexplained)
    }
}

impl Workload for Replay {
    fn cores(&self) -> usize {
        cpus(&self.trace).len().max(1)
    }

    fn live_pages_max(&self) -> u64 {
        live_pages_max(&self.trace)
    }

    fn memory_end(&self, _: &Machine) -> u64 {
        memory_end(&self.trace, self.joined.as_deref())
    }

    fn looks(&self) -> Option<Traffic> {
        traffic::of(&self.trace)
    }

    fn devices(&self) -> Vec<SourceId> {
        self.trace.devices.clone()
    }

    fn waits_for_room(&self) -> bool {
        false
    }

    fn ring_entries(&self, batch: usize) -> Option<u32> {
        ring_entries(&self.trace, batch)
    }
}

/// The CPUs that have operations, sorted by number. Each becomes a core.
pub(super) fn cpus(trace: &Trace) -> Vec<u16> {
    let cpus: FxHashSet<u16> = trace.operations.iter().map(|operation| operation.cpu).collect();
    let mut cpus: Vec<u16> = cpus.into_iter().collect();
    cpus.sort_unstable();
    cpus
}

/// The most pages that are mapped at once, in the order of the trace.
fn live_pages_max(trace: &Trace) -> u64 {
    let (mut live, mut most) = (0, 0);
    for operation in &trace.operations {
        let pages = u64::from(trace.mappings[operation.mapping as usize].pages);
        match operation.kind {
            OperationKind::Map => live += pages,
            OperationKind::Unmap => live -= pages,
        }
        most = most.max(live);
    }
    most
}

/// The size of a ring that is large enough if each CPU has one ring for each direction, and ends its batches like
/// `Driver`. It spans from the tail back to the oldest buffer that is mapped or waits for its batch to end. `None`
/// if no ring is large enough.
fn ring_entries(trace: &Trace, batch: usize) -> Option<u32> {
    #[derive(Default)]
    struct Ring {
        tail: u64,
        /// Where each mapping begins whose entries are in use.
        used: BTreeSet<u64>,
    }
    let (mut rings, mut places) = (FxHashMap::<_, Ring>::default(), FxHashMap::default());
    // By CPU: what it has unmapped since its last commit.
    let mut batches = FxHashMap::<u16, Vec<(&TraceMapping, _, u64)>>::default();
    let (mut needed, mut longest) = (1, 1);
    for operation in &trace.operations {
        let mapping = &trace.mappings[operation.mapping as usize];
        let key = (operation.cpu, mapping.device, mapping.access);
        let members = batches.entry(operation.cpu).or_default();
        let ends = |member: &TraceMapping| match operation.kind {
            OperationKind::Map => (member.device, member.access) == (mapping.device, mapping.access),
            OperationKind::Unmap => member.device != mapping.device,
        };
        if members.len() >= batch || members.iter().any(|(member, _, _)| ends(member)) {
            for (_, key, at) in members.drain(..) {
                rings.get_mut(&key).map(|ring| ring.used.remove(&at));
            }
        }
        match operation.kind {
            OperationKind::Map => {
                let ring = rings.entry(key).or_default();
                places.insert(operation.mapping, (key, ring.tail));
                ring.used.insert(ring.tail);
                let entries = mapping.segments().len() as u64;
                ring.tail += entries;
                longest = longest.max(entries);
                needed = needed.max(ring.tail - ring.used.first().copied().unwrap_or(ring.tail));
            }
            OperationKind::Unmap => {
                if let Some((key, at)) = places.remove(&operation.mapping) {
                    members.push((mapping, key, at));
                }
            }
        }
    }
    // The relative progress of CPUs differs a little between the run and the trace. A list also skips the entries left
    // at the end of the table.
    let slack = (batch as u64 + 1) * longest;
    let entries = (needed + slack).next_power_of_two().min(u64::from(RING_ENTRIES_MAX));
    (needed + slack <= entries).then_some(entries as u32)
}

/// One past the last byte of all buffers.
fn memory_end(trace: &Trace, joined: Option<&Joined>) -> u64 {
    let buffers = trace.segments.iter().map(|segment| segment.phys.as_u64() + segment.len);
    let pages = joined.into_iter().flat_map(|joined| &joined.persistent).map(|page| page.phys.as_u64() + PAGE_SIZE);
    buffers.chain(pages).max().unwrap_or(0)
}
