//! Operations on a domain: machines, and scripts of operations drawn at random.

use portcullis::iommu::fake::Behaviour;
use portcullis::platform::fake::CPUS;
use portcullis::{Access, Capabilities, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Segment};
use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::Range;

/// Physical memory of every machine, in pages: 1 GiB from address 0.
pub(super) const MEMORY_PAGES: u64 = 1 << 18;
/// Width of a physical address on every machine, in bits.
pub(super) const PHYSICAL_BITS: u8 = 46;

/// Pages that many buffers share. Bursts begin among them.
const CROWDED: Range<u64> = 60..72;

/// The hardware that a script runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Width of the addresses that the device can use, in bits.
    pub address_bits: u8,
    /// Whether the page walker snoops the CPUs' caches.
    pub coherent: bool,
    /// Whether the hardware caches absent entries.
    pub caches_absent: bool,
    /// Whether the hardware has leaves of 2 MiB and 1 GiB.
    pub large_leaves: bool,
    /// Largest address mask of a page-selective invalidation.
    pub address_mask_max: Option<u8>,
    /// When an invalidation completes: once the clock advances if `true`, else as soon as its completion is polled.
    pub slow: bool,
}

impl Machine {
    /// The capabilities of its IOMMU.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            three_level: true,
            four_level: true,
            leaf_2m: self.large_leaves,
            leaf_1g: self.large_leaves,
            address_mask_max: self.address_mask_max,
            coherent: self.coherent,
            caches_absent: self.caches_absent,
            rings: true,
            pass_through: true,
            address_bits: 48,
            physical_bits: PHYSICAL_BITS,
        }
    }

    /// How its IOMMU completes submissions while it works.
    pub fn behaviour(&self) -> Behaviour {
        if self.slow { Behaviour::Slow } else { Behaviour::Prompt }
    }
}

/// A buffer, and what the device does with it.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Its memory.
    pub segments: Vec<Segment>,
    /// What the device does with it.
    pub access: Access,
}

/// One step of a script. A mapping is named by a number, taken modulo the number of mappings.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Maps a buffer.
    Map(Buffer),
    /// Maps this many adjacent one-page buffers in one batch.
    MapBatch {
        /// The first page.
        pfn: u64,
        /// Number of buffers.
        pages: usize,
        /// What the device does with each.
        access: Access,
    },
    /// Unmaps a live mapping.
    Unmap(usize),
    /// Unmaps several mappings under one commit, with a map before the commit. The batch is committed by a call or by
    /// being dropped.
    Batch {
        /// The mappings.
        unmaps: Vec<usize>,
        /// The buffer that is mapped before the commit.
        map: Option<Buffer>,
        /// Whether the batch is dropped.
        dropped: bool,
    },
    /// Maps this many single pages, lets the device use them and unmaps them, one after the other.
    Burst(usize),
    /// Unmaps a range that was unmapped before.
    UnmapAgain(usize),
    /// Unmaps a live mapping without its first or last pages.
    UnmapPart {
        /// The mapping.
        which: usize,
        /// Pages left out at its front.
        front: u64,
        /// Pages left out at its back.
        back: u64,
    },
    /// Unmaps a range that was never handed out.
    UnmapGarbage {
        /// Its first page.
        pfn: u64,
        /// Its number of pages.
        pages: u64,
    },
    /// Advances the clock by this many microseconds, and ticks if a tick is due.
    Advance(u64),
    /// Calls the domain's tick, due or not.
    Tick,
    /// The driver continues on this CPU.
    RunOn(u32),
    /// Unmaps everything and lets the longest window pass. A map must then succeed (S13).
    Drain,
    /// The hardware refuses every invalidation from now on.
    Fail,
    /// The hardware answers again. Buffers that were lost stay lost.
    Recover,
}

impl Buffer {
    /// A buffer of one page that the device writes.
    pub fn page(pfn: u64) -> Self {
        let segment = Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE };
        Self { segments: vec![segment], access: Access::DeviceWrites }
    }
}

impl Operation {
    /// Whether the step may unmap a range that is no mapping.
    pub fn is_mistake(&self) -> bool {
        matches!(self, Self::UnmapAgain(_) | Self::UnmapPart { .. } | Self::UnmapGarbage { .. })
    }
}

/// A script with a number of operations in `length`.
pub fn script(length: Range<usize>) -> impl Strategy<Value = Vec<Operation>> {
    vec(operation(), length)
}

fn operation() -> impl Strategy<Value = Operation> {
    let unmap_part = (any::<usize>(), 0..4u64, 0..4u64);
    let garbage = (prop_oneof![0..MEMORY_PAGES, 0xf_0000..0x10_0000u64, Just(1 << 40)], 1..700u64);
    let batch = (vec(any::<usize>(), 0..12), prop::option::of(buffer()), any::<bool>());
    prop_oneof![
        24 => buffer().prop_map(Operation::Map),
        3 => (1..MEMORY_PAGES - 100, 1..100usize, access())
            .prop_map(|(pfn, pages, access)| Operation::MapBatch { pfn, pages, access }),
        10 => any::<usize>().prop_map(Operation::Unmap),
        8 => batch.prop_map(|(unmaps, map, dropped)| Operation::Batch { unmaps, map, dropped }),
        2 => (1..300usize).prop_map(Operation::Burst),
        3 => any::<usize>().prop_map(Operation::UnmapAgain),
        3 => unmap_part.prop_map(|(which, front, back)| Operation::UnmapPart { which, front, back }),
        3 => garbage.prop_map(|(pfn, pages)| Operation::UnmapGarbage { pfn, pages }),
        4 => (1..15_000u64).prop_map(Operation::Advance),
        2 => Just(Operation::Tick),
        3 => (0..CPUS).prop_map(Operation::RunOn),
        2 => Just(Operation::Drain),
        1 => Just(Operation::Fail),
        1 => Just(Operation::Recover),
    ]
}

fn buffer() -> impl Strategy<Value = Buffer> {
    let segments = prop_oneof![
        8 => small().prop_map(|one| vec![one]),
        4 => vec(small(), 2..6),
        2 => middling().prop_map(|one| vec![one]),
        1 => large().prop_map(|one| vec![one]),
        1 => (large(), small()).prop_map(|(first, second)| vec![first, second]),
        1 => Just(vec![Segment { phys: PhysAddr::new((1 << PHYSICAL_BITS) - 8), len: 16 }]),
    ];
    (segments, access()).prop_map(|(segments, access)| Buffer { segments, access })
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::DeviceReads), Just(Access::DeviceWrites), Just(Access::DeviceReadsAndWrites)]
}

/// Anywhere in a page, and across up to three page boundaries; often at pages that other buffers use too.
fn small() -> impl Strategy<Value = Segment> {
    let anywhere = 0..(MEMORY_PAGES - 4) << PAGE_SHIFT;
    let crowded = CROWDED.start << PAGE_SHIFT..CROWDED.end << PAGE_SHIFT;
    let phys = prop_oneof![2 => anywhere, 1 => crowded].prop_map(PhysAddr::new);
    (phys, 1..=3 * PAGE_SIZE).prop_map(|(phys, len)| Segment { phys, len })
}

/// Too long for a chunk that streams share, and shorter than a leaf table covers.
fn middling() -> impl Strategy<Value = Segment> {
    (1..MEMORY_PAGES - 512, 33..500u64)
        .prop_map(|(pfn, pages)| Segment { phys: PhysAddr::from_pfn(pfn), len: pages << PAGE_SHIFT })
}

/// Longer than a leaf table covers, on a 2 MiB boundary or not.
fn large() -> impl Strategy<Value = Segment> {
    let first = prop_oneof![(1..500u64).prop_map(|n| n * 512), 1..MEMORY_PAGES - 2000];
    let pages = prop_oneof![Just(512), Just(1024), 500..1300u64];
    (first, pages).prop_map(|(pfn, pages)| Segment { phys: PhysAddr::from_pfn(pfn), len: pages << PAGE_SHIFT })
}
