//! Compares windows with a plain reference: random requests of many streams, freed in any order, on any CPU, in spaces
//! with and without room.

use super::{Bench, on};
use crate::raw_face::RawFace;
use portcullis::platform::fake::{CPUS, run_on};
use portcullis::{Access, IovaRange, MapError, PhysAddr, Protection, Request, Segment, Stream};
use portcullis_designs::FastAndSafe;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError};
use std::collections::BTreeMap;

const ACCESSES: [Access; 3] = [Access::DeviceReads, Access::DeviceWrites, Access::DeviceReadsAndWrites];
/// Rings that have windows of their own.
const RINGS: u32 = 128;
/// Page numbers that are never handed out: page 0 and the interrupt range.
const RESERVED: [(u64, u64); 2] = [(0, 1), (0xf_ee00, 0xf_ef00)];

#[derive(Clone, Debug)]
enum Operation {
    Map {
        cpu: u32,
        access: usize,
        ring: Option<u32>,
        pages: u64,
    },
    /// Several unmaps under one commit, on this CPU.
    Unmap {
        cpu: u32,
        which: Vec<usize>,
    },
}

/// The users of a window: a ring, or a CPU and an access.
type Key = (Option<u32>, u32, usize);

/// The ranges in use, and the position of each stream.
struct Reference {
    window: u64,
    /// One past the last page.
    limit: u64,
    address_bits: u8,
    /// Pages by first page.
    live: BTreeMap<u64, u64>,
    /// The next page of each stream's window, if one is left.
    next: BTreeMap<Key, u64>,
}

impl Reference {
    /// Pages that a range of `pages` pages takes from others: the tree rounds up.
    fn block(&self, pages: u64) -> u64 {
        if pages > self.window { pages.next_power_of_two() } else { pages }
    }

    /// Whether `[first, end)` contains a page that is reserved or in use.
    fn is_taken(&self, first: u64, end: u64) -> bool {
        let before = self.live.range(..end).next_back();
        let before = before.is_some_and(|(start, pages)| start + self.block(*pages) > first);
        before || end > self.limit || RESERVED.iter().any(|(start, stop)| *start < end && first < *stop)
    }

    /// The first page of the window that page `pfn` is in.
    fn start(&self, pfn: u64) -> u64 {
        pfn / self.window * self.window
    }

    /// Pages left in the window whose next page is `next`.
    fn left(&self, next: u64) -> u64 {
        self.start(next) + self.window - next
    }

    /// Whether a stream has this many pages left in its window.
    fn fits_somewhere(&self, pages: u64) -> bool {
        self.next.values().any(|next| self.left(*next) >= pages)
    }

    /// Whether an aligned run of `size` pages is free. With `at_hand`, runs that are the window of a stream count as
    /// free.
    fn has_free(&self, size: u64, at_hand: bool) -> bool {
        let stands = |first: u64| self.next.values().any(|next| (first..first + size).contains(next));
        // Wide spaces are never full here.
        (0..self.limit / size)
            .rev()
            .take(1 << 14)
            .map(|number| number * size)
            .any(|first| !self.is_taken(first, first + size) && (at_hand || !stands(first)))
    }

    /// Streams give up the windows of which no page is in use.
    fn give_up_idle(&mut self) {
        let starts: Vec<u64> = self.next.values().map(|next| self.start(*next)).collect();
        let idle: Vec<u64> = starts.into_iter().filter(|start| !self.is_taken(*start, start + self.window)).collect();
        let window = self.window;
        self.next.retain(|_, next| !idle.contains(&(*next / window * window)));
    }

    /// Records and checks the result of a request for `pages` pages.
    fn mapped(&mut self, key: Key, pages: u64, result: Result<IovaRange, MapError>) -> Result<(), TestCaseError> {
        let range = match result {
            Ok(range) => range,
            Err(error) => {
                prop_assert_eq!(error, MapError::Exhausted { pages, limit_bits: self.address_bits });
                let size = pages.next_power_of_two().max(self.window);
                prop_assert!(!self.has_free(size, true), "{} pages were refused with room", pages);
                prop_assert!(pages > self.window || !self.fits_somewhere(pages), "a window has {pages} pages left");
                if pages <= self.window || size <= self.limit {
                    self.give_up_idle();
                }
                return Ok(());
            }
        };
        let (first, end) = (range.first_pfn(), range.end_pfn());
        prop_assert!(range.pages() == pages && !self.is_taken(first, end), "{} for {} pages", range, pages);
        if pages > self.window {
            let block = IovaRange::new(first, self.block(pages)).expect("larger than a window");
            prop_assert!(first.is_multiple_of(block.pages()));
            let at_hand = |this: &Self| this.next.values().any(|next| block.contains(this.start(*next)));
            if at_hand(self) {
                prop_assert!(
                    !self.has_free(block.pages(), false),
                    "the window of a stream was taken, but there was room"
                );
                self.give_up_idle();
            }
            prop_assert!(!at_hand(self));
        } else {
            prop_assert_eq!(self.start(first), self.start(end - 1), "{} lies in two windows", range);
            self.mapped_in_window(key, range)?;
        }
        self.live.insert(first, pages);
        Ok(())
    }

    fn mapped_in_window(&mut self, key: Key, range: IovaRange) -> Result<(), TestCaseError> {
        let (first, pages) = (range.first_pfn(), range.pages());
        let left = self.next.get(&key).map_or(0, |next| self.left(*next));
        if left >= pages {
            prop_assert_eq!(Some(&first), self.next.get(&key), "a stream continues in its window");
            self.advance(key, range.end_pfn());
            return Ok(());
        }
        let start = self.start(first);
        let whole = first == start && !self.is_taken(start, start + self.window);
        let other = self.next.iter().find(|(_, next)| self.start(**next) == start).map(|(key, next)| (*key, *next));
        if self.has_free(self.window, false) {
            prop_assert!(whole && other.is_none(), "{} is no new window, but one is free", range);
        } else if let Some((other, _)) = other.filter(|(_, next)| self.left(*next) >= pages && *next == first) {
            self.advance(other, range.end_pfn());
            return Ok(());
        } else {
            prop_assert!(!self.fits_somewhere(pages), "{} is not in a window with pages left", range);
            let any_idle = self.has_free(self.window, true);
            self.give_up_idle();
            prop_assert_eq!(whole, any_idle, "{}: an idle window is a new one", range);
            if !any_idle {
                // No window can be had at all.
                return Ok(());
            }
        }
        // Of the two windows, the stream keeps the one with more pages left.
        if self.window - pages > self.next.get(&key).map_or(0, |next| self.left(*next)) {
            self.advance(key, range.end_pfn());
        }
        Ok(())
    }

    /// The stream continues at `next`, if that is still in the same window.
    fn advance(&mut self, key: Key, next: u64) {
        if next.is_multiple_of(self.window) {
            self.next.remove(&key);
        } else {
            self.next.insert(key, next);
        }
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    let cpu = 0..CPUS;
    let ring = prop_oneof![2 => Just(None), 1 => (0..3u32).prop_map(Some), 1 => (RINGS..RINGS + 3).prop_map(Some)];
    let pages = prop_oneof![8 => Just(1u64), 4 => 2..9u64, 3 => 9..65u64, 1 => Just(64), 1 => 65..300u64];
    let map = (cpu.clone(), 0..3usize, ring, pages).prop_map(|(cpu, access, ring, pages)| Operation::Map {
        cpu,
        access,
        ring,
        pages,
    });
    let unmap = (cpu, vec(any::<usize>(), 1..20)).prop_map(|(cpu, which)| Operation::Unmap { cpu, which });
    prop_oneof![3 => map, 1 => unmap]
}

fn run(bench: &Bench<'_, FastAndSafe>, mut reference: Reference, script: &[Operation]) -> Result<(), TestCaseError> {
    let usage = || bench.domain.usage();
    let kept_max = usage().kept_ranges_max.expect("a bound");
    for operation in script {
        match *operation {
            Operation::Map { cpu, access, ring, pages } => {
                run_on(cpu);
                let segments = [Segment { phys: PhysAddr::new(0), len: pages << 12 }];
                let mut request = Request::new(&segments, ACCESSES[access]).expect("a buffer");
                request.stream = Stream(ring);
                let key = ring.map_or((None, cpu, access), |ring| (Some(ring % RINGS), 0, 0));
                reference.mapped(key, pages, bench.domain.raw_map_request(&request))?;
            }
            Operation::Unmap { cpu, ref which } => {
                run_on(cpu);
                let mut batch = bench.domain.raw_batch();
                for which in which {
                    let Some((&first, &pages)) = reference.live.iter().nth(which % reference.live.len().max(1)) else {
                        break;
                    };
                    reference.live.remove(&first);
                    prop_assert_eq!(batch.unmap(IovaRange::new(first, pages).expect("mapped")), Ok(()));
                }
                prop_assert_eq!(batch.commit(), Ok(()));
            }
        }
        prop_assert_eq!(usage().live_ranges, reference.live.len());
        prop_assert!(usage().kept_ranges <= kept_max);
    }
    for (first, pages) in core::mem::take(&mut reference.live) {
        bench.unmap(IovaRange::new(first, pages).expect("mapped"));
    }
    prop_assert_eq!(usage().live_ranges, 0);
    // Nothing has leaked: the largest range that the space can hold can be mapped.
    let largest = (1..=reference.limit.min(1 << 12)).rev().map(|pages| pages.next_power_of_two());
    let largest = { largest }.find(|size| reference.has_free(*size, true));
    if let Some(size) = largest {
        bench.map_pages(size);
    }
    run_on(0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(0), ..ProptestConfig::default() })]

    #[test]
    fn windows_are_as_the_reference_has_them(
        script in vec(operation(), 1..150),
        window in prop_oneof![1 => Just(8u64), 1 => Just(16), 1 => Just(32), 3 => Just(64)],
        address_bits in prop_oneof![3 => Just(48u8), 1 => Just(32), 3 => Just(22), 3 => Just(20), 1 => Just(14)],
    ) {
        let mut result = Ok(());
        on::<FastAndSafe>(&format!("window={window}"), Protection::Strict, address_bits, |bench| {
            let limit = 1 << (address_bits - 12);
            let (live, next) = (BTreeMap::new(), BTreeMap::new());
            result = run(bench, Reference { window, limit, address_bits, live, next }, &script);
        });
        result?;
    }
}
