//! A small ring that two CPUs serve: which CPU takes which entry, when an entry is free again, and what the device
//! sees meanwhile.

use super::{DEVICE, check_with};
use crate::forwarding::forward_domains;
use crate::raw_face::RawFace;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use portcullis::iommu::QueueError;
use portcullis::iommu::fake::FakeIommu;
use portcullis::mapper::{DesignInfo, Options};
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::table::Rights;
use portcullis::{
    Access, DomainConfig, DomainOf, Invalidation, Iommu, IovaRange, MapError, Open, PAGE_SIZE, PhysAddr, Protection,
    RawUnmapError, Request, Segment, Stream, UnmapError,
};
use portcullis_designs::RIommu;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZE: u32 = 2;

/// A fake that also records that an invalidation was made. The record orders nothing, because the library must order
/// the CPUs.
struct Hardware {
    fake: FakeIommu<'static>,
    has_invalidated: AtomicBool,
}

// SAFETY: no hardware behind it reaches memory.
unsafe impl Iommu for Hardware {
    type Ticket = <FakeIommu<'static> as Iommu>::Ticket;

    forward_domains!(fake);

    fn submit(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        self.fake.submit(commands)
    }

    fn is_done(&self, ticket: Self::Ticket) -> Result<bool, QueueError> {
        let is_done = self.fake.is_done(ticket)?;
        if is_done {
            self.has_invalidated.store(true, Ordering::Relaxed);
        }
        Ok(is_done)
    }
}

/// A domain whose rings have a few entries, on fakes that are leaked.
#[derive(Clone)]
struct Ringed {
    host: &'static FakeHost,
    hardware: &'static Hardware,
    domain: Arc<DomainOf<RIommu, &'static FakeHost, &'static Hardware>>,
    size: u32,
}

impl Ringed {
    fn new() -> Self {
        Self::with_entries(SIZE)
    }

    fn with_entries(size: u32) -> Self {
        run_on(0);
        let host: &FakeHost = Box::leak(Box::default());
        let fake = FakeIommu::new(host);
        let hardware: &Hardware = Box::leak(Box::new(Hardware { fake, has_invalidated: AtomicBool::new(false) }));
        let options = Options::parse(RIommu::INFO.options, &format!("ring={size}")).expect("a valid size");
        let config = DomainConfig { options, ..DomainConfig::new(Protection::Strict) };
        let domain = RIommu::open_with(hardware, host, &config).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        Self { host, hardware, domain: Arc::new(domain), size }
    }

    /// Maps the physical pages `pfns`, each with one entry, for queue `number`, from any CPU.
    fn map_list_on(&self, number: u32, pfns: &[u64]) -> Result<IovaRange, MapError> {
        let segment = |pfn: &u64| Segment { phys: PhysAddr::from_pfn(*pfn), len: PAGE_SIZE };
        let segments: Vec<Segment> = pfns.iter().map(segment).collect();
        let mut request = Request::new(&segments, Access::DeviceWrites).expect("pages");
        request.stream = Stream(Some(number));
        self.domain.raw_map_request(&request)
    }

    fn map_list(&self, pfns: &[u64]) -> Result<IovaRange, MapError> {
        self.map_list_on(0, pfns)
    }

    fn map_on(&self, number: u32, pfn: u64) -> Result<IovaRange, MapError> {
        self.map_list_on(number, &[pfn])
    }

    fn map(&self, pfn: u64) -> Result<IovaRange, MapError> {
        self.map_on(0, pfn)
    }

    fn single(&self, range: IovaRange) -> Result<(), RawUnmapError> {
        self.domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE)
    }

    fn batched(&self, range: IovaRange) -> Result<(), RawUnmapError> {
        let mut batch = self.domain.raw_batch();
        batch.unmap(range).map_err(RawUnmapError::Refused)?;
        batch.commit().expect("the hardware answers");
        Ok(())
    }

    /// The physical page that the device reaches.
    fn reach(&self, range: IovaRange) -> Option<u64> {
        self.hardware.fake.access(DEVICE, range.start(), Rights::WRITE).map(PhysAddr::pfn)
    }

    /// Whether a map was refused for lack of entries.
    fn is_full(&self, mapped: &Result<IovaRange, MapError>) -> bool {
        matches!(mapped, Err(MapError::RingFull { entries, .. }) if *entries == self.size)
    }

    /// Checks that no two live mappings have the same range, and that each leads to its own page.
    fn check(&self, live: &[(IovaRange, u64)]) {
        for (at, (range, pfn)) in live.iter().enumerate() {
            assert!(live[..at].iter().all(|(other, _)| other != range), "S3: {live:?}");
            assert_eq!(self.reach(*range), Some(*pfn), "{live:?}");
        }
        assert_eq!(self.domain.usage().live_ranges, live.len());
    }

    /// Unmaps the live mappings. Checks that nothing is lost: all entries can be mapped again, and no more.
    fn close(self, live: impl IntoIterator<Item = IovaRange>) {
        live.into_iter().for_each(|range| self.single(range).expect("mapped"));
        assert_eq!(self.domain.usage().live_ranges, 0);
        let map = |at| (self.map(50 + u64::from(at)).expect("an entry was lost"), 50 + u64::from(at));
        let all: Vec<(IovaRange, u64)> = (0..self.size).map(map).collect();
        self.check(&all);
        assert!(self.is_full(&self.map(60)));
        let Self { host, domain, .. } = self;
        drop(Arc::into_inner(domain).expect("the other thread has ended"));
        assert_eq!(host.frames_lent(), 0);
    }
}

/// Runs `second` on the second CPU, beside `first` on the first.
fn beside<T, U: 'static>(first: impl FnOnce() -> T, second: impl FnOnce() -> U + 'static) -> (T, U) {
    let second = thread::spawn(move || {
        run_on(1);
        second()
    });
    let first = first();
    (first, second.join().unwrap())
}

/// Each CPU gets its own entry.
#[test]
fn two_cpus_take_from_one_ring() {
    check_with(Some(3), || {
        let bench = Ringed::new();
        // The ring exists, and its tail is in the middle.
        let before = bench.map(10).expect("room");
        bench.single(before).expect("mapped");
        let other = bench.clone();
        let (first, second) = beside(|| bench.map(20), move || other.map(30));
        let both = [(first.expect("room"), 20), (second.expect("room"), 30)];
        bench.check(&both);
        bench.close(both.map(|(range, _)| range));
    });
}

/// The queue has no ring yet, and one CPU makes it. If the other has made one too, it is spare, and the next stream
/// gets it.
#[test]
fn two_cpus_begin_a_stream() {
    static SPARE: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(2), || {
        let bench = Ringed::new();
        let other = bench.clone();
        let (first, second) = beside(|| bench.map(20), move || other.map(30));
        let both = [(first.expect("room"), 20), (second.expect("room"), 30)];
        bench.check(&both);
        assert_eq!(both[0].0.start().as_u64() >> 48, both[1].0.start().as_u64() >> 48, "one ring");
        // The table of rings, and the tables of one or two rings.
        let pages = bench.domain.usage().table_pages;
        SPARE.fetch_add(pages - 2, Ordering::Relaxed);
        let another = bench.map_on(1, 40).expect("room");
        assert_eq!(bench.domain.usage().table_pages, 3, "the spare ring is used");
        bench.close(both.map(|(range, _)| range).into_iter().chain([another]));
    });
    assert!(SPARE.load(Ordering::Relaxed) > 0, "both make a ring in some interleavings");
}

/// The ring is full, and the device has cached all of it. One CPU unmaps the oldest entry while the other maps. The
/// map is refused, or it gets the entry after the device has lost it, and sees that it has (S3).
#[test]
fn an_entry_is_handed_out_after_its_invalidation() {
    type Unmap = fn(&Ringed, IovaRange) -> Result<(), RawUnmapError>;
    for unmap in [Ringed::single as Unmap, Ringed::batched] {
        let counts: &'static [AtomicUsize; 2] = Box::leak(Box::default());
        check_with(Some(3), move || {
            let bench = Ringed::new();
            let (gone, neighbour) = (bench.map(10).expect("room"), bench.map(11).expect("room"));
            assert_eq!((bench.reach(gone), bench.reach(neighbour)), (Some(10), Some(11)));
            let other = bench.clone();
            let (unmapped, mapped) = beside(
                || unmap(&bench, gone),
                move || {
                    let mapped = other.map(20);
                    if mapped.is_ok() {
                        // This comes before anything else of the fakes orders the two.
                        assert!(other.hardware.has_invalidated.load(Ordering::Relaxed), "S3: handed out while cached");
                    }
                    mapped
                },
            );
            unmapped.expect("mapped");
            let mut live = vec![(neighbour, 11)];
            match mapped {
                Ok(new) => {
                    assert_eq!(new, gone, "the only entry that was free");
                    live.push((new, 20));
                }
                Err(error) => {
                    assert!(matches!(error, MapError::RingFull { entries: SIZE, .. }), "{error}");
                    assert_eq!(bench.reach(gone), None, "S2");
                }
            }
            counts[usize::from(mapped.is_ok())].fetch_add(1, Ordering::Relaxed);
            bench.check(&live);
            bench.close(live.into_iter().map(|(range, _)| range));
        });
        let [refused, reused] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert!(refused > 0 && reused > 0, "either comes first in some interleavings: {refused}, {reused}");
    }
}

/// A CPU has moved the tail past an entry, and is stopped before it has marked the entry as its own. Meanwhile the
/// other CPU goes round the ring, and takes that entry.
#[test]
fn the_tail_comes_round_to_an_entry_that_is_not_marked_yet() {
    static ROUND: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(2), || {
        let bench = Ringed::new();
        let before = [10, 11].map(|pfn| bench.map(pfn).expect("room"));
        before.into_iter().for_each(|range| bench.single(range).expect("mapped"));
        let other = bench.clone();
        let (first, (passing, second)) = beside(
            || bench.map(20),
            move || {
                let passing = other.map(30).expect("room");
                other.single(passing).expect("mapped");
                (passing, other.map(31))
            },
        );
        let mut live = vec![(first.expect("room"), 20)];
        match second {
            Ok(range) => live.push((range, 31)),
            // The tail is at the entry of the first CPU.
            Err(MapError::RingFull { entries: SIZE, .. }) => {}
            Err(error) => panic!("{error}"),
        }
        ROUND.fetch_add(usize::from(passing == before[1] && second == Ok(before[0])), Ordering::Relaxed);
        bench.check(&live);
        bench.close(live.into_iter().map(|(range, _)| range));
    });
    assert!(ROUND.load(Ordering::Relaxed) > 0, "the tail comes round in some interleavings");
}

/// A buffer goes back to one caller only, and its entry comes back once.
#[test]
fn of_two_unmaps_of_an_entry_one_succeeds() {
    check_with(Some(3), || {
        let bench = Ringed::new();
        let range = bench.map(10).expect("room");
        assert_eq!(bench.reach(range), Some(10));
        let other = bench.clone();
        let (first, second) = beside(|| bench.single(range), move || other.batched(range));
        let refused = Err(RawUnmapError::Refused(UnmapError::NotMapped(range.start())));
        let results = [first, second];
        assert!(results == [Ok(()), refused] || results == [refused, Ok(())], "{results:?}");
        assert_eq!(bench.reach(range), None, "S2");
        bench.close([]);
    });
}

/// The device uses an address while a CPU maps there in place of an earlier mapping, or after the device has
/// prefetched the entry. The device gets nothing, or the whole new entry.
#[test]
fn a_walk_beside_a_map_sees_an_entry_whole() {
    for is_fetched_ahead in [false, true] {
        let counts: &'static [AtomicUsize; 2] = Box::leak(Box::default());
        check_with(Some(3), move || {
            let bench = Ringed::new();
            let (gone, neighbour) = (bench.map(10).expect("room"), bench.map(11).expect("room"));
            bench.single(gone).expect("mapped");
            let device = bench.clone();
            let (mapped, reached) = beside(
                || bench.map(20),
                move || {
                    if is_fetched_ahead {
                        assert_eq!(device.reach(neighbour), Some(11));
                    }
                    device.reach(gone)
                },
            );
            assert_eq!(mapped, Ok(gone), "the only entry that was free");
            // The earlier mapping is unmapped, and its unmap is committed.
            assert!(reached.is_none_or(|pfn| pfn == 20), "S2: {reached:?}");
            assert_eq!(bench.hardware.fake.access(DEVICE, gone.start(), Rights::READ), None, "S5");
            counts[usize::from(reached.is_some())].fetch_add(1, Ordering::Relaxed);
            bench.check(&[(neighbour, 11), (gone, 20)]);
            bench.close([neighbour, gone]);
        });
        let [early, late] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert!(early > 0 && late > 0, "either comes first in some interleavings: {early}, {late}");
    }
}

/// A CPU has moved the tail past two entries, and is stopped before it has marked them. The other goes round the
/// ring, takes both and frees them, one after the other. The first can then be marked, and the second not yet.
#[test]
fn a_list_that_is_marked_in_part_gives_its_entries_back() {
    static ROUND: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(2), || {
        let bench = Ringed::with_entries(3);
        let before = bench.map(10).expect("room");
        bench.single(before).expect("mapped");
        let other = bench.clone();
        let (first, (single, second)) = beside(
            || bench.map_list(&[20, 22]),
            move || {
                let single = other.map(30).expect("room");
                let list = other.map_list(&[31, 33]);
                if let Ok(list) = list {
                    other.batched(list).expect("mapped");
                }
                (single, list)
            },
        );
        let mut live = vec![(single, 30)];
        match first {
            Ok(list) => live.push((list, 20)),
            refused => assert!(bench.is_full(&refused), "{refused:?}"),
        }
        // Only a tail that the first CPU has moved leads the other there.
        ROUND.fetch_add(usize::from(single == before && second.is_ok()), Ordering::Relaxed);
        assert!(second.is_ok() || bench.is_full(&second), "{second:?}");
        bench.check(&live);
        bench.close(live.into_iter().map(|(range, _)| range));
    });
    assert!(ROUND.load(Ordering::Relaxed) > 0, "the tail comes round in some interleavings");
}
