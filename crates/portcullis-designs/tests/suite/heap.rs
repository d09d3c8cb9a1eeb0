//! Counts the bytes on the heap, by thread: nothing of a domain stays there when it is dropped.

use crate::raw_face::{RawFace, open};
use portcullis::chunk::{CHUNKED_PAGES_MAX, TABLE_IDLE_US};
use portcullis::iommu::fake::FakeIommu;
use portcullis::mapper::{Design, Visitor};
use portcullis::platform::Context;
use portcullis::platform::fake::FakeHost;
use portcullis::{Access, DomainConfig, PAGE_SIZE, PhysAddr, Protection, Segment};
use portcullis_designs::DesignId;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The allocator of `std`, which counts, and refuses requests as it is told.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated, less those that it has freed.
    static BYTES: Cell<isize> = const { Cell::new(0) };
    /// The state of the watch, while the library is being watched.
    static WATCH: Cell<Option<Watch>> = const { Cell::new(None) };
}

/// A watch on the library's requests for memory.
#[derive(Clone, Copy)]
struct Watch {
    /// Whether the library's caller may sleep.
    caller: Context,
    /// Whether the library has announced the current request to the heap.
    has_said: bool,
    /// Whether code outside the library is running: a fake.
    is_elsewhere: bool,
    /// Number of requests for memory so far.
    asked: usize,
    /// The number of the request that is refused.
    refused: usize,
    /// The most bytes that a request for heap memory gets. 0 if all requests are refused.
    bytes_max: usize,
    /// Requests that were not announced, or announced wrongly.
    wrong: usize,
    /// Bytes of the library on the heap.
    bytes: isize,
}

impl Watch {
    /// Whether another request for memory, announced to the host with `said`, is granted.
    fn grants(said: Option<Context>, bytes: usize) -> bool {
        let Some(mut watch) = WATCH.get() else { return true };
        let is_right = said.is_some_and(|said| said == Context::Atomic || watch.caller == Context::MaySleep);
        watch.wrong += usize::from(!is_right);
        watch.asked += 1;
        WATCH.set(Some(watch));
        bytes <= watch.bytes_max && watch.asked != watch.refused
    }
}

/// Watches the library on this thread from now on. Its request for memory number `refused` is refused; none if that is
/// 0.
pub(crate) fn watch(refused: usize) {
    let caller = Context::MaySleep;
    WATCH.set(Some(Watch {
        caller,
        has_said: false,
        is_elsewhere: true,
        asked: 0,
        refused,
        bytes_max: usize::MAX,
        wrong: 0,
        bytes: 0,
    }));
}

/// Refuses all requests of the library from now on.
pub(crate) fn refuse_all() {
    refuse_above(0);
}

/// Refuses requests of the library for more bytes from now on.
pub(crate) fn refuse_above(bytes_max: usize) {
    WATCH.set(WATCH.get().map(|watch| Watch { bytes_max, ..watch }));
}

/// Ends the watch. Returns how many requests the library made, and how many of them it did not announce, or announced
/// as one that may sleep although its caller must not.
pub(crate) fn end_watch() -> (usize, usize) {
    WATCH.take().map_or((0, 0), |watch| (watch.asked, watch.wrong))
}

fn while_watched<R>(change: impl FnOnce(&mut Watch), act: impl FnOnce() -> R) -> R {
    let Some(before) = WATCH.get() else { return act() };
    let mut now = before;
    change(&mut now);
    WATCH.set(Some(now));
    let result = act();
    if let Some(now) = WATCH.get() {
        let Watch { caller, has_said, is_elsewhere, .. } = before;
        WATCH.set(Some(Watch { caller, has_said, is_elsewhere, ..now }));
    }
    result
}

/// Calls the library, from a caller in this context.
pub(crate) fn library<R>(caller: Context, act: impl FnOnce() -> R) -> R {
    while_watched(|watch| (watch.caller, watch.is_elsewhere, watch.has_said) = (caller, false, false), act)
}

/// Runs code outside the library that the library calls.
pub(crate) fn elsewhere<R>(act: impl FnOnce() -> R) -> R {
    while_watched(|watch| watch.is_elsewhere = true, act)
}

/// The library has announced a request to the heap, in this context.
pub(crate) fn said<R>(context: Context, act: impl FnOnce() -> R) -> R {
    let is_wrong = |watch: &Watch| context == Context::MaySleep && watch.caller == Context::Atomic;
    while_watched(|watch| (watch.has_said, watch.wrong) = (true, watch.wrong + usize::from(is_wrong(watch))), act)
}

/// The library requests a table page, in this context. Returns whether it gets one.
pub(crate) fn grants_page(context: Context) -> bool {
    Watch::grants(Some(context), PAGE_SIZE as usize)
}

fn count(bytes: isize) {
    BYTES.with(|all| all.set(all.get() + bytes));
    if let Some(watch) = WATCH.get().filter(|watch| !watch.is_elsewhere) {
        WATCH.set(Some(Watch { bytes: watch.bytes + bytes, ..watch }));
    }
}

/// Whether the heap grants a request for so many bytes now.
fn grants(bytes: usize) -> bool {
    match WATCH.get() {
        Some(Watch { is_elsewhere: false, has_said, .. }) => Watch::grants(has_said.then_some(Context::Atomic), bytes),
        _ => true,
    }
}

/// Bytes that the library has put on the heap since the watch began.
pub(crate) fn bytes() -> isize {
    WATCH.get().map_or(0, |watch| watch.bytes)
}

// SAFETY: forwards to the allocator of the system, or returns no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !grants(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size() && !grants(size) {
            return std::ptr::null_mut();
        }
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// Opens a domain, makes mappings that need many table pages and addresses, and drops it. Returns the size of its
/// records that the domain reported.
struct Peak<'h> {
    host: &'h FakeHost,
    iommu: &'h FakeIommu<'h>,
    protection: Protection,
}

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for Peak<'h> {
    type Output = usize;

    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) -> usize {
        let Self { host, iommu, protection } = self;
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 40 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(protection) };
        let domain = open::<D, _, _>(iommu, host, &config).expect("a domain");
        let sizes = (0..40).map(|_| CHUNKED_PAGES_MAX).chain((0..200).map(|number| 1 + number % 5));
        let mapped: Vec<_> = (0..)
            .zip(sizes)
            .map(|(number, pages)| {
                let phys = PhysAddr::from_pfn(0x10_0000 + number * 512);
                (domain.raw_map(phys, pages * PAGE_SIZE, Access::DeviceWrites).expect("room"), pages)
            })
            .collect();
        let records = domain.usage().record_bytes;
        mapped.iter().for_each(|(iova, pages)| domain.unmap_raw(*iova, pages * PAGE_SIZE).expect("mapped"));
        for _ in 0..5 {
            host.advance_us(TABLE_IDLE_US);
            domain.tick().expect("the hardware answers");
        }
        records
    }
}

#[test]
fn a_domain_leaves_nothing_on_the_heap() {
    for &design in DesignId::ALL {
        for protection in design.info().protections {
            let run = || {
                let host = FakeHost::default();
                let iommu = FakeIommu::new(&host);
                design.visit(Peak { host: &host, iommu: &iommu, protection: *protection })
            };
            // Memory that is allocated once for each thread or process is allocated now.
            run();
            let before = BYTES.get();
            let records = run();
            assert_eq!(BYTES.get(), before, "{} {protection}, whose records had {records} bytes", design.info().id);
        }
    }
}
