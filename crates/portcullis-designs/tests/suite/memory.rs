//! Refuses each of the library's requests for memory in turn, for table pages and from the heap. Each request must be
//! announced, never with a lock held (the fake host checks that), and as one that may sleep only if the caller may
//! sleep.

use crate::heap::{bytes, elsewhere, end_watch, grants_page, library, refuse_above, refuse_all, said, watch};
use crate::raw_face::{RawFace, open};
use portcullis::chunk::{CHUNKED_PAGES_MAX, TABLE_IDLE_US};
use portcullis::forward_platform;
use portcullis::invalidation::BATCH_MAX;
use portcullis::iommu::fake::{FakeIommu, Ticket};
use portcullis::iommu::{AttachError, Translation};
use portcullis::iova::MAGAZINE_CAPACITY;
use portcullis::mapper::{Addressing, Design, Visitor};
use portcullis::platform::fake::{FakeHost, FakeLock};
use portcullis::platform::{Context, WordLines};
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainConfig, DomainId, Invalidation, Iommu, Iova, IovaRange, MapError, MapOptions,
    NewDomainError, NoMemory, PAGE_SIZE, PhysAddr, Platform, Protection, QueueError, RawMapError, Request, Segment,
    SourceId,
};
use portcullis_designs::{DesignId, Portcullis};

const DEVICE: SourceId = SourceId::from_requester(8);
const ACCESS: Access = Access::DeviceReadsAndWrites;
/// Lengths of the mappings, in pages: one has more pages than a leaf table, so that tables are added.
const PAGES: [u64; 4] = [1, 5, 600, 1];
const SMALL: u64 = 300;

/// The fake host, which passes the library's announcements to the heap, and keeps its own requests out of the count.
struct Watched<'h>(&'h FakeHost);

// SAFETY: forwards to the fake, which keeps the promises.
unsafe impl Platform for Watched<'_> {
    type Lock<T: Send> = FakeLock<T>;
    type CpuWords = WordLines;

    forward_platform!(self => self.0; locks, cpu, cpus, frame, copies, now_us, pause);
    forward_platform!(self => self.0, through elsewhere; free_frame, table_barrier, allocate_bytes, free_bytes);

    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory> {
        self.allocate_frames(context, 1)
    }

    fn allocate_frames(&self, context: Context, count: usize) -> Result<PhysAddr, NoMemory> {
        if !grants_page(context) {
            return Err(NoMemory);
        }
        said(context, || elsewhere(|| self.0.allocate_frames(context, count)))
    }

    fn allocate<R>(&self, context: Context, allocate: impl FnOnce() -> R) -> R {
        self.0.allocate(context, || said(context, allocate))
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }
}

/// The fake IOMMU, whose own requests are not counted.
struct Apart<'h> {
    fake: &'h FakeIommu<'h>,
}

// SAFETY: forwards to the fake, which reaches no memory.
unsafe impl Iommu for Apart<'_> {
    type Ticket = Ticket;

    fn capabilities(&self) -> Capabilities {
        self.fake.capabilities()
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller's promise, passed on.
        elsewhere(|| unsafe { self.fake.open_domain(translation) })
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: the caller's promise, passed on.
        elsewhere(|| unsafe { self.fake.close_domain(domain) })
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.fake.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.fake.detach(domain, device)
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        elsewhere(|| self.fake.submit(commands))
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        elsewhere(|| self.fake.is_done(ticket))
    }
}

/// A driver's calls, with one request for memory refused. A call that fails because of it is repeated.
struct Script<'h> {
    host: &'h Watched<'h>,
    iommu: &'h Apart<'h>,
    protection: Protection,
}

fn segment(page: u64, pages: u64) -> Segment {
    Segment { phys: PhysAddr::from_pfn(0x10_0000 + page), len: pages * PAGE_SIZE }
}

/// Calls the library, and calls it again if it had no memory.
fn again<T>(caller: Context, mut call: impl FnMut() -> Result<T, NoMemory>) -> T {
    library(caller, &mut call).or_else(|NoMemory| library(caller, call)).expect("there is memory again")
}

/// The result of a map. An error other than a lack of memory is a bug.
fn no_memory<T>(mapped: Result<T, RawMapError>) -> Result<T, NoMemory> {
    mapped.map_err(|error| match error {
        RawMapError::Refused(MapError::NoMemory(error)) => error,
        error => panic!("{error}"),
    })
}

impl<'h> Script<'h> {
    /// Asserts that the device reaches exactly the live mappings, page by page.
    fn check<D: Design<&'h Watched<'h>, &'h Apart<'h>>>(&self, live: &[(IovaRange, Segment)]) {
        if self.protection == Protection::None || !matches!(D::INFO.addressing, Addressing::Own | Addressing::Shared) {
            return;
        }
        for (range, segment) in live {
            for page in [0, range.pages() - 1] {
                let reached = self.iommu.fake.access(DEVICE, Iova::from_pfn(range.first_pfn() + page), Rights::WRITE);
                assert_eq!(reached, Some(PhysAddr::from_pfn(segment.phys.pfn() + page)), "{range} is mapped");
            }
        }
        if self.protection == Protection::Strict {
            let mut reached = self.iommu.fake.reachable(DEVICE, Rights::WRITE);
            // Runs of pages are in order already, which a stable sort uses.
            reached.sort();
            reached.dedup();
            let pages = |(range, segment): &(IovaRange, Segment)| {
                let (first, phys) = (range.first_pfn(), segment.phys.pfn());
                (0..range.pages()).map(move |page| (first + page, phys + page))
            };
            let mut expected: Vec<_> = live.iter().flat_map(pages).collect();
            expected.sort();
            expected.dedup();
            assert!(reached == expected, "the device reaches exactly the live mappings");
        }
    }
}

impl<'h> Visitor<&'h Watched<'h>, &'h Apart<'h>> for Script<'h> {
    type Output = ();

    fn visit<D: Design<&'h Watched<'h>, &'h Apart<'h>>>(self) {
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 40 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(self.protection) };
        let opened = library(Context::MaySleep, || open::<D, _, _>(self.iommu, self.host, &config));
        let domain = opened.unwrap_or_else(|error| {
            let no_memory = RawMapError::Refused(MapError::NoMemory(NoMemory));
            // A design that maps all memory as it opens reports the error of that map.
            assert!(
                error == NewDomainError::NoMemory(NoMemory) || error == NewDomainError::Identity(no_memory),
                "{error}"
            );
            assert_eq!((bytes(), self.host.0.frames_lent()), (0, 0), "its memory was returned");
            library(Context::MaySleep, || open::<D, _, _>(self.iommu, self.host, &config))
                .expect("there is memory again")
        });
        elsewhere(|| domain.attach(DEVICE)).expect("a free device");
        let mut live = elsewhere(Vec::new);
        let mut map = |map: &dyn Fn() -> Result<IovaRange, RawMapError>, segment: Segment| {
            let range = again(Context::Atomic, || no_memory(map()));
            elsewhere(|| {
                live.push((range, segment));
                self.check::<D>(&live);
            });
        };
        again(Context::MaySleep, || domain.reserve_tables(2));
        let mut page = 0;
        for pages in PAGES {
            let one = segment(page, pages);
            map(&|| domain.raw_map_or_lose(&Request::new(&[one], ACCESS).expect("a buffer")), one);
            page += pages;
        }
        for number in 0..SMALL {
            let one = segment(page + number, 1);
            let range = again(Context::Atomic, || {
                no_memory(domain.raw_map_or_lose(&Request::new(&[one], ACCESS).expect("a page")))
            });
            elsewhere(|| live.push((range, one)));
        }
        elsewhere(|| self.check::<D>(&live));
        page += SMALL;
        // Designs with physical addresses cannot map a list of separate pages.
        if !matches!(D::INFO.addressing, Addressing::Physical) {
            let list: Vec<Segment> = elsewhere(|| (0..40).map(|number| segment(page + 2 * number, 1)).collect());
            let mapped = again(Context::Atomic, || {
                // SAFETY: no memory is behind the IOMMU of a test.
                no_memory(unsafe { domain.map_list(list.iter().copied(), ACCESS, &MapOptions::default()) })
            });
            let pages = mapped.pages() / 40;
            library(Context::Atomic, || domain.unmap_raw(mapped.start(), 40 * pages * PAGE_SIZE)).expect("mapped");
        }
        let (batched, single) = live.split_at(live.len() / 2);
        library(Context::Atomic, || {
            let mut batch = domain.raw_batch();
            for some in batched.chunks(BATCH_MAX / 2) {
                some.iter().for_each(|(range, _)| batch.unmap(*range).expect("mapped"));
                batch.commit_so_far().expect("the hardware answers");
            }
            batch.commit().expect("the hardware answers");
            single.iter().for_each(|(range, segment)| domain.unmap_raw(range.start(), segment.len).expect("mapped"));
        });
        elsewhere(|| self.check::<D>(&[]));
        self.host.0.advance_us(1_000_000);
        library(Context::Atomic, || domain.tick()).expect("the hardware answers");
        library(Context::MaySleep, || drop(domain));
        assert_eq!(bytes(), 0, "no memory is left on the heap");
    }
}

/// A host whose own list of walks needs no more memory from the heap.
fn warm_host() -> FakeHost {
    let host = FakeHost::default();
    host.walk(|| ());
    host
}

/// Runs the script with request number `refused` refused. Returns the number of requests.
fn run(design: DesignId, protection: Protection, refused: usize) -> usize {
    let host = warm_host();
    let fake = FakeIommu::new(&host);
    let (watched, apart) = (Watched(&host), Apart { fake: &fake });
    watch(refused);
    design.visit(Script { host: &watched, iommu: &apart, protection });
    let (asked, wrong) = end_watch();
    assert_eq!(wrong, 0, "requests that were not announced properly");
    assert_eq!((host.frames_lent(), host.bytes_lent()), (0, 0));
    asked
}

/// Nothing is lost, half mapped or leaked, and each operation can be repeated.
#[test]
fn each_request_for_memory_may_be_refused() {
    for &design in DesignId::ALL {
        for protection in design.info().protections {
            let asked = run(design, *protection, 0);
            assert!(asked > 0, "the script makes no request");
            for refused in 1.. {
                // A refusal may cause further requests.
                if run(design, *protection, refused) < refused {
                    break;
                }
            }
        }
    }
}

/// Maps a page and then more than a leaf table covers, with or without tables reserved for both. By then, the host has
/// no table page left, or no memory at all.
struct Reserving<'h> {
    host: &'h Watched<'h>,
    iommu: &'h Apart<'h>,
    protection: Protection,
    reserves: bool,
    without_heap: bool,
}

impl<'h> Visitor<&'h Watched<'h>, &'h Apart<'h>> for Reserving<'h> {
    /// Whether both were mapped. `None` under a design whose maps add no table.
    type Output = Option<bool>;

    fn visit<D: Design<&'h Watched<'h>, &'h Apart<'h>>>(self) -> Option<bool> {
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 40 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(self.protection) };
        let domain = library(Context::MaySleep, || open::<D, _, _>(self.iommu, self.host, &config)).expect("a domain");
        // Without a heap, no node can be made for a request that is too long for a chunk.
        let buffers = [segment(0, 1), segment(1000, if self.without_heap { 500 } else { 600 })];
        let tables = buffers.iter().map(|buffer| domain.tables_max(buffer.pages())).sum();
        if tables == 0 {
            return None;
        }
        if self.reserves {
            library(Context::MaySleep, || domain.reserve_tables(tables)).expect("memory");
        }
        self.host.0.limit_frames(0);
        if self.without_heap {
            refuse_all();
        }
        let mapped = buffers.map(|buffer| {
            let request = Request::new(core::slice::from_ref(&buffer), ACCESS).expect("a buffer");
            library(Context::Atomic, || no_memory(domain.raw_map_or_lose(&request)))
        });
        let are_mapped = mapped.iter().all(Result::is_ok);
        for (mapped, buffer) in mapped.into_iter().zip(buffers) {
            let Ok(range) = mapped else { continue };
            library(Context::Atomic, || domain.unmap_raw(range.start(), buffer.len)).expect("mapped");
        }
        library(Context::MaySleep, || drop(domain));
        Some(are_mapped)
    }
}

fn maps_without_memory(design: DesignId, protection: Protection, reserves: bool, without_heap: bool) -> Option<bool> {
    let host = warm_host();
    let fake = FakeIommu::new(&host);
    let (watched, apart) = (Watched(&host), Apart { fake: &fake });
    watch(0);
    let are_mapped = design.visit(Reserving { host: &watched, iommu: &apart, protection, reserves, without_heap });
    assert_eq!(end_watch().1, 0, "requests that were not announced properly");
    assert_eq!(host.frames_lent(), 0, "the reserved pages were returned");
    are_mapped
}

#[test]
fn a_map_finds_its_tables_in_the_reserve() {
    let mut seen = 0;
    for &design in DesignId::ALL {
        for protection in design.info().protections {
            let maps = |reserves| maps_without_memory(design, *protection, reserves, false);
            if maps(false).is_some() {
                assert_eq!((maps(false), maps(true)), (Some(false), Some(true)), "{} {protection}", design.info().id);
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "no design adds tables");
}

/// In atomic context, this design needs nothing else from the host either.
#[test]
fn maps_of_portcullis_need_no_heap_for_reserved_tables() {
    for protection in [Protection::Strict, Protection::Deferred] {
        for (reserves, are_mapped) in [(false, false), (true, true)] {
            let maps = maps_without_memory(DesignId::Portcullis, protection, reserves, true);
            assert_eq!(maps, Some(are_mapped), "{protection}");
        }
    }
}

/// Maps many single pages on a host that has no more than two pages of memory at a time, and unmaps them.
struct Growing<'h> {
    host: &'h Watched<'h>,
    iommu: &'h Apart<'h>,
    protection: Protection,
    pages: u64,
}

impl<'h> Visitor<&'h Watched<'h>, &'h Apart<'h>> for Growing<'h> {
    /// The number of pages mapped, and the error that came then.
    type Output = (u64, Option<MapError>);

    fn visit<D: Design<&'h Watched<'h>, &'h Apart<'h>>>(self) -> Self::Output {
        let Self { host, iommu, protection, pages } = self;
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 40 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(protection) };
        let domain = library(Context::MaySleep, || open::<D, _, _>(iommu, host, &config)).expect("a domain");
        refuse_above(2 * PAGE_SIZE as usize);
        let mut mapped = Vec::new();
        let error = loop {
            if mapped.len() as u64 == pages {
                break None;
            }
            let request = segment(mapped.len() as u64, 1);
            let map = || domain.raw_map(request.phys, request.len, ACCESS);
            match library(Context::Atomic, map) {
                Ok(iova) => mapped.push(iova),
                Err(error) => break Some(error),
            }
        };
        for iova in &mapped {
            library(Context::Atomic, || domain.unmap_raw(*iova, PAGE_SIZE)).expect("mapped");
        }
        library(Context::MaySleep, || drop(domain));
        (mapped.len() as u64, error)
    }
}

/// The magazines of the lower half are made when it is first used, and are counted as records.
#[test]
fn magazines_are_made_at_first_use_and_counted() {
    let host = warm_host();
    let fake = FakeIommu::new(&host);
    let (watched, apart) = (Watched(&host), Apart { fake: &fake });
    watch(0);
    let config = DomainConfig::new(Protection::Strict);
    let domain = library(Context::MaySleep, || open::<Portcullis, _, _>(&apart, &watched, &config)).expect("a domain");
    let now = || (bytes() as usize, domain.usage().record_bytes);
    let (heap, records) = now();
    let options = MapOptions { lifetime: portcullis::Lifetime::Persistent, ..MapOptions::default() };
    let map = || domain.raw_map_with(PhysAddr::new(0), PAGE_SIZE, ACCESS, &options);
    let iova = library(Context::Atomic, map).expect("room");
    let (more_heap, more_records) = now();
    let magazine = MAGAZINE_CAPACITY * size_of::<u64>();
    assert!(more_records >= records + 3 * magazine, "a pair and an empty one");
    // Besides there is the node of the address.
    assert!((more_heap - heap).abs_diff(more_records - records) < magazine / 2);
    library(Context::Atomic, || domain.unmap_raw(iova, PAGE_SIZE)).expect("mapped");
    assert_eq!(library(Context::Atomic, map).expect("room"), iova, "it was kept");
    library(Context::Atomic, || domain.unmap_raw(iova, PAGE_SIZE)).expect("mapped");
    library(Context::MaySleep, || drop(domain));
    assert_eq!(end_watch().1, 0, "requests that were not announced properly");
}

/// Designs that still have a list in one piece, and the one whose ring is full before that.
const IN_ONE_PIECE: [&str; 3] = ["freebsd", "solaris", "riommu"];

/// The lists of a domain grow in pieces of at most two pages, or it does without the longer ones (M4 of a review).
#[test]
fn no_list_grows_beyond_two_pages_in_one_piece() {
    for &design in DesignId::ALL {
        let info = design.info();
        if IN_ONE_PIECE.contains(&info.id) {
            continue;
        }
        let pages = if info.id == "portcullis" { 1 << 20 } else { 1 << 14 };
        let host = warm_host();
        let fake = FakeIommu::new(&host);
        let (watched, apart) = (Watched(&host), Apart { fake: &fake });
        watch(0);
        let protection = info.protections[0];
        let grown = design.visit(Growing { host: &watched, iommu: &apart, protection, pages });
        assert_eq!(end_watch().1, 0, "requests that were not announced properly");
        assert_eq!(grown, (pages, None), "{}", info.id);
    }
}

/// Tables are given back by [`tick`](Domain::tick), which needs memory for a list of them. Without it, they stay until
/// a later tick.
#[test]
fn tables_leave_once_there_is_memory_for_their_list() {
    let host = warm_host();
    let fake = FakeIommu::new(&host);
    let (watched, apart) = (Watched(&host), Apart { fake: &fake });
    let config = DomainConfig::new(Protection::Strict);
    watch(0);
    let domain = library(Context::MaySleep, || open::<Portcullis, _, _>(&apart, &watched, &config)).expect("a domain");
    let buffers: Vec<Segment> = elsewhere(|| (0..40).map(|at| segment(at * 512, CHUNKED_PAGES_MAX)).collect());
    let mut mapped = elsewhere(|| Vec::with_capacity(buffers.len()));
    library(Context::Atomic, || {
        for buffer in &buffers {
            let request = Request::new(core::slice::from_ref(buffer), ACCESS).expect("a buffer");
            mapped.push(domain.raw_map_or_lose(&request).expect("memory"));
        }
        mapped.iter().zip(&buffers).for_each(|(range, buffer)| {
            domain.unmap_raw(range.start(), buffer.len).expect("mapped");
        });
    });
    let tick = || {
        host.advance_us(TABLE_IDLE_US);
        library(Context::Atomic, || domain.tick()).expect("the hardware answers");
    };
    // At the second tick the tables are known to be unused, and at the third they would be given back.
    let all = host.frames_lent();
    tick();
    assert_eq!(end_watch().1, 0);
    watch(0);
    refuse_all();
    (0..4).for_each(|_| tick());
    assert_eq!(host.frames_lent(), all, "the tables stay");
    let (refused, wrong) = end_watch();
    assert!(refused > 0, "no memory was requested for the list");
    assert_eq!(wrong, 0, "and the requests were announced");
    watch(0);
    (0..4).for_each(|_| tick());
    assert!(host.frames_lent() < all, "the tables are given back");
    assert_eq!(end_watch().1, 0);
}
