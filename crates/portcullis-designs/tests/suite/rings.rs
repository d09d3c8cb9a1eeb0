//! Descriptors and their rings: one command covers adjacent pages, and the buffers come back by the descriptor.

use crate::raw_face::RawFace;
use arrayvec::ArrayVec;
use portcullis::domain::{
    DESCRIPTOR_PAGES_MAX, Descriptor, DescriptorError, DescriptorFailure, DescriptorMapFailure, DmaBuffer, Refused,
    RingConfig, RingError, lost_buffers,
};
use portcullis::invalidation::BATCH_MAX;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::mapper::{Design, Visitor};
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainConfig, DomainOf, Invalidation, Iommu, Iova, IovaRange, MapError, Open, PAGE_SIZE,
    PhysAddr, Protection, QueueError, Segment, SourceId, SyncError, UnmapError,
};
use portcullis_designs::{DesignId, FastAndSafe, Magazine, Stock};
use std::cell::Cell;
use std::rc::Rc;

const W: u64 = 64;

type OnFakes<'h, D> = DomainOf<D, &'h FakeHost, &'h FakeIommu<'h>>;

fn domain<'h, D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(
    iommu: &'h FakeIommu<'h>,
    host: &'h FakeHost,
) -> OnFakes<'h, D> {
    D::open(iommu, host, Protection::Strict).expect("a domain")
}

/// The first page of a command, and its address mask.
type Leaf = (u64, u8);

/// The first pages and address masks of page-selective commands that are leaf only.
fn leaves(commands: &[Invalidation]) -> Vec<Leaf> {
    let leaf = |command: &Invalidation| match *command {
        Invalidation::Pages { first, mask, leaf_only: true, .. } => (first.pfn(), mask),
        other => panic!("{other:?}"),
    };
    commands.iter().map(leaf).collect()
}

/// Maps two windows of single pages, unmaps those of `gone` in one batch, in that order, and returns the commands.
/// Pages are counted from the first of the lower window.
fn commands_for(capabilities: impl FnOnce(Capabilities) -> Capabilities, gone: &[u64]) -> (u64, Vec<Invalidation>) {
    let host = FakeHost::default();
    let iommu = FakeIommu::with_capabilities(&host, capabilities(FakeIommu::new(&host).capabilities()));
    let domain = domain::<FastAndSafe>(&iommu, &host);
    let map = |_| domain.raw_map(PhysAddr::new(0), PAGE_SIZE, Access::DeviceWrites).unwrap().pfn();
    let base = (0..2 * W).map(map).min().expect("pages");
    let mut batch = domain.raw_batch();
    for page in gone {
        batch.unmap(IovaRange::new(base + page, 1).unwrap()).unwrap();
    }
    iommu.take_commands();
    batch.commit().unwrap();
    (base, iommu.take_commands())
}

/// The numbers below `count` in a scattered order: `step` apart, modulo `count`.
fn shuffled(count: u64, step: u64) -> Vec<u64> {
    (0..count).map(|number| number * step % count).collect()
}

#[test]
fn a_descriptor_of_single_pages_goes_with_one_command() {
    for step in [1, 63, 5, 27] {
        let (base, commands) = commands_for(|all| all, &shuffled(W, step));
        assert_eq!(leaves(&commands), [(base, 6)], "every {step} pages");
    }
}

/// A run is a set of adjacent pages within a window. Its command is the smallest that covers it.
#[test]
fn a_command_covers_what_touches() {
    let cases: [(&[u64], &[Leaf]); 8] = [
        (&[7], &[(7, 0)]),
        (&[1, 0], &[(0, 1)]),
        (&[2, 1], &[(0, 2)]),
        (&[0, 2], &[(0, 0), (2, 0)]),
        (&[9, 0, 1, 8, 3], &[(0, 1), (3, 0), (8, 1)]),
        (&[32, 31], &[(0, 6)]),
        // The last page of one window and the first of the next are adjacent by chance.
        (&[63, 64], &[(63, 0), (64, 0)]),
        (&[62, 65, 63, 64], &[(62, 1), (64, 1)]),
    ];
    for (gone, expected) in cases {
        let (base, commands) = commands_for(|all| all, gone);
        let expected: Vec<Leaf> = expected.iter().map(|(first, mask)| (base + first, *mask)).collect();
        assert_eq!(leaves(&commands), expected, "{gone:?}");
    }
}

/// If the hardware covers fewer pages in one command, it gets more commands, and the domain is not invalidated as a
/// whole.
#[test]
fn a_command_covers_no_more_than_the_hardware_can() {
    let (base, commands) = commands_for(|all| Capabilities { address_mask_max: Some(2), ..all }, &shuffled(W, 27));
    let expected: Vec<Leaf> = (0..16).map(|number| (base + 4 * number, 2)).collect();
    assert_eq!(leaves(&commands), expected);
    let (_, commands) = commands_for(|all| Capabilities { address_mask_max: None, ..all }, &shuffled(W, 27));
    assert!(matches!(commands[..], [Invalidation::Domain(_)]), "{commands:?}");
}

/// If an unmap frees a table page, the command for its mapping covers all levels; other commands do not.
#[test]
fn all_levels_go_with_a_table_only() {
    let host = FakeHost::default();
    let iommu = FakeIommu::with_capabilities(
        &host,
        Capabilities { leaf_2m: false, leaf_1g: false, ..FakeIommu::new(&host).capabilities() },
    );
    let domain = domain::<FastAndSafe>(&iommu, &host);
    let map = |pages| domain.raw_map(PhysAddr::new(0), pages * PAGE_SIZE, Access::DeviceWrites).unwrap();
    let (small, large) = (map(1), map(512));
    let mut batch = domain.raw_batch();
    for (iova, pages) in [(small, 1), (large, 512)] {
        batch.unmap(IovaRange::covering(iova, pages * PAGE_SIZE).unwrap()).unwrap();
    }
    batch.commit().unwrap();
    let command = |first: Iova, mask, leaf_only| Invalidation::Pages { domain: domain.id(), first, mask, leaf_only };
    assert_eq!(iommu.take_commands(), [command(large, 9, false), command(small, 0, true)]);
}

#[test]
fn other_designs_send_a_command_for_each() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain::<Magazine>(&iommu, &host);
    let mapped =
        [1, 2, 3, 4].map(|pfn| domain.raw_map(PhysAddr::from_pfn(pfn), PAGE_SIZE, Access::DeviceWrites).unwrap());
    let mut batch = domain.raw_batch();
    mapped.iter().for_each(|iova| batch.unmap(IovaRange::covering(*iova, 1).unwrap()).unwrap());
    batch.commit().unwrap();
    assert_eq!(leaves(&iommu.take_commands()), mapped.map(|iova| (iova.pfn(), 0)));
}

/// A buffer that counts the freed buffers of its kind.
#[derive(Debug)]
struct Buffer {
    segments: Vec<Segment>,
    freed: Rc<Cell<usize>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.freed.set(self.freed.get() + 1);
    }
}

// SAFETY: the segments never change, and no device exists that could reach them.
unsafe impl DmaBuffer for Buffer {
    fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

/// `count` buffers of one page each.
fn pages(count: u64, freed: &Rc<Cell<usize>>) -> ArrayVec<Buffer, BATCH_MAX> {
    let segment = |pfn| Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE };
    (1..=count).map(|pfn| Buffer { segments: vec![segment(pfn)], freed: Rc::clone(freed) }).collect()
}

/// The physical pages of buffers, in order.
fn pfns(buffers: &[Buffer]) -> Vec<u64> {
    buffers.iter().flat_map(|buffer| &buffer.segments).map(|segment| segment.phys.pfn()).collect()
}

struct Serve<'h>(&'h FakeHost, &'h FakeIommu<'h>);

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for Serve<'h> {
    type Output = usize;

    /// Maps and unmaps a descriptor twice. Returns how many commands the second time took.
    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) -> usize {
        let Self(host, iommu) = self;
        let freed = Rc::new(Cell::new(0));
        let domain = domain::<D>(iommu, host);
        let mut ring = domain.ring(RingConfig::default()).unwrap();
        let mut buffers = pages(W, &freed);
        for _ in 0..2 {
            let descriptor = ring.map(buffers).unwrap();
            assert_eq!(descriptor.mappings().len(), BATCH_MAX);
            iommu.take_commands();
            buffers = ring.unmap(descriptor).unwrap();
            assert_eq!(pfns(&buffers), Vec::from_iter(1..=W));
        }
        assert_eq!(freed.get(), 0);
        iommu.take_commands().len()
    }
}

#[test]
fn every_strict_design_serves_rings() {
    for design in DesignId::ALL.iter().filter(|design| design.info().protections.contains(&Protection::Strict)) {
        let host = FakeHost::default();
        let commands = design.visit(Serve(&host, &FakeIommu::new(&host)));
        assert!(commands == 1 || *design != DesignId::FastAndSafe, "{commands}");
    }
}

struct ServeHuge<'h>(&'h FakeHost, &'h FakeIommu<'h>);

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for ServeHuge<'h> {
    type Output = (usize, Vec<Invalidation>);

    /// Maps and unmaps a descriptor of one 2 MiB buffer twice. Returns how many table pages its mapping took beside the
    /// root, and the commands of its unmap.
    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) -> Self::Output {
        const DEVICE: SourceId = SourceId::new(0, 2, 0);
        let Self(host, iommu) = self;
        let freed = Rc::new(Cell::new(0));
        let domain = domain::<D>(iommu, host);
        domain.attach(DEVICE).unwrap();
        let empty = domain.table_pages();
        let config = RingConfig { pages_per_descriptor: DESCRIPTOR_PAGES_MAX, ..RingConfig::default() };
        let mut ring = domain.ring(config).unwrap();
        let huge = Segment { phys: PhysAddr::new(1 << 30), len: DESCRIPTOR_PAGES_MAX * PAGE_SIZE };
        let mut buffers: ArrayVec<_, BATCH_MAX> =
            [Buffer { segments: vec![huge], freed: Rc::clone(&freed) }].into_iter().collect();
        let mut table_pages = 0;
        for _ in 0..2 {
            let descriptor = ring.map(buffers).unwrap();
            let start = descriptor.mappings()[0].iova();
            let at = |page: u64| Iova::new(start.as_u64() + page * PAGE_SIZE);
            let reached = |page| iommu.access(DEVICE, at(page), Rights::WRITE);
            for page in [0, 1, DESCRIPTOR_PAGES_MAX - 1] {
                assert_eq!(reached(page), Some(PhysAddr::from_pfn(huge.phys.pfn() + page)));
            }
            table_pages = domain.table_pages() - empty;
            iommu.take_commands();
            buffers = ring.unmap(descriptor).unwrap();
            assert_eq!(pfns(&buffers), [huge.phys.pfn()]);
            assert!((0..DESCRIPTOR_PAGES_MAX).all(|page| reached(page).is_none()), "S2");
        }
        assert_eq!(freed.get(), 0);
        let more = buffers.into_iter().chain(pages(1, &freed)).collect();
        let most = DESCRIPTOR_PAGES_MAX;
        assert_eq!(refused(ring.map(more)).error, DescriptorError::TooManyPages { pages: most + 1, most });
        (table_pages, iommu.take_commands())
    }
}

/// A descriptor may be one buffer of 2 MiB: one leaf if the hardware has large leaves, and one command.
#[test]
fn a_descriptor_may_be_one_huge_buffer() {
    for design in DesignId::ALL.iter().filter(|design| design.info().protections.contains(&Protection::Strict)) {
        let (host, name) = (FakeHost::default(), design.info().id);
        let (with_leaf, commands) = design.visit(ServeHuge(&host, &FakeIommu::new(&host)));
        assert_eq!(commands.len(), 1, "{name}: {commands:?}");
        let capabilities = Capabilities { leaf_2m: false, ..FakeIommu::new(&host).capabilities() };
        let small_leaves = FakeIommu::with_capabilities(&host, capabilities);
        let (without, commands) = design.visit(ServeHuge(&host, &small_leaves));
        assert_eq!(commands.len(), 1, "{name}: {commands:?}");
        // Guard pages, unaligned addresses and shared entries keep some designs from large leaves.
        if [DesignId::Portcullis, DesignId::Magazine, DesignId::Stock].contains(design) {
            assert_eq!(with_leaf + 1, without, "{name}: one leaf table less");
        }
    }
}

/// Each ring has its own window, used in order. Descriptors that are smaller than the window share one.
#[test]
fn rings_have_windows_of_their_own() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    let domain = domain::<FastAndSafe>(&iommu, &host);
    let config = RingConfig { pages_per_descriptor: 16, access: Access::DeviceReads };
    let mut rings = [0, 1].map(|_| domain.ring(config).unwrap());
    assert_ne!(rings[0].stream(), rings[1].stream());
    let mut descriptors = Vec::new();
    let mut starts = [0, 1].map(|_| Vec::new());
    for turn in 0..8 {
        let descriptor = rings[turn % 2].map(pages(16, &freed)).unwrap();
        let mapped = descriptor.mappings();
        assert!(mapped.iter().all(|mapping| mapping.access() == Access::DeviceReads));
        assert!(mapped.windows(2).all(|pair| pair[0].range().end_pfn() == pair[1].range().first_pfn()));
        starts[turn % 2].push(mapped[0].range().first_pfn());
        descriptors.push(descriptor);
    }
    for starts in starts {
        assert_eq!(starts, [0, 16, 32, 48].map(|page| starts[0] / W * W + page));
    }
    // Other mappings get addresses elsewhere.
    let other = domain.map(pages(1, &freed).pop().unwrap(), Access::DeviceReads).unwrap();
    assert!(
        descriptors
            .iter()
            .flat_map(|each| each.mappings())
            .all(|mapping| { mapping.range().first_pfn() / W != other.range().first_pfn() / W })
    );
    drop(domain.unmap(other).unwrap());
    iommu.take_commands();
    for descriptor in descriptors {
        rings[0].unmap(descriptor).unwrap();
    }
    assert!(leaves(&iommu.take_commands()).iter().all(|(_, mask)| *mask == 4));
}

/// A buffer of several segments is one mapping, and one command.
#[test]
fn a_scatter_list_is_one_mapping() {
    let (host, freed) = (FakeHost::default(), Rc::new(Cell::new(0)));
    let iommu = FakeIommu::new(&host);
    let domain = domain::<FastAndSafe>(&iommu, &host);
    let mut ring = domain.ring(RingConfig::default()).unwrap();
    let mut pieces = pages(W, &freed);
    let segments = pieces.drain(..).flat_map(|buffer| buffer.segments.clone()).collect();
    let list = Buffer { segments, freed: Rc::clone(&freed) };
    let descriptor = ring.map([list].into_iter().collect()).unwrap();
    assert_eq!(descriptor.mappings()[0].range().pages(), W);
    let start = descriptor.mappings()[0].range().first_pfn();
    assert_eq!(pfns(&ring.unmap(descriptor).unwrap()), Vec::from_iter(1..=W));
    assert_eq!(leaves(&iommu.take_commands()), [(start, 6)]);
}

#[test]
fn rings_and_descriptors_that_cannot_be() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    let domain = domain::<FastAndSafe>(&iommu, &host);
    for pages_per_descriptor in [0, DESCRIPTOR_PAGES_MAX + 1, u64::MAX] {
        let config = RingConfig { pages_per_descriptor, ..RingConfig::default() };
        assert_eq!(domain.ring(config).err(), Some(RingError::PagesPerDescriptor(pages_per_descriptor)));
    }
    let mut ring = domain.ring(RingConfig { pages_per_descriptor: 4, ..RingConfig::default() }).unwrap();
    let Refused { value, error } = refused(ring.map(pages(5, &freed)));
    assert_eq!((pfns(&value), error), (vec![1, 2, 3, 4, 5], DescriptorError::TooManyPages { pages: 5, most: 4 }));
    assert_eq!(domain.usage().live_ranges, 0);
    let none = ring.map(pages(0, &freed)).unwrap();
    assert!(none.mappings().is_empty() && ring.unmap(none).unwrap().is_empty());
    let deferred = Stock::open(&iommu, &host, Protection::Deferred).unwrap();
    let not_strict = refused(deferred.ring(RingConfig::default()).unwrap().map(pages(1, &freed)));
    assert_eq!(not_strict.error, DescriptorError::Map(MapError::NotStrict));
}

/// The reason why a descriptor was refused, and its buffers.
fn refused<B: DmaBuffer>(
    mapped: Result<Descriptor<B>, DescriptorMapFailure<B>>,
) -> Refused<ArrayVec<B, BATCH_MAX>, DescriptorError> {
    match mapped {
        Err(DescriptorMapFailure::Refused(refused)) => refused,
        Err(DescriptorMapFailure::Lost { error, .. }) => panic!("lost: {error}"),
        Ok(_) => panic!("the descriptor was mapped"),
    }
}

/// A descriptor whose last buffers find no room is not mapped at all, and no buffer is lost (S6).
#[test]
fn a_descriptor_is_mapped_whole_or_not_at_all() {
    let (host, freed) = (FakeHost::default(), Rc::new(Cell::new(0)));
    let iommu = FakeIommu::new(&host);
    // Four pages, the first of them reserved.
    let config = DomainConfig { address_bits: 14, ..DomainConfig::new(Protection::Strict) };
    let domain = FastAndSafe::open_with(&iommu, &host, &config).unwrap();
    let mut ring = domain.ring(RingConfig::default()).unwrap();
    let Refused { value, error } = refused(ring.map(pages(6, &freed)));
    assert_eq!(error, DescriptorError::Map(MapError::Exhausted { pages: 1, limit_bits: 14 }));
    assert_eq!((pfns(&value), freed.get(), domain.usage().live_ranges), (vec![1, 2, 3, 4, 5, 6], 0, 0));
    // Buffers whose mappings cannot be undone stay with the device (S11).
    iommu.behave(Behaviour::Failing);
    let lost_before = lost_buffers();
    let Err(DescriptorMapFailure::Lost { buffers, error }) = ring.map(value) else { panic!("no buffer was lost") };
    assert_eq!(error, SyncError(QueueError::Descriptor));
    assert!(lost_buffers() >= lost_before + 3, "other tests lose buffers too");
    assert_eq!((pfns(&buffers), freed.get(), domain.usage().live_ranges), (vec![4, 5, 6], 0, 3));
    iommu.behave(Behaviour::Prompt);
}

#[test]
fn what_is_refused_is_given_back_as_it_was() {
    let (host, freed) = (FakeHost::default(), Rc::new(Cell::new(0)));
    let iommu = FakeIommu::new(&host);
    let (domain, other) = (domain::<FastAndSafe>(&iommu, &host), domain::<FastAndSafe>(&iommu, &host));
    let (mut ring, elsewhere) =
        (domain.ring(RingConfig::default()).unwrap(), other.ring(RingConfig::default()).unwrap());
    let descriptor = ring.map(pages(3, &freed)).unwrap();
    let Err(DescriptorFailure::Refused { descriptor, error, buffers }) = elsewhere.unmap(descriptor) else {
        panic!("the other domain accepted the mapping")
    };
    assert_eq!((error, buffers.len(), descriptor.mappings().len()), (UnmapError::WrongDomain, 0, 3));
    // A failed commit hands back nothing.
    iommu.behave(Behaviour::Failing);
    let failure = ring.unmap(descriptor).unwrap_err();
    assert!(matches!(failure, DescriptorFailure::Commit(_)), "{failure:?}");
    assert_eq!((freed.get(), domain.usage().live_ranges), (0, 3));
    iommu.behave(Behaviour::Prompt);
}

/// A page that unmaps another one without the ring's knowledge, when its segments are requested for the second time.
struct Meddler {
    page: Segment,
    asked: Cell<u32>,
    domain: &'static OnFakes<'static, Magazine>,
    unmaps: Option<Iova>,
}

// SAFETY: the segment never changes, and only the fake IOMMU reaches it.
unsafe impl DmaBuffer for Meddler {
    fn segments(&self) -> &[Segment] {
        self.asked.set(self.asked.get() + 1);
        if let (2, Some(iova)) = (self.asked.get(), self.unmaps) {
            self.domain.unmap_raw(iova, 2 * PAGE_SIZE).expect("the first of the descriptor is there");
        }
        core::slice::from_ref(&self.page)
    }
}

/// S6: a descriptor is refused in the middle, and the mapping of one of its buffers cannot be undone. The buffer is
/// lost, and the ring reports that.
#[test]
fn what_cannot_be_taken_back_is_not_said_to_be_unchanged() {
    let host: &FakeHost = Box::leak(Box::default());
    let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
    let domain: &OnFakes<'_, Magazine> = Box::leak(Box::new(self::domain::<Magazine>(iommu, host)));
    // Two pages are mapped by themselves, before the segments of the next buffer are requested.
    let buffer = |pfn, unmaps| {
        let page = Segment { phys: PhysAddr::from_pfn(pfn), len: 2 * PAGE_SIZE };
        Meddler { page, asked: Cell::new(0), domain, unmaps }
    };
    let probe = domain.map(buffer(1, None), Access::DeviceWrites).unwrap_or_else(|error| panic!("{:?}", error.error()));
    let iova = probe.iova();
    let _ = domain.unmap(probe).unwrap_or_else(|error| panic!("{:?}", error.error()));
    let mut ring = domain.ring(RingConfig::default()).expect("a ring");
    // The second buffer lies beyond the physical addresses of the IOMMU. The magazine gives the first buffer the
    // address that the probe had.
    let beyond = 1 << (iommu.capabilities().physical_bits - 12);
    let lost = lost_buffers();
    let mapped = ring.map([buffer(2, None), buffer(beyond, Some(iova))].into_iter().collect());
    let Err(DescriptorMapFailure::Lost { buffers, error }) = mapped else { panic!("no buffer was lost") };
    assert_eq!(error, SyncError(QueueError::Unproven));
    assert_eq!(buffers.iter().map(|buffer| buffer.page.phys.pfn()).collect::<Vec<_>>(), [beyond]);
    assert!(lost_buffers() > lost, "the lost buffer is counted");
}
