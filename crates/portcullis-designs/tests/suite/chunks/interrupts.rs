//! A map, an unmap or a tick in an interrupt, at every moment of a driver's calls.

use super::TABLE;
use super::ledger::{DEVICE, Ledger, Live, NARROW_BITS, NARROW_TABLES, Want, count_tables, move_on, settle};
use crate::interrupted::{Interrupted, Moment};
use portcullis::chunk::TABLE_IDLE_US;
use portcullis::chunk::{CHUNK_PAGES, TABLE_RESERVE};
use portcullis::designs::Portcullis;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::platform::fake::FakeHost;
use portcullis::{Access, DomainConfig, DomainOf, Open, Protection};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

type Small = DomainOf<Portcullis, &'static Interrupted<'static>, &'static FakeIommu<'static>>;

/// What the handler of an interrupt does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum What {
    /// Takes a page of the stream that was interrupted.
    MapPage,
    /// Takes all of its chunk, and some pages of the next.
    MapChunk,
    /// Takes a table, and gives up the rest of the last one.
    MapTable,
    Unmap,
    /// Advances the clock by more than the time for which tables are kept.
    Tick,
}

/// The state of the domain when the driver begins.
#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    /// The next chunk needs another table.
    Full,
    /// There are more spent tables than the reserve: the first tick finds them, the next unlinks them, and the third
    /// frees them.
    Spent,
}

/// A domain, and the moment that has an interrupt. Values that refer to each other are leaked, except those that the
/// domain holds.
struct Bench {
    host: &'static FakeHost,
    ledger: Ledger<'static>,
    domain: Mutex<Option<Arc<Small>>>,
    what: What,
    at: usize,
    /// Number of moments seen so far, while it is armed.
    seen: AtomicUsize,
    armed: AtomicBool,
    /// Mappings for interrupts to unmap.
    others: Mutex<Vec<Live>>,
}

impl Bench {
    fn new(protection: Protection, state: State, what: What, at: usize) -> &'static Self {
        let host: &FakeHost = Box::leak(Box::default());
        let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
        // Each commit has to wait.
        iommu.behave(Behaviour::Slow);
        let bench: &Self = Box::leak(Box::new(Self {
            host,
            ledger: Ledger::new(host, iommu),
            domain: Mutex::default(),
            what,
            at,
            seen: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            others: Mutex::default(),
        }));
        let handler = Box::leak(Box::new(|_: Moment| bench.moment()));
        let platform: &Interrupted<'_> = Box::leak(Box::new(Interrupted::new(host, handler)));
        let config = DomainConfig { address_bits: NARROW_BITS, ..DomainConfig::new(protection) };
        let domain = Portcullis::open_with(iommu, platform, &config).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        bench.prepare(&domain, state);
        *bench.domain.lock().expect("not poisoned") = Some(Arc::new(domain));
        bench
    }

    fn prepare(&self, domain: &Small, state: State) {
        let map = |want| self.ledger.map(domain, want).expect("room");
        if state == State::Spent {
            let spent: Vec<Live> = (0..TABLE_RESERVE + 3).map(|_| map(Want::writes(TABLE))).collect();
            spent.into_iter().for_each(|gone| self.ledger.unmap(domain, gone));
            self.host.advance_us(TABLE_IDLE_US);
            domain.tick().expect("the hardware answers");
        }
        // Two pages are left of the last chunk of a table. On the way there, eight pages are one mapping, still a
        // small one, because this is done for every moment.
        let mut rest = map(Want::writes(1));
        while rest.range.first_pfn() % 512 != 512 - 3 {
            let at = rest.range.end_pfn() % 512;
            let are_others = self.others.lock().expect("not poisoned").len() == 3;
            let is_long = are_others && at.is_multiple_of(8) && at < 512 - 16;
            let next = map(Want::writes(if is_long { 8 } else { 1 }));
            let mut others = self.others.lock().expect("not poisoned");
            if others.len() < 3 {
                others.push(rest);
            } else {
                drop(others);
                self.ledger.unmap(domain, rest);
            }
            rest = next;
        }
    }

    fn domain(&self) -> Arc<Small> {
        self.domain.lock().expect("not poisoned").clone().expect("the domain is still there")
    }

    fn map(&self, want: Want) -> Live {
        self.ledger.map(&self.domain(), want).expect("room")
    }

    fn tick_after(&self, us: u64) {
        self.host.advance_us(us);
        self.domain().tick().expect("the hardware answers");
    }

    fn moment(&self) {
        if !self.armed.load(Ordering::Relaxed) || self.seen.fetch_add(1, Ordering::Relaxed) != self.at {
            return;
        }
        let map = |pages| {
            self.map(Want::writes(pages));
        };
        match self.what {
            What::MapPage => map(1),
            What::MapChunk => (0..CHUNK_PAGES + 2).for_each(|_| map(1)),
            What::MapTable => map(TABLE),
            What::Unmap => {
                let other = self.others.lock().expect("not poisoned").pop();
                self.ledger.unmap(&self.domain(), other.expect("there are some"));
            }
            What::Tick => (0..3).for_each(|_| self.tick_after(TABLE_IDLE_US)),
        }
        // The device may still reach parts of a mapping that is being unmapped.
        self.ledger.check_live();
    }

    /// The driver's calls: small requests across the end of a chunk, with two and with three pages left; larger ones;
    /// one of a ring; unmaps of each kind; and ticks.
    fn drive(&self) {
        let unmap = |gone| self.ledger.unmap(&self.domain(), gone);
        let [first, second, third] = [1, 1, 1].map(|pages| self.map(Want::writes(pages)));
        unmap(first);
        let run = self.map(Want::writes(3));
        let half = self.map(Want::writes(CHUNK_PAGES / 2));
        // This takes more pages than are left.
        let beyond = self.map(Want::writes(CHUNK_PAGES / 2));
        let large = self.map(Want::writes(200));
        let of_ring = self.map(Want { pages: 3, access: Access::DeviceReads, ring: Some(5) });
        [second, run, large].into_iter().for_each(unmap);
        self.tick_after(TABLE_IDLE_US);
        let another = self.map(Want::writes(400));
        [of_ring, beyond].into_iter().for_each(unmap);
        self.tick_after(TABLE_IDLE_US);
        [another, half, third].into_iter().for_each(unmap);
        self.tick_after(TABLE_IDLE_US);
    }
}

/// Drives a domain with an interrupt at moment number `at`. Returns whether there is such a moment.
fn interrupted_at(protection: Protection, state: State, what: What, at: usize) -> bool {
    let bench = Bench::new(protection, state, what, at);
    bench.armed.store(true, Ordering::Relaxed);
    bench.drive();
    bench.armed.store(false, Ordering::Relaxed);
    let domain = bench.domain.lock().expect("not poisoned").take().expect("the domain is still there");
    settle(&domain, &bench.ledger);
    move_on(&domain, &bench.ledger);
    assert_eq!(count_tables(&domain, &bench.ledger), NARROW_TABLES, "{protection}, {state:?}, {what:?} at {at}");
    drop(Arc::into_inner(domain).expect("no other reference is left"));
    assert_eq!(bench.host.frames_lent(), 0);
    bench.seen.load(Ordering::Relaxed) > at
}

fn interrupted_everywhere(what: What) {
    let cases =
        [(Protection::Strict, State::Full), (Protection::Strict, State::Spent), (Protection::Deferred, State::Full)];
    for (protection, state) in cases {
        let moments = (0..).take_while(|at| interrupted_at(protection, state, what, *at)).count();
        assert!(moments > 200, "{moments} moments: {protection}, {state:?}, {what:?}");
    }
}

#[test]
fn a_map_of_a_page_at_every_moment() {
    interrupted_everywhere(What::MapPage);
}

#[test]
fn maps_of_a_whole_chunk_at_every_moment() {
    interrupted_everywhere(What::MapChunk);
}

#[test]
fn a_map_of_a_whole_table_at_every_moment() {
    interrupted_everywhere(What::MapTable);
}

#[test]
fn an_unmap_at_every_moment() {
    interrupted_everywhere(What::Unmap);
}

#[test]
fn ticks_at_every_moment() {
    interrupted_everywhere(What::Tick);
}
