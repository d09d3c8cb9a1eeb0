//! A panic in the host, at every hook of every operation, under every design. The device must not reach a buffer that
//! was handed back or freed, lost buffers are counted, and later calls return errors instead of panicking again.

mod iommu;

use crate::raw_face::RawFace;
use arrayvec::ArrayVec;
use iommu::HookedIommu;
use portcullis::domain::{
    Batch, DescriptorMapFailure, DmaBuffer, MapFailure, Mapping, RingConfig, SharedBuffer, Submitted, UnmapFailure,
};
use portcullis::iommu::fake::FakeIommu;
use portcullis::mapper::{Design, Mapper, Visitor};
use portcullis::platform::fake::hooks::{HookedHost, has_panicked, panic_at, with_a_lock};
use portcullis::platform::fake::{FakeHost, lost_here};
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, Domain, DomainConfig, Iommu, Iova, IovaRange, MapError, MapOptions, Open, PAGE_SIZE,
    PhysAddr, Protection, RawMapError, Segment, SourceId, SubPage,
};
use portcullis_designs::{Choice, DesignId, RIommu};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

const DEVICE: SourceId = SourceId::new(0, 5, 0);
const WRITES: Access = Access::DeviceWrites;
/// Options for a device with 32 address bits.
const LOW: MapOptions = MapOptions { limit: 0xffff_ffff, at: None, ..MapOptions::fixed(Iova::new(0)) };

/// The buffers of a run, and those that the device must have lost, by number.
#[derive(Default)]
struct Owners {
    /// The memory of the buffers, if the domain bounces parts of pages: those are copied, so the memory must exist.
    arena: Option<Arena>,
    made: u64,
    back: BTreeSet<u64>,
}

/// Memory for [`BUFFERS_MAX`] buffers of [`PAGES_MAX`] pages, most of which is never touched. It is never freed,
/// because lost buffers keep it.
#[derive(Clone, Copy)]
struct Arena {
    first_pfn: u64,
}

impl Arena {
    /// The arena of this thread.
    fn of_thread() -> Self {
        thread_local! {
            static ARENA: Arena = {
                let bytes = (PAGES_MAX * PAGE_SIZE) as usize;
                let layout = Layout::from_size_align(BUFFERS_MAX as usize * bytes, bytes).expect("a layout");
                // SAFETY: the size is not zero.
                let memory = unsafe { alloc_zeroed(layout) };
                assert!(!memory.is_null());
                Arena { first_pfn: memory.expose_provenance() as u64 / PAGE_SIZE }
            };
        }
        ARENA.with(|arena| *arena)
    }
}

/// The memory of the buffer with number `number`, of this many pages: whole pages, or in an arena without the ends of
/// the first and the last.
fn segment(arena: Option<Arena>, number: u64, pages: u64) -> Segment {
    let first_pfn = arena.map_or(0, |arena| arena.first_pfn) + number * PAGES_MAX + 3;
    let cut = if arena.is_some() { 0x40 } else { 0 };
    Segment { phys: PhysAddr::new(first_pfn * PAGE_SIZE + cut), len: pages * PAGE_SIZE - 2 * cut }
}

/// A buffer. Dropping it frees its memory.
struct Buffer {
    segment: [Segment; 1],
    owners: Rc<RefCell<Owners>>,
}

// SAFETY: it has no memory.
unsafe impl DmaBuffer for Buffer {
    fn segments(&self) -> &[Segment] {
        &self.segment
    }
}

// SAFETY: it has no memory.
unsafe impl SharedBuffer for Buffer {}

/// The distance of buffers in pages, so that a page number tells the buffer.
const PAGES_MAX: u64 = 1024;
/// More buffers than a script makes.
const BUFFERS_MAX: u64 = 64;

impl Buffer {
    fn new(owners: &Rc<RefCell<Owners>>, pages: u64) -> Self {
        let mut of = owners.borrow_mut();
        of.made += 1;
        assert!(of.made < BUFFERS_MAX);
        Self { segment: [segment(of.arena, of.made, pages)], owners: owners.clone() }
    }

    /// A buffer of whole pages, which are never bounced.
    fn whole(owners: &Rc<RefCell<Owners>>, pages: u64) -> Self {
        let mut buffer = Self::new(owners, pages);
        let Segment { phys, .. } = buffer.segment[0];
        buffer.segment[0] = Segment { phys: PhysAddr::from_pfn(phys.pfn()), len: pages * PAGE_SIZE };
        buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.owners.borrow_mut().back.insert(self.segment[0].phys.pfn() / PAGES_MAX);
    }
}

/// A run of the script.
struct Run<'h, M: Mapper> {
    domain: Domain<M>,
    host: &'h FakeHost,
    iommu: &'h FakeIommu<'h>,
    owners: Rc<RefCell<Owners>>,
    /// The live mappings.
    mapped: Vec<Mapping<Buffer>>,
    what: String,
}

impl<M: Mapper> Run<'_, M> {
    /// Runs one operation. It must not panic if a hook already has.
    fn step(&mut self, operation: impl FnOnce(&mut Self)) {
        let had_panicked = has_panicked();
        let ended = catch_unwind(AssertUnwindSafe(|| operation(self)));
        assert!(ended.is_ok() || !had_panicked, "{}: a second panic", self.what);
        if has_panicked() && !had_panicked {
            self.vet();
            if with_a_lock() {
                let refused = self.domain.map(Buffer::new(&self.owners, 1), WRITES).expect_err("half changed");
                assert_eq!(refused.error(), RawMapError::Refused(MapError::Poisoned), "{}", self.what);
            }
        }
    }

    /// Asserts that the device reaches no buffer that was handed back.
    fn vet(&self) {
        let owners = self.owners.borrow();
        for rights in [Rights::READ, Rights::WRITE] {
            let reached = self.iommu.reachable(DEVICE, rights);
            let gone = reached.iter().find(|(_, phys)| owners.back.contains(&(phys / PAGES_MAX)));
            assert_eq!(
                gone, None,
                "{}: (page of the address, page of memory) of a handed-back buffer is within reach",
                self.what
            );
        }
    }

    fn map(&mut self, pages: u64, shared: bool) {
        let mapped = match shared {
            true => self.domain.map_shared(Buffer::whole(&self.owners, pages), Access::DeviceReadsAndWrites),
            false => self.domain.map(Buffer::new(&self.owners, pages), WRITES),
        };
        self.note(mapped);
    }

    /// Maps below 4 GiB, if the design supports that.
    fn map_low(&mut self, pages: u64) {
        let mapped = self.domain.map_with(Buffer::whole(&self.owners, pages), WRITES, &LOW);
        self.note(mapped);
    }

    fn note(&mut self, mapped: Result<Mapping<Buffer>, MapFailure<Buffer>>) {
        match mapped {
            Ok(mapping) => {
                // The accesses cache the translations.
                let pages = mapping.range().first_pfn()..mapping.range().end_pfn();
                for pfn in pages.step_by(63) {
                    let reached = self.iommu.access(DEVICE, Iova::from_pfn(pfn), Rights::WRITE);
                    assert!(reached.is_some() || has_panicked(), "the page is mapped, and the device attached");
                }
                self.mapped.push(mapping);
            }
            Err(MapFailure::Refused(refused)) => drop(refused.value),
            Err(MapFailure::Lost(_)) => {}
        }
    }

    fn unmap(&mut self, index: usize) {
        if index < self.mapped.len() {
            match self.domain.unmap(self.mapped.remove(index)) {
                Ok(buffer) => drop(buffer),
                Err(UnmapFailure::Refused(refused)) => self.mapped.push(refused.value),
                Err(UnmapFailure::Commit(_)) => {}
            }
        }
    }

    /// Unmaps several mappings in a batch, which is committed or dropped.
    fn batch(&mut self, count: usize, commit: bool) {
        let mut batch = self.domain.batch();
        let mut refused = Vec::new();
        for _ in 0..count.min(self.mapped.len()) {
            if let Err(failure) = batch.unmap(self.mapped.remove(0)) {
                refused.push(failure.value);
            }
        }
        self.mapped.extend(refused);
        if commit {
            drop(batch.commit());
        }
    }

    /// Unmaps several mappings in a batch, submits it, maps another buffer, and waits, looks or drops.
    fn halves(&mut self, count: usize, end: fn(Submitted<Batch<&Domain<M>, Buffer>>)) {
        // The map in between needs all of `self`.
        let domain: *const Domain<M> = &self.domain;
        // SAFETY: the domain stays where it is until `end`, which is called after all steps.
        let mut batch = unsafe { &*domain }.batch();
        let mut refused = Vec::new();
        for _ in 0..count.min(self.mapped.len()) {
            if let Err(failure) = batch.unmap(self.mapped.remove(0)) {
                refused.push(failure.value);
            }
        }
        self.mapped.extend(refused);
        let Ok(submitted) = batch.submit() else { return };
        self.map(1, false);
        end(submitted);
    }

    /// Submits a batch in its place, and uses it again, also after a panic in between.
    fn halves_in_place(&mut self) {
        let mut batch = self.domain.batch();
        let mut refused = Vec::new();
        for _ in 0..2 {
            let Some(mapping) = self.mapped.pop() else { break };
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let unmapped = batch.unmap(mapping).map_err(|failure| failure.value);
                if unmapped.is_ok()
                    && let Ok(submitted) = batch.submit_so_far()
                {
                    _ = submitted.wait().map(|buffers| buffers.for_each(drop));
                }
                unmapped
            }));
            match ended {
                Ok(Err(mapping)) => refused.push(mapping),
                Ok(Ok(())) => {}
                // The device must not get a buffer back that the batch gives up later. `step` looks.
                Err(panic) => {
                    self.vet();
                    drop(batch.commit());
                    self.mapped.extend(refused);
                    std::panic::resume_unwind(panic);
                }
            }
        }
        drop(batch.commit());
        self.mapped.extend(refused);
    }

    fn ring(&mut self) {
        let mut ring = self.domain.ring(RingConfig::default()).expect("a ring");
        let buffers: ArrayVec<_, 64> = (0..5).map(|_| Buffer::new(&self.owners, 1)).collect();
        match ring.map(buffers) {
            Ok(descriptor) => drop(ring.unmap(descriptor).map_err(|failure| match failure {
                portcullis::domain::DescriptorFailure::Refused { descriptor, .. } => {
                    self.mapped.extend(descriptor.into_mappings());
                }
                portcullis::domain::DescriptorFailure::Commit(_) => {}
            })),
            Err(DescriptorMapFailure::Refused(refused)) => drop(refused.value),
            Err(DescriptorMapFailure::Lost { buffers, .. }) => drop(buffers),
        }
    }

    fn script(&mut self) {
        self.step(|run| _ = run.domain.attach(DEVICE));
        for (pages, shared) in [(1, false), (3, false), (1, true), (64, false), (1, false), (2, false), (1, false)] {
            self.step(|run| run.map(pages, shared));
        }
        self.step(|run| run.map(130, false));
        for pages in [2, 1, 1] {
            self.step(|run| run.map_low(pages));
        }
        self.step(|run| run.unmap(run.mapped.len().saturating_sub(1)));
        self.step(|run| run.unmap(1));
        self.step(|run| run.unmap(0));
        self.step(|run| run.batch(2, true));
        self.step(|run| run.map(1, false));
        self.step(Self::ring);
        self.step(|run| run.batch(2, false));
        for pages in [1, 1, 3] {
            self.step(|run| run.map(pages, false));
        }
        self.step(|run| run.halves(1, |submitted| drop(submitted.wait())));
        self.step(|run| run.halves(1, |mut submitted| _ = submitted.is_done()));
        self.step(|run| run.halves(1, |submitted| drop(submitted)));
        for _ in 0..3 {
            self.step(|run| run.map(1, false));
        }
        self.step(Self::halves_in_place);
        // This includes placed mappings.
        self.step(|run| run.batch(4, true));
        self.step(|run| run.map(1, false));
        self.step(|run| {
            run.host.advance_us(200_000);
            _ = run.domain.tick();
        });
        self.step(|run| run.map(4, false));
        self.step(|run| assert!(run.domain.usage().table_pages > 0));
        self.step(|run| run.unmap(0));
        self.step(|run| _ = run.domain.detach(DEVICE));
        self.step(|run| _ = run.domain.attach(DEVICE));
    }

    /// Drops the domain, and counts the buffers.
    fn end(self, lost_before: usize) {
        self.vet();
        let Self { domain, owners, mapped, what, .. } = self;
        let had_panicked = has_panicked();
        let ended = catch_unwind(AssertUnwindSafe(|| drop(domain)));
        assert!(ended.is_ok() || !had_panicked, "{what}: a second panic");
        let owners = owners.borrow();
        let (back, lost) = (owners.back.len(), lost_here() - lost_before);
        assert_eq!(
            owners.made as usize,
            back + lost + mapped.len(),
            "{what}: {back} handed back, {lost} lost, the rest mapped"
        );
        // The domain is gone, so they cannot be unmapped: that is no mistake of this test.
        std::mem::forget(mapped);
    }
}

/// Hardware without and with cached absent entries, which make maps invalidate.
fn hardware(all: Capabilities) -> [(&'static str, Capabilities); 2] {
    [("plain", all), ("caches absent", Capabilities { caches_absent: true, ..all })]
}

/// A script for the raw interface: typed mappings are never deferred. No step may panic if a hook already has.
fn raw_script<M: Mapper>(domain: &Domain<M>, host: &FakeHost, arena: Option<Arena>, what: &str) {
    let mut ranges: Vec<IovaRange> = Vec::new();
    let mut step = |operation: &mut dyn FnMut(&mut Vec<IovaRange>)| {
        let had_panicked = has_panicked();
        let ended = catch_unwind(AssertUnwindSafe(|| operation(&mut ranges)));
        assert!(ended.is_ok() || !had_panicked, "{what}: a second panic");
        if has_panicked() && !had_panicked && with_a_lock() {
            let (page, len) = (PhysAddr::from_pfn(7), PAGE_SIZE);
            let refused = [domain.raw_map(page, len, WRITES), domain.raw_map_either_way(page, len, WRITES)];
            assert_eq!(refused, [Err(MapError::Poisoned); 2], "{what}");
            assert_eq!(domain.due_us(), None, "{what}: a tick is due in a poisoned domain");
        }
    };
    for number in 1..8 {
        step(&mut |ranges| {
            let pages = if number == 5 { 130 } else { number };
            let Segment { phys, len } = segment(arena, number, pages);
            let iova = domain.raw_map_either_way(phys, len, WRITES);
            ranges.extend(iova.ok().and_then(|iova| IovaRange::covering(iova, pages * PAGE_SIZE)));
        });
    }
    for pages in [1, 2] {
        step(&mut |ranges| {
            let iova = domain.raw_map_with(PhysAddr::from_pfn(9 * PAGES_MAX), pages * PAGE_SIZE, WRITES, &LOW);
            ranges.extend(iova.ok().and_then(|iova| IovaRange::covering(iova, pages * PAGE_SIZE)));
        });
    }
    for _ in 0..2 {
        step(&mut |ranges| {
            if let Some(range) = ranges.pop() {
                _ = domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE);
            }
        });
    }
    for commit in [true, false] {
        step(&mut |ranges| {
            let mut batch = domain.raw_batch();
            for range in ranges.drain(..ranges.len().min(2)) {
                _ = batch.unmap(range);
            }
            if commit {
                _ = batch.commit();
            }
        });
    }
    step(&mut |_| {
        host.advance_us(200_000);
        _ = domain.tick();
    });
    step(&mut |_| assert!(domain.usage().table_pages > 0));
}

/// A run with a panic at one hook.
struct OneRun<'h> {
    protection: Protection,
    sub_page: SubPage,
    number: usize,
    what: String,
    host: &'h FakeHost,
    iommu: &'h FakeIommu<'h>,
}

impl<'h> Visitor<HookedHost<'h>, HookedIommu<'h>> for OneRun<'h> {
    type Output = ();

    fn visit<D: Design<HookedHost<'h>, HookedIommu<'h>>>(self) {
        let Self { protection, sub_page, number, what, host, iommu } = self;
        let arena = (sub_page == SubPage::Bounce).then(Arena::of_thread);
        let lost_before = lost_here();
        panic_at(number);
        let config = DomainConfig { sub_page, ..DomainConfig::new(protection) };
        let make = || D::open_with(HookedIommu(iommu), HookedHost(host), &config);
        if let Ok(domain) = catch_unwind(AssertUnwindSafe(make)) {
            let domain = domain.expect("a domain");
            if protection == Protection::Deferred {
                raw_script(&domain, host, arena, &what);
                let had_panicked = has_panicked();
                let ended = catch_unwind(AssertUnwindSafe(|| drop(domain)));
                assert!(ended.is_ok() || !had_panicked, "{what}: a second panic");
                return;
            }
            let owners = Rc::new(RefCell::new(Owners { arena, ..Owners::default() }));
            let mut run = Run { domain, host, iommu, owners, mapped: Vec::new(), what };
            run.script();
            run.end(lost_before);
        }
    }
}

/// Runs once for each hook, with a panic there. Returns the number of hooks.
fn at_every_hook(design: DesignId, protection: Protection, sub_page: SubPage, which: usize) -> usize {
    for number in 1.. {
        let host = if sub_page == SubPage::Bounce { FakeHost::of_process() } else { FakeHost::default() };
        let (name, capabilities) = hardware(FakeIommu::new(&host).capabilities())[which];
        let iommu = FakeIommu::with_capabilities(&host, capabilities);
        let what = format!("{} {protection} {sub_page}, {name}, hook {number}", design.info().id);
        design.visit(OneRun { protection, sub_page, number, what, host: &host, iommu: &iommu });
        let panicked = has_panicked();
        panic_at(0);
        if !panicked {
            return number - 1;
        }
    }
    unreachable!("the script ends")
}

/// Fewer hooks than even the shortest path through a script passes.
const HOOKS_MIN: usize = 200;

fn under(protection: Protection, sub_page: SubPage) {
    for &design in DesignId::ALL {
        if design.info().protections.contains(&protection) {
            for which in [0, 1] {
                let hooks = at_every_hook(design, protection, sub_page, which);
                assert!(hooks >= HOOKS_MIN, "{}: there are more than {hooks} hooks", design.info().id);
            }
        }
    }
}

#[test]
fn a_panic_at_any_hook_loses_no_buffer_to_the_device() {
    under(Protection::Strict, SubPage::Expose);
}

/// Deferred mappings are raw, so their memory is the driver's responsibility. Table pages are the library's, and errors
/// must be returned as errors.
#[test]
fn a_panic_at_any_hook_of_a_deferred_domain_leaves_errors_behind() {
    under(Protection::Deferred, SubPage::Expose);
}

/// With bouncing of parts of pages, copies are hooks too, and bounce pages may be lost with the buffers.
#[test]
fn a_panic_at_any_hook_of_a_domain_that_bounces_loses_no_buffer_to_the_device() {
    under(Protection::Strict, SubPage::Bounce);
}

#[test]
fn a_panic_at_any_hook_of_a_deferred_domain_that_bounces_leaves_errors_behind() {
    under(Protection::Deferred, SubPage::Bounce);
}

/// An entry that a panic leaves claimed would keep its ring full forever. So the domain reports that it is poisoned,
/// and not that a later commit makes room.
#[test]
fn no_ring_is_full_after_a_panic() {
    let mut poisoned = 0;
    for number in 1.. {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let options = Choice::parse("riommu:ring=1").expect("a design").options;
        let config = DomainConfig { options, ..DomainConfig::new(Protection::Strict) };
        let domain = RIommu::open_with(HookedIommu(&iommu), HookedHost(&host), &config).expect("a domain");
        let page = PhysAddr::new(0x7000);
        panic_at(number);
        // Twice: the first map also creates the ring.
        for _ in 0..2 {
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let iova = domain.raw_map(page, PAGE_SIZE, WRITES).expect("room");
                domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
            }));
            if has_panicked() {
                break;
            }
        }
        let ended = has_panicked();
        panic_at(0);
        match domain.raw_map(page, PAGE_SIZE, WRITES) {
            Ok(_) => {}
            Err(MapError::Poisoned) => poisoned += 1,
            Err(MapError::RingFull { .. }) => {
                // The mapping is unchanged: the unmap had not begun.
                assert_eq!(domain.usage().live_ranges, 1, "hook {number}");
                let iova = Iova::new(1 << 48);
                domain.unmap_raw(iova, PAGE_SIZE).unwrap_or_else(|error| panic!("hook {number}: {error}"));
                domain.raw_map(page, PAGE_SIZE, WRITES).unwrap_or_else(|error| panic!("hook {number}: {error}"));
            }
            Err(error) => panic!("hook {number}: {error}"),
        }
        if !ended {
            break;
        }
    }
    assert!(poisoned > 10, "{poisoned}");
}
