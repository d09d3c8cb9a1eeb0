//! Chunks of two pages in tables of four. Pages come back while a stream leaves their chunk, tables leave while a CPU
//! walks them by mistake, and flushes run beside late unmaps.

use super::{Bench, DEVICE, check_with};
use crate::raw_face::RawFace;
use loom::thread;
use portcullis::chunk::TABLE_IDLE_US;
use portcullis::designs::Portcullis;
use portcullis::forward_platform;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::WordLines;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{
    Access, DomainConfig, DomainOf, Iova, Open, PAGE_SIZE, PhysAddr, Platform, Protection, Request, Segment, Stream,
};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Pages of a table that are handed out.
const TABLE: u64 = 4;
/// Addresses of this many bits have room for four tables.
const ADDRESS_BITS: u8 = 24;
/// How long an unmap may wait for its flush.
const WINDOW_US: u64 = 500;

type Chunked = Bench<Portcullis>;

/// Makes a domain on the second CPU.
fn bench(protection: Protection) -> Chunked {
    run_on(1);
    Bench::with_width(protection, ADDRESS_BITS)
}

/// Runs `second` on the second CPU, beside `first` on the first.
fn beside<T: 'static>(second: impl FnOnce() -> T + 'static, first: impl FnOnce()) -> T {
    let second = thread::spawn(move || {
        run_on(1);
        second()
    });
    run_on(0);
    first();
    second.join().unwrap()
}

/// Maps `PAGES` single pages, from physical page `pfn` on.
fn map_pages<const PAGES: usize>(bench: &Chunked, pfn: u64) -> [Iova; PAGES] {
    core::array::from_fn(|page| bench.map(pfn + page as u64, 1))
}

fn unmap_pages(bench: &Chunked, pages: &[Iova]) {
    pages.iter().for_each(|page| bench.unmap(*page, 1).expect("mapped"));
}

/// Lets pass as much time as unused tables are kept, and ticks.
fn tick_after_a_period(bench: &Chunked) {
    bench.host.advance_us(TABLE_IDLE_US);
    bench.domain.tick().expect("the hardware answers");
}

/// The last page of a table comes back on another CPU while its stream is at the end of its chunk. Either the table
/// is filled again, or another is begun. In no case is a page handed out that the device may still reach.
#[test]
fn a_remote_free_beside_the_end_of_a_chunk() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    static ANOTHER: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = bench(Protection::Strict);
        let [last, spent @ ..] = map_pages::<{ TABLE as usize }>(&bench, 10);
        assert_eq!(bench.reach(last), Some(10));
        unmap_pages(&bench, &spent);
        let other = bench.clone();
        let new = beside(move || map_pages::<2>(&other, 20), || bench.unmap(last, 1).expect("mapped"));
        assert_eq!(new.map(|iova| bench.reach(iova)), [Some(20), Some(21)]);
        assert!(new.contains(&last) || bench.reach(last).is_none(), "S2");
        let seen = if new[0] == last { &REUSED } else { &ANOTHER };
        seen.fetch_add(1, Ordering::Relaxed);
        unmap_pages(&bench, &new);
        assert_eq!(bench.domain.usage().live_ranges, 0);
        bench.close();
    });
    assert!(REUSED.load(Ordering::Relaxed) > 0, "the free comes first in some interleavings");
    assert!(ANOTHER.load(Ordering::Relaxed) > 0, "the map comes first in some");
}

/// Does the same when the stream leaves one page of its chunk unused: the table is spent when both the free and the
/// rest are.
#[test]
fn a_remote_free_beside_a_rest_that_is_left() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    static ANOTHER: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = bench(Protection::Strict);
        let gone = bench.map(10, TABLE - 1);
        assert_eq!(bench.reach(gone), Some(10));
        let other = bench.clone();
        let new = beside(move || other.map(20, TABLE - 1), || bench.unmap(gone, TABLE - 1).expect("mapped"));
        assert_eq!(bench.reach(new), Some(20));
        let seen = if new == gone { &REUSED } else { &ANOTHER };
        seen.fetch_add(1, Ordering::Relaxed);
        bench.unmap(new, TABLE - 1).expect("mapped");
        assert_eq!(bench.domain.usage().live_ranges, 0);
        bench.close();
    });
    assert!(REUSED.load(Ordering::Relaxed) > 0, "the free comes first in some interleavings");
    assert!(ANOTHER.load(Ordering::Relaxed) > 0, "the map comes first in some");
}

/// Two CPUs serve one ring, whose chunk has one page left. Each gets a page, and one of them provides the next chunk.
#[test]
fn two_cpus_at_the_end_of_a_chunk() {
    check_with(Some(2), || {
        let bench = bench(Protection::Strict);
        let map = |bench: &Chunked, pfn| {
            let segments = [Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE }];
            let mut request = Request::new(&segments, Access::DeviceWrites).expect("a page");
            request.stream = Stream(Some(0));
            bench.domain.raw_map_request(&request).expect("room").start()
        };
        let first = map(&bench, 10);
        let other = bench.clone();
        let third = Cell::new(None);
        let both = move || [20, 21].map(|pfn| map(&other, pfn));
        let [second, fourth] = beside(both, || third.set(Some(map(&bench, 30))));
        let third = third.get().expect("it has ended");
        let mapped = [(first, 10), (second, 20), (fourth, 21), (third, 30)];
        assert!(mapped.iter().all(|(iova, pfn)| bench.reach(*iova) == Some(*pfn)), "S3: {mapped:?}");
        unmap_pages(&bench, &mapped.map(|(iova, _)| iova));
        assert_eq!(bench.domain.usage().live_ranges, 0);
        // The stream continues, so that its chunk lies in none of the earlier tables: all tables leave except the one
        // that it is in.
        let more: [_; 2 * TABLE as usize] = core::array::from_fn(|page| map(&bench, 40 + page as u64));
        unmap_pages(&bench, &more);
        (0..3).for_each(|_| tick_after_a_period(&bench));
        assert!(bench.domain.usage().table_pages <= 3, "the root, a directory and a table");
        bench.close();
    });
}

/// One CPU flushes when the time has come, and the other unmaps the rest of the chunk. No page is handed out before
/// its flush, and no unmap waits longer than it may.
#[test]
fn a_deadline_beside_a_late_unmap() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    static QUEUED: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = bench(Protection::Deferred);
        let [waiting, late, others @ ..] = map_pages::<{ TABLE as usize }>(&bench, 10);
        assert_eq!([waiting, late].map(|iova| bench.reach(iova)), [Some(10), Some(11)]);
        unmap_pages(&bench, &others);
        bench.host.advance_us(WINDOW_US);
        bench.domain.tick().expect("the hardware answers");
        bench.unmap(waiting, 1).expect("mapped");
        let due_us = bench.domain.due_us().expect("an unmap waits");
        let other = bench.clone();
        let unmap_and_map = move || {
            other.unmap(late, 1).expect("mapped");
            // This yields for two context switches that loom, which counts switches, would not try by itself.
            thread::yield_now();
            other.map(20, 1)
        };
        let new = beside(unmap_and_map, || {
            bench.host.advance_us(WINDOW_US);
            bench.domain.tick().expect("the hardware answers");
        });
        assert!(due_us <= bench.host.now_us());
        assert_eq!(bench.reach(new), Some(20), "S3");
        assert!(new == waiting || bench.reach(waiting).is_none(), "S2: its time is over");
        REUSED.fetch_add(usize::from(new == waiting), Ordering::Relaxed);
        let queued = bench.domain.usage().queued_unmaps;
        QUEUED.fetch_add(queued, Ordering::Relaxed);
        if queued > 0 {
            let due_us = bench.domain.due_us().expect("an unmap waits");
            assert!(due_us <= bench.host.now_us() + WINDOW_US, "S2: {due_us}");
            bench.host.advance_us(WINDOW_US);
            bench.domain.tick().expect("the hardware answers");
        }
        assert_eq!(bench.domain.usage().queued_unmaps, 0);
        assert_eq!(bench.reach(late), None, "S2");
        unmap_pages(&bench, &[new]);
        bench.close();
    });
    assert!(REUSED.load(Ordering::Relaxed) > 0, "all of the table was flushed before the map in some interleavings");
    assert!(QUEUED.load(Ordering::Relaxed) > 0, "the late unmap waits in some");
}

/// Two CPUs unmap, and flush the range around everything that waits. Each serves the unmaps that the other has
/// queued, but only those queued before its flush began. The second CPU then runs `late` with the page that the first
/// unmaps, and the first runs `map`. Returns how often that page was handed out again.
fn two_flushes(late: fn(&Chunked, Iova), map: fn(&Chunked) -> Iova) -> usize {
    let reused = Arc::new(AtomicUsize::new(0));
    let count = reused.clone();
    check_with(Some(3), move || {
        let bench = bench(Protection::Deferred);
        run_on(0);
        let [gone, others @ ..] = map_pages::<{ TABLE as usize }>(&bench, 10);
        let [first, second, third, _, fifth, sixth, ..] = map_pages::<{ 2 * TABLE as usize }>(&bench, 20);
        unmap_pages(&bench, &others);
        bench.host.advance_us(WINDOW_US);
        bench.domain.tick().expect("the hardware answers");
        // The device comes after that flush, which invalidated the neighbours of the page.
        assert_eq!(bench.reach(gone), Some(10));
        // One unmap waits on each CPU, so that the second one to come is one too many.
        run_on(1);
        unmap_pages(&bench, &[first]);
        run_on(0);
        unmap_pages(&bench, &[fifth]);
        let other = bench.clone();
        let new = Cell::new(None);
        let unmap_two = move || {
            // The second unmap joins the first, and may find that a flush has closed their run.
            unmap_pages(&other, &[second, third]);
            late(&other, gone);
        };
        beside(unmap_two, || {
            unmap_pages(&bench, &[gone, sixth]);
            new.set(Some(map(&bench)));
        });
        let new = new.get().expect("it has ended");
        assert_eq!(bench.reach(new), Some(30), "S3");
        count.fetch_add(usize::from(new == gone), Ordering::Relaxed);
        bench.close();
    });
    reused.load(Ordering::Relaxed)
}

/// The flush that ends first serves the unmap for which both are responsible, and invalidates it itself.
#[test]
fn two_flushes_of_one_unmap() {
    let reused = two_flushes(|_, _| (), |bench| bench.map(30, 1));
    assert!(reused > 0, "the address is reused in some interleavings");
}

/// The device uses the page once more after the flush of another CPU.
#[test]
fn a_flush_beside_an_unmap() {
    static STILL_THERE: AtomicUsize = AtomicUsize::new(0);
    let late = |bench: &Chunked, gone| {
        STILL_THERE.fetch_add(usize::from(bench.reach(gone).is_some()), Ordering::Relaxed);
    };
    // The device may use the new mapping as well, so the address may be cached by now.
    let map =
        |bench: &Chunked| bench.domain.raw_map(PhysAddr::from_pfn(30), PAGE_SIZE, Access::DeviceWrites).expect("room");
    let reused = two_flushes(late, map);
    assert!(reused > 0, "the address is reused in some interleavings");
    assert!(STILL_THERE.load(Ordering::Relaxed) > 0, "the device came before the unmap in some");
}

/// An empty table leaves while another CPU needs one. That CPU gets it before it leaves, or gets another.
#[test]
fn a_map_beside_a_tick_that_takes_a_table_out() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    static ANOTHER: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = bench(Protection::Strict);
        let gone = bench.map(10, TABLE);
        assert_eq!(bench.reach(gone), Some(10));
        bench.unmap(gone, TABLE).expect("mapped");
        let pages = bench.domain.usage().table_pages;
        // This tick finds the table empty.
        tick_after_a_period(&bench);
        let other = bench.clone();
        let new = beside(move || other.map(20, 1), || tick_after_a_period(&bench));
        assert_eq!(bench.reach(new), Some(20));
        let seen = if new == gone { &REUSED } else { &ANOTHER };
        seen.fetch_add(1, Ordering::Relaxed);
        (0..2).for_each(|_| tick_after_a_period(&bench));
        assert_eq!(bench.reach(new), Some(20), "S4");
        assert_eq!((bench.domain.usage().table_pages, bench.host.frames_lent()), (pages, pages));
        unmap_pages(&bench, &[new]);
        assert_eq!(bench.domain.usage().live_ranges, 0);
        bench.close();
    });
    assert!(REUSED.load(Ordering::Relaxed) > 0, "the map comes first in some interleavings");
    assert!(ANOTHER.load(Ordering::Relaxed) > 0, "the table leaves first in some");
}

/// Two CPUs need a table at the same moment, and each adds one. Both chunks come from one of them, and the other goes
/// back. What each CPU has from its first map is there already.
#[test]
fn two_cpus_that_need_a_table() {
    both_add_a_table(2, 2);
}

/// Does the same with the first maps of both.
#[test]
fn two_cpus_that_need_their_first_table() {
    both_add_a_table(1, 0);
}

/// Two CPUs need a table beside `full` tables that are in use.
fn both_add_a_table(preemption_bound: usize, full: u32) {
    let counts: &[AtomicUsize; 2] = Box::leak(Box::default());
    check_with(Some(preemption_bound), move || {
        let bench = bench(Protection::Strict);
        let before: Vec<Iova> = (0..full).map(|cpu| map_a_table_on(cpu, &bench)).collect();
        run_on(0);
        let (other, first) = (bench.clone(), Cell::new(None));
        let second = beside(move || other.map(20, 1), || first.set(Some(bench.map(30, 1))));
        let first = first.get().expect("it has ended");
        assert_eq!([first, second].map(|iova| bench.reach(iova)), [Some(30), Some(20)], "S3");
        // The root, a directory, a table for both, and perhaps another.
        let pages = before.len() + 3;
        counts[bench.domain.usage().table_pages - pages].fetch_add(1, Ordering::Relaxed);
        (0..3).for_each(|_| tick_after_a_period(&bench));
        assert_eq!((bench.domain.usage().table_pages, bench.host.frames_lent()), (pages, pages));
        unmap_pages(&bench, &[first, second]);
        before.iter().for_each(|table| bench.unmap(*table, TABLE).expect("mapped"));
        assert_eq!(bench.domain.usage().live_ranges, 0);
        bench.close();
    });
    let [one, both] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(one > 0, "in some interleavings the second comes after the first");
    assert!(both > 0, "in some both add one");
}

/// Maps all pages of a table, which then has no room.
fn map_a_table_on(cpu: u32, bench: &Chunked) -> Iova {
    run_on(cpu);
    bench.map(100 + TABLE * u64::from(cpu), TABLE)
}

/// Two CPUs need a table, and there is memory for only one. The CPU without one maps below, where there is a table. It
/// has lost nothing, and there is room for as many tables as before.
#[test]
fn two_cpus_that_need_a_table_and_memory_for_one() {
    one_cpu_adds_a_table(2, 2);
}

/// Does the same with the first maps of both.
#[test]
fn two_cpus_that_need_their_first_table_and_memory_for_one() {
    one_cpu_adds_a_table(1, 0);
}

/// There is memory for one table beside `full` tables that are in use.
fn one_cpu_adds_a_table(preemption_bound: usize, full: u32) {
    let fallen: &AtomicUsize = Box::leak(Box::default());
    check_with(Some(preemption_bound), move || {
        let bench = bench(Protection::Strict);
        // This maps in the lower half, below the directory that both share.
        let below = bench.map(10, TABLE + 1);
        let before = (0..full).map(|cpu| map_a_table_on(cpu, &bench)).count();
        run_on(0);
        bench.host.limit_frames(1);
        let (other, first) = (bench.clone(), Cell::new(None));
        let second = beside(move || other.map(20, 1), || first.set(Some(bench.map(30, 1))));
        let both = [first.get().expect("it has ended"), second];
        assert_eq!(both.map(|iova| bench.reach(iova)), [Some(30), Some(20)], "S3");
        assert!(both.iter().any(|iova| *iova > below), "there was memory for one");
        fallen.fetch_add(both.iter().filter(|iova| **iova < below).count(), Ordering::Relaxed);
        bench.host.limit_frames(usize::MAX);
        let rest: Vec<Iova> = (before..3).map(|table| bench.map(60 + TABLE * table as u64, TABLE)).collect();
        assert!(rest.iter().all(|iova| *iova > below), "all four tables: {rest:?}");
        bench.close();
    });
    assert!(fallen.load(Ordering::Relaxed) > 0, "both need it at the same moment in some interleavings");
}

/// A host that keeps the table pages it gets back, and writes into them a mapping of one page that was never made. A
/// CPU that still walks such a page finds that mapping.
struct Poisoning {
    host: &'static FakeHost,
    /// Whether the host ignores walks, and reports that all of them are over.
    hasty: bool,
    freed: Mutex<Vec<PhysAddr>>,
}

/// Present, and the first page of a mapping of one.
const POISON: u64 = 1 << 53 | 3;

impl Poisoning {
    /// Gives the pages back to the fake.
    fn empty(&self) {
        for frame in self.freed.lock().unwrap().drain(..) {
            // SAFETY: the page came back from the domain, which has ended.
            unsafe { self.host.free_frame(frame) };
        }
    }
}

// SAFETY: it forwards to the fake, which keeps the promises, and only keeps pages for longer. A hasty host breaks
// them, but without harm: no page is used again.
unsafe impl Platform for Poisoning {
    type Lock<T: Send> = <FakeHost as Platform>::Lock<T>;
    type CpuWords = WordLines;

    forward_platform!(self => self.host;
        lock, walks_now, cpu, cpus, cpu_words, allocate_frame, frame, table_barrier, now_us, pause);

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the page is not given back to the fake before `empty`.
        let contents = unsafe { self.host.frame(frame) };
        contents[0].store_bits(POISON);
        self.freed.lock().unwrap().push(frame);
    }

    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        // The fake records walks under a lock, which would order more than a walk on a real host does.
        if self.hasty { walk() } else { self.host.walk(walk) }
    }

    fn walks_are_over(&self, then: u64) -> bool {
        self.hasty || self.host.walks_are_over(then)
    }
}

/// A domain through which no device has reached anything yet, over a host that keeps the pages it gets back.
type Bare = DomainOf<Portcullis, &'static Poisoning, &'static FakeIommu<'static>>;

/// A domain with a mapping of a whole table.
fn mapped_table(hasty: bool) -> (&'static Poisoning, Arc<Bare>, Iova) {
    run_on(0);
    let host: &FakeHost = Box::leak(Box::default());
    let platform: &Poisoning = Box::leak(Box::new(Poisoning { host, hasty, freed: Mutex::default() }));
    let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
    let config = DomainConfig { address_bits: ADDRESS_BITS, ..DomainConfig::new(Protection::Strict) };
    let domain = Portcullis::open_with(iommu, platform, &config).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let mapped = domain.raw_map(PhysAddr::from_pfn(10), TABLE * PAGE_SIZE, Access::DeviceWrites).expect("room");
    (platform, Arc::new(domain), mapped)
}

/// Lets pass as much time as unused tables are kept, and ticks.
fn tick_bare_after_a_period(platform: &Poisoning, domain: &Bare) {
    platform.host.advance_us(TABLE_IDLE_US);
    domain.tick().expect("the hardware answers");
}

fn close_bare(platform: &Poisoning, domain: Arc<Bare>) {
    drop(Arc::into_inner(domain).expect("the other thread has ended"));
    platform.empty();
    assert_eq!(platform.host.frames_lent(), 0);
}

/// S7: a table is unmapped while the last sweep begins, and must still leave. Either the unmap sees that this sweep
/// is no longer due, and schedules another, or the sweep sees that the unmap relied on it.
#[test]
fn an_unmap_beside_the_last_sweep() {
    static THAT: AtomicUsize = AtomicUsize::new(0);
    static ANOTHER: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let (platform, domain, gone) = mapped_table(true);
        let pages = domain.usage().table_pages;
        // No table is spent. After this one more sweep is due, and then none until an unmap schedules one.
        tick_bare_after_a_period(platform, &domain);
        let other = domain.clone();
        let unmap = move || other.unmap_raw(gone, TABLE * PAGE_SIZE).expect("mapped");
        beside(unmap, || tick_bare_after_a_period(platform, &domain));
        let mut ticks = 0;
        while domain.due_us().is_some() {
            tick_bare_after_a_period(platform, &domain);
            ticks += 1;
            assert!(ticks < 10, "the ticks end");
        }
        assert_eq!(domain.usage().table_pages, pages - 1, "S7: the table is still there");
        // One tick takes the table out, and one gives it back.
        let seen = if ticks == 2 { &THAT } else { &ANOTHER };
        seen.fetch_add(1, Ordering::Relaxed);
        close_bare(platform, domain);
    });
    assert!(THAT.load(Ordering::Relaxed) > 0, "that sweep finds the table spent in some interleavings");
    assert!(ANOTHER.load(Ordering::Relaxed) > 0, "another is scheduled in some");
}

/// Runs a wrong unmap beside the ticks that give a table back. Returns in how many interleavings the unmap found a
/// mapping, and in how many the table went back.
fn walk_beside_reclaim(hasty: bool) -> (usize, usize) {
    let counts: &'static [AtomicUsize; 2] = Box::leak(Box::default());
    check_with(Some(3), move || {
        let (platform, domain, gone) = mapped_table(hasty);
        domain.unmap_raw(gone, TABLE * PAGE_SIZE).expect("mapped");
        let pages = domain.usage().table_pages;
        let other = domain.clone();
        let wrong = thread::spawn(move || {
            run_on(1);
            other.unmap_raw(gone, PAGE_SIZE).is_ok()
        });
        // The ticks find the table empty, take it out, and give it back.
        (0..3).for_each(|_| tick_bare_after_a_period(platform, &domain));
        counts[0].fetch_add(usize::from(wrong.join().unwrap()), Ordering::Relaxed);
        counts[1].fetch_add(platform.freed.lock().unwrap().len(), Ordering::Relaxed);
        assert_eq!(domain.usage().table_pages, pages - 1, "it has left");
        close_bare(platform, domain);
    });
    let [found, freed] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    (found, freed)
}

/// A table page goes back to the host when no CPU walks it.
#[test]
fn reclaim_of_a_table_beside_a_walk() {
    let (found, freed) = walk_beside_reclaim(false);
    assert_eq!(found, 0, "S4: a walk has found what lies in a freed page");
    assert!(freed > 0, "the table goes back in some interleavings");
}

/// Planted: a host that frees too early must be found.
#[test]
fn planted_a_table_that_is_freed_in_haste() {
    let (found, freed) = walk_beside_reclaim(true);
    assert!(found > 0 && freed > 0, "S4: the flaw was not found");
}
