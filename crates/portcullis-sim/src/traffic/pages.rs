//! What pages alone show. A capture without `dma:` events has neither the devices nor the lengths of buffers.

use super::{Payload, Traffic};
use portcullis::{PAGE_SIZE, Segment};
use portcullis_trace::{Level, Operation, OperationKind, Trace};
use rustc_hash::FxHashMap;

/// A share of the maps from which on something is the rule: of the traces at hand, those of network cards have a
/// quarter or more.
const RULE: f64 = 0.1;
/// A share below which something does not occur. In between, there may be several devices.
const NEVER: f64 = 0.001;

/// Buffers fill at least one part in this many of the bytes that they have at most. Linux takes the buffers of packets
/// from fragments and caches whose sizes are a power of two, which a buffer fills by more than half; as much again is
/// allowed for the room that drivers leave around a packet. This is assumed.
const FILLED_MIN: u64 = 3;

/// The kind of device that has the pages; `None` if nothing shows it.
///
/// A network driver maps new buffers in the interrupt that unmaps full ones. Requests to disks are mapped by the tasks
/// that make them, and unmapped by the hard interrupts that end them. Drivers that map in tasks only and unmap
/// elsewhere, or whose buffers share pages, may be of either kind: senders, disks that are polled, requests of a few
/// sectors.
pub(super) fn kind(trace: &Trace) -> Option<Traffic> {
    let share = |kind: OperationKind, is_it: fn(u32, Level) -> bool| {
        let of_kind = || trace.operations.iter().filter(|operation| operation.kind == kind);
        let context = |operation: &&Operation| {
            let context = trace.contexts[operation.context as usize];
            is_it(context.pid, context.level)
        };
        of_kind().filter(context).count() as f64 / of_kind().count().max(1) as f64
    };
    // The idle task does no DMA of its own, so an interrupt did it, also where the capture has no levels.
    let in_interrupt: fn(u32, Level) -> bool = |pid, level| pid == 0 || level != Level::Task;
    let in_hard_interrupt = |_, level| matches!(level, Level::HardInterrupt | Level::HardInSoftInterrupt);
    let in_interrupts = share(OperationKind::Map, in_interrupt);
    if in_interrupts >= RULE {
        return Some(Traffic::Network);
    }
    if in_interrupts >= NEVER || share(OperationKind::Unmap, in_hard_interrupt) < 0.5 {
        return None;
    }
    let shared = Sharing::of(trace).maps as f64 / trace.mappings.len().max(1) as f64;
    (shared < NEVER).then_some(Traffic::Disk)
}

/// By mapping: the bytes of its pages that belong to its buffer, at least and at most.
///
/// All pages between the first and the last are full. The mappings that have a page at the same time share its bytes,
/// each as much as any other: this is right for their sum, and not for each where their lengths differ.
pub(crate) fn buffers(trace: &Trace) -> Vec<Payload> {
    Sharing::of(trace).buffers
}

/// How many live mappings have a page.
#[derive(Clone, Copy, Default)]
struct Holders {
    now: u32,
    /// The most since the page had none.
    most: u32,
}

#[derive(Default)]
struct Sharing {
    holders: FxHashMap<u64, Holders>,
    buffers: Vec<Payload>,
    /// The number of maps of a page that another live mapping has.
    maps: u64,
}

impl Sharing {
    fn of(trace: &Trace) -> Self {
        let mut sharing = Self { buffers: vec![Payload::default(); trace.mappings.len()], ..Self::default() };
        // Mappings that are never unmapped, by device and address.
        let mut kept = FxHashMap::default();
        for operation in &trace.operations {
            let mapping = &trace.mappings[operation.mapping as usize];
            let segments = trace.segments_of(mapping);
            match operation.kind {
                OperationKind::Map => {
                    let place = (mapping.device, mapping.iova_pfn);
                    // The address is free again, so the unmap of the mapping that was there is lost.
                    if let Some(gone) = kept.remove(&place) {
                        sharing.unmap(trace.segments_of(&trace.mappings[gone as usize]));
                    }
                    sharing.map(segments);
                    if mapping.unmap_operation.is_none() {
                        kept.insert(place, operation.mapping);
                    }
                }
                OperationKind::Unmap => {
                    sharing.buffers[operation.mapping as usize] = sharing.buffer(segments);
                    sharing.unmap(segments);
                }
            }
        }
        for (index, mapping) in trace.mappings.iter().enumerate() {
            if mapping.unmap_operation.is_none() {
                sharing.buffers[index] = sharing.buffer(trace.segments_of(mapping));
            }
        }
        sharing
    }

    fn map(&mut self, segments: &[Segment]) {
        let mut is_shared = false;
        for pfn in ends(segments) {
            let holders = self.holders.entry(pfn).or_default();
            is_shared |= holders.now > 0;
            holders.now += 1;
            holders.most = holders.most.max(holders.now);
        }
        self.maps += u64::from(is_shared);
    }

    fn unmap(&mut self, segments: &[Segment]) {
        for pfn in ends(segments) {
            let Some(holders) = self.holders.get_mut(&pfn) else { continue };
            holders.now -= 1;
            if holders.now == 0 {
                self.holders.remove(&pfn);
            }
        }
    }

    fn buffer(&self, segments: &[Segment]) -> Payload {
        let pages: u64 = segments.iter().map(Segment::pages).sum();
        // A page that the mapping has, has at least this holder.
        let part = |pfn| (PAGE_SIZE / self.holders.get(&pfn).map_or(1, |holders| u64::from(holders.most))).max(1);
        let ends: u64 = ends(segments).map(part).sum();
        let between = pages.saturating_sub(2) * PAGE_SIZE;
        let max = between + ends;
        Payload { min: (max / FILLED_MIN).max(between + 1).min(max), max }
    }
}

/// The first and the last page of a buffer. Only these may belong to others too.
fn ends(segments: &[Segment]) -> impl Iterator<Item = u64> {
    let first = segments.first().map(|segment| segment.phys.pfn());
    let last = segments.last().map(|segment| segment.phys.pfn() + segment.pages() - 1);
    first.into_iter().chain(last.filter(|last| first != Some(*last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = "fio-7 [000] ..... ";
    const IDLE: &str = "<idle>-0 [000] ";
    const SOFT: &str = "<idle>-0 [000] ..s1. ";
    const HARD: &str = "fio-7 [000] d.h1. ";
    const WITHOUT_LEVEL: &str = "fio-7 [000] ";

    /// A capture of four buffers, each mapped by `maps` and unmapped by `unmaps`. Two of them are live at a time, each
    /// `apart` pages from the other, in memory and in the space of the device.
    fn capture(maps: &str, unmaps: &str, apart: u64) -> Trace {
        let mut text = String::new();
        let mut at = 0;
        let mut event = |who: &str, what: &str, buffer: u64| {
            at += 1;
            let (iova, paddr) = (0x10_0000 + buffer * 0x1000, 0x4000_0000 + buffer * apart * 0x1000);
            let end = iova + 0x1000;
            let rest = match what {
                "map" => format!("paddr={paddr:#x} size=4096"),
                _ => "size=4096 unmapped_size=4096".to_owned(),
            };
            text += &format!("{who}1.{at:06}: {what}: IOMMU: iova={iova:#x} - {end:#x} {rest}\n");
        };
        for pair in 0..2 {
            (2 * pair..2 * pair + 2).for_each(|buffer| event(maps, "map", buffer));
            (2 * pair..2 * pair + 2).for_each(|buffer| event(unmaps, "unmap", buffer));
        }
        Trace::read_from("a capture", text.as_bytes(), |_| ()).expect("a trace")
    }

    #[test]
    fn who_maps_and_who_unmaps_shows_the_kind_of_device() {
        for (maps, unmaps, apart, wanted) in [
            (SOFT, SOFT, 1, Some(Traffic::Network)),
            (TASK, HARD, 1, Some(Traffic::Disk)),
            // Packets that a task sends, or a disk of another kind.
            (TASK, SOFT, 1, None),
            (TASK, SOFT, 0, None),
            // Requests of a few sectors, or packets.
            (TASK, HARD, 0, None),
            // A disk that is polled, or a card whose interrupts are threads.
            (TASK, TASK, 1, None),
            (WITHOUT_LEVEL, WITHOUT_LEVEL, 1, None),
            (WITHOUT_LEVEL, IDLE, 1, None),
            (IDLE, WITHOUT_LEVEL, 1, Some(Traffic::Network)),
        ] {
            let kind = super::super::of(&capture(maps, unmaps, apart));
            assert_eq!(kind, wanted, "{maps:?} {unmaps:?}, pages {apart} apart");
        }
    }

    #[test]
    fn mappings_that_have_a_page_at_the_same_time_share_its_bytes() {
        let alone = Payload { min: 1365, max: 4096 };
        assert_eq!(buffers(&capture(TASK, TASK, 1)), [alone; 4]);
        let shared = Payload { min: 682, max: 2048 };
        assert_eq!(buffers(&capture(TASK, TASK, 0)), [shared; 4]);
    }

    #[test]
    fn pages_between_the_ends_are_full() {
        let text = format!("{TASK}1.0: map: IOMMU: iova=0x1000 - 0x4000 paddr=0x8000 size=12288\n");
        let trace = Trace::read_from("a capture", text.as_bytes(), |_| ()).expect("a trace");
        assert_eq!(buffers(&trace), [Payload { min: 4097, max: 12288 }]);
    }
}
