//! Compares what is handed out again with what is spent. Streams of one line fill chunks of one table with mappings of
//! any length; they are unmapped, and their invalidations complete at any later time.

use super::super::geometry::{CHUNK_UNITS, SLOW_UNITS, UNIT_PAGES, unit_entries};
use super::super::page_states::Cleared;
use super::super::table_record::chunks;
use super::*;
use crate::address::{IovaRange, PAGE_SIZE, PhysAddr, Segment};
use crate::platform::Context;
use crate::platform::fake::FakeHost;
use crate::proof::Proof;
use crate::safety::Rule;
use crate::table::{Entry, Rights, Walker};
use core::ops::Range;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::format;
use std::string::String;
use std::vec::Vec;

/// The number of scripts that are run. Each flaw is found in one of them.
const SCRIPTS: usize = 256;

/// One step of a script. A mapping is named by a number, modulo the number of mappings.
#[derive(Clone, Debug)]
enum Operation {
    /// A stream makes a mapping of this many pages. If it needs another chunk, the chunk has this many units.
    Map(usize, u64, u32),
    /// A mapping is cleared.
    Clear(usize),
    /// The invalidation of a cleared mapping completes.
    Spend(usize),
}

fn script() -> impl Strategy<Value = Vec<Operation>> {
    let units = prop_oneof![3 => Just(SLOW_UNITS), 3 => Just(CHUNK_UNITS), 1 => Just(TABLE_UNITS)];
    let map = units.prop_flat_map(|units| (0..STREAMS, 1..u64::from(units) * UNIT_PAGES, Just(units)));
    let operation = prop_oneof![
        3 => map.prop_map(|(stream, pages, units)| Operation::Map(stream, pages, units)),
        3 => any::<usize>().prop_map(Operation::Clear),
        2 => any::<usize>().prop_map(Operation::Spend),
    ];
    vec(operation, 1..200)
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Flaw {
    None,
    /// A chunk is given back again when it is out to the next stream.
    GivesBackTwice,
    /// A chunk is given back when its last page is spent.
    LooksAtTheLastPage,
    /// A unit of a chunk stays in the generation that it was in.
    LeavesUnitsOdd,
}

/// A mapping by its pages in the table, and what is left of it once it is cleared.
struct Mapping<'t> {
    first: usize,
    pages: usize,
    cleared: Option<Cleared<'t>>,
}

struct Model<'t> {
    lookup: Lookup<'t, FakeHost>,
    out: OutChunks,
    /// The first unused page of each stream's chunk, and the end of the chunk.
    chunks: [(usize, usize); STREAMS],
    /// The mappings that are not spent.
    mappings: Vec<Mapping<'t>>,
    flaw: Flaw,
    /// The chunk that was given back last.
    given_back: Option<Out>,
}

impl<'t> Model<'t> {
    fn entries(&self, pages: Range<usize>) -> &'t [Entry] {
        &self.lookup.tables.linked(0)[pages]
    }

    fn give_back(&mut self, out: Out) {
        self.lookup.records.get(0).give_back(out.chunk().mask(), out.chunk().units);
        self.given_back = Some(out);
    }

    /// Looks at all chunks that are out, and gives back those that are spent.
    fn look(&mut self) {
        for list in 0..LISTS {
            let mut looks = self.out.lens()[list];
            while looks > 0 {
                let spent = self.out.look(self.lookup, list, &mut looks);
                spent.into_iter().for_each(|out| self.give_back(out));
            }
        }
        let record = self.lookup.records.get(0);
        match (self.flaw, self.given_back) {
            (Flaw::GivesBackTwice, Some(out)) if record.given_back() & out.chunk().mask() == 0 => {
                self.given_back = None;
                record.give_back(out.chunk().mask(), out.chunk().units);
            }
            (Flaw::LooksAtTheLastPage, _) => {
                for stream in &mut self.out.0 {
                    let Some(first) = stream.young.first else { continue };
                    let chunk = first.chunk();
                    let generation = if first.0.get() & GENERATION == 0 { Idle::FIRST } else { Idle::FIRST.next() };
                    if page_states::is_spent(&self.lookup.tables.linked(0)[chunk.pages().end - 1], generation) {
                        stream.looked = None;
                        record.end_generation(chunk.mask());
                        stream.young.remove_before(first.next(record), 1);
                        record.give_back(chunk.mask(), chunk.units);
                    }
                }
            }
            _ => {}
        }
    }

    /// Gives up what is left of the stream's chunk and takes another, if one is spent. No mapping may lie in it (S3).
    fn next_chunk(&mut self, stream: usize, units: u32) -> Result<bool, (Rule, String)> {
        let (first, end) = core::mem::take(&mut self.chunks[stream]);
        page_states::spend_unused(self.entries(first..end));
        self.look();
        let Lookup { platform, records, tables } = self.lookup;
        let record = records.get(0);
        if !record.fits(units) {
            return Ok(false);
        }
        let before: Vec<Idle> = (0..TABLE_UNITS).map(|unit| record.generation(unit)).collect();
        let firsts = record.open(platform, tables.linked(0), 0, units);
        for (unit, before) in (0..TABLE_UNITS).zip(before) {
            if self.flaw == Flaw::LeavesUnitsOdd && record.generation(unit) != before {
                page_states::spend_unused(unit_entries(tables.linked(0), unit));
            }
        }
        let chunk = Chunk { first: firsts.trailing_zeros(), units };
        // The others are not taken.
        let rest = chunks(firsts & (firsts - 1), units);
        record.give_back(rest, rest.count_ones());
        self.out.add(self.lookup, stream, chunk);
        let spent = self.out.take_spent(self.lookup, stream, chunk.first.is_multiple_of(2 * units));
        spent.into_iter().flatten().for_each(|out| self.give_back(out));
        let pages = chunk.pages();
        self.chunks[stream] = (pages.start, pages.end);
        let overlaps =
            |mapping: &&Mapping<'_>| mapping.first < pages.end && pages.start < mapping.first + mapping.pages;
        match self.mappings.iter().find(overlaps) {
            Some(Mapping { first, pages: length, cleared }) => {
                let state = if cleared.is_some() { "cleared" } else { "mapped" };
                Err((Rule::Reuse, format!("{pages:?} are handed out, and {length} from {first} on are {state}")))
            }
            None => Ok(true),
        }
    }

    fn run(&mut self, operation: &Operation) -> Result<(), (Rule, String)> {
        match *operation {
            Operation::Map(stream, pages, units) => {
                while self.chunks[stream].1 - self.chunks[stream].0 < pages as usize {
                    if !self.next_chunk(stream, units)? {
                        return Ok(());
                    }
                }
                let first = self.chunks[stream].0;
                self.chunks[stream].0 += pages as usize;
                let segment = Segment { phys: PhysAddr::from_pfn(0x1000), len: pages * PAGE_SIZE };
                let entries = self.entries(first..first + pages as usize);
                page_states::write(Walker::new(self.lookup.platform, true), entries, &[segment], Rights::WRITE);
                self.mappings.push(Mapping { first, pages: pages as usize, cleared: None });
            }
            Operation::Clear(which) => {
                let count = self.mappings.len().max(1);
                let Some(&Mapping { first, pages, cleared: None }) = self.mappings.get(which % count) else {
                    return Ok(());
                };
                let range = IovaRange::new(first as u64, pages as u64).expect("a range");
                let entries = self.entries(first..first + pages);
                let cleared = page_states::clear(self.lookup.platform, entries, range);
                let overwritten = || (Rule::Reuse, format!("the {pages} pages from {first} on are overwritten"));
                self.mappings[which % count].cleared = Some(cleared.ok_or_else(overwritten)?);
            }
            Operation::Spend(which) => {
                let which = which % self.mappings.len().max(1);
                if let Some(Mapping { cleared: Some(cleared), .. }) = self.mappings.get(which) {
                    cleared.spend(&Proof::never_visible());
                    self.mappings.swap_remove(which);
                }
            }
        }
        Ok(())
    }

    /// Spends all, after which all of the table must come back.
    fn end(&mut self) -> Result<(), (Rule, String)> {
        for turn in 0..2 * self.mappings.len() {
            self.run(&if turn % 2 == 0 { Operation::Clear(0) } else { Operation::Spend(0) })?;
        }
        for stream in 0..STREAMS {
            let (first, end) = core::mem::take(&mut self.chunks[stream]);
            page_states::spend_unused(self.entries(first..end));
        }
        // Those that come first in a list are looked at first, and the others when these are gone.
        (0..2).for_each(|_| self.look());
        match self.lookup.records.get(0).is_spent() {
            true => Ok(()),
            false => Err((Rule::Exhaustion, String::from("a chunk is lost"))),
        }
    }
}

/// A table, and what is needed to use it.
fn with_table<R>(act: impl FnOnce(Lookup<'_, FakeHost>) -> R) -> R {
    let host = FakeHost::default();
    let (tables, records) = (ChunkTables::of(&host, 1), TableRecords::of(&host, 8));
    let frame = host.allocate_frame(Context::Atomic).expect("memory");
    // SAFETY: it is never freed.
    tables.link(0, unsafe { host.frame(frame) });
    act(Lookup { platform: &host, records: &records, tables: &tables })
}

/// Runs scripts, always the same ones, until one fails.
fn first_violation(flaw: Flaw) -> Option<(Rule, String)> {
    let mut runner = TestRunner::deterministic();
    (0..SCRIPTS).find_map(|_| {
        let script = script().new_tree(&mut runner).expect("no script is filtered out").current();
        with_table(|lookup| {
            let (chunks, mappings, out) = ([(0, 0); STREAMS], Vec::new(), OutChunks::default());
            let mut model = Model { lookup, out, chunks, mappings, flaw, given_back: None };
            script.iter().find_map(|operation| model.run(operation).err()).or_else(|| {
                // A flaw may lose chunks, too.
                (flaw == Flaw::None).then(|| model.end().err()).flatten()
            })
        })
    })
}

fn is_found(flaw: Flaw) {
    assert_eq!(first_violation(Flaw::None), None, "without the flaw");
    match first_violation(flaw) {
        Some((rule, what)) => assert_eq!(rule, Rule::Reuse, "{what}"),
        None => panic!("{flaw:?} was not found in {SCRIPTS} scripts"),
    }
}

/// It is out to the next stream by then, which may have mapped in it.
#[test]
fn planted_s3_a_chunk_given_back_twice() {
    is_found(Flaw::GivesBackTwice);
}

/// A mapping at the start of the chunk is live, and its table is ready.
#[test]
fn planted_s3_a_ready_table_with_a_live_page() {
    is_found(Flaw::LooksAtTheLastPage);
}

/// A mapping over two units takes its generation from its first page, so the others look spent while it is mapped.
#[test]
fn planted_s3_units_of_a_chunk_in_two_generations() {
    is_found(Flaw::LeavesUnitsOdd);
}

/// Two unmaps race for one mapping. The later one clears a page that has been handed out again by then, before its new
/// owner writes it. The new mapping takes its generation from that page, and is lost. The mappings beside it are not
/// affected.
#[test]
fn an_unmap_that_comes_too_late_harms_one_mapping() {
    with_table(|lookup| {
        let Lookup { platform: host, records, tables } = lookup;
        let entry = |page: u64| &tables.linked(0)[page as usize..][..1];
        // The address has no zero bit where a length may be.
        let segment = Segment { phys: PhysAddr::from_pfn(0x1_ffff), len: PAGE_SIZE };
        let map = |page| page_states::write(Walker::new(host, true), entry(page), &[segment], Rights::WRITE);
        let spend = |cleared: Cleared<'_>| cleared.spend(&Proof::never_visible());
        let clear =
            |page| page_states::clear(host, entry(page), IovaRange::new(page, 1).expect("a range")).expect("mapped");
        let (chunk, pages) = (Chunk { first: 0, units: CHUNK_UNITS }, u64::from(CHUNK_UNITS) * UNIT_PAGES);
        let mut out = OutChunks::default();
        let open = |out: &mut OutChunks| {
            let firsts = records.get(0).open(host, tables.linked(0), 0, CHUNK_UNITS);
            let rest = chunks(firsts & (firsts - 1), CHUNK_UNITS);
            records.get(0).give_back(rest, rest.count_ones());
            out.add(lookup, 0, chunk);
        };
        let look = |out: &mut OutChunks| {
            out.look(lookup, 0, &mut 1).map(|out| records.get(0).give_back(out.chunk().mask(), out.chunk().units))
        };

        open(&mut out);
        (0..pages).for_each(map);
        let seen_by_the_late_one = entry(0)[0].load_bits();
        (0..pages).for_each(|page| spend(clear(page)));
        assert!(look(&mut out).is_some());
        open(&mut out);
        entry(0)[0].store_bits(seen_by_the_late_one);
        let _late = clear(0);

        (0..pages).for_each(map);
        (1..8).for_each(|page| spend(clear(page)));
        assert!(look(&mut out).is_none(), "{}: pages from 8 on are mapped", Rule::Reuse);
        // All but the lost mapping come back.
        (8..pages).for_each(|page| spend(clear(page)));
        assert!(look(&mut out).is_some());
        assert!(records.get(0).is_spent());
    });
}

/// Two unmaps race for a long mapping. The later one clears its first page when others are mapped there. Its length is
/// not theirs, so the table does not come back before all of them are gone.
#[test]
fn a_late_unmap_in_a_whole_table_keeps_it() {
    with_table(|lookup| {
        let Lookup { platform: host, records, tables } = lookup;
        let all = &tables.linked(0)[..];
        let map = |entries: &[Entry]| {
            let len = entries.len() as u64 * PAGE_SIZE;
            let segment = Segment { phys: PhysAddr::from_pfn(0x1_ffff), len };
            page_states::write(Walker::new(host, true), entries, &[segment], Rights::WRITE);
        };
        let clear = |entries: &[Entry]| {
            let range = IovaRange::new(0, entries.len() as u64).expect("a range");
            let cleared = page_states::clear(host, entries, range).expect("mapped");
            let bits = entries[0].load_bits();
            cleared.spend(&Proof::never_visible());
            bits
        };
        let mut out = OutChunks::default();
        let open = |out: &mut OutChunks| {
            assert_eq!(records.get(0).open(host, tables.linked(0), 0, TABLE_UNITS), 1);
            out.add(lookup, 0, Chunk { first: 0, units: TABLE_UNITS });
        };
        let look = |out: &mut OutChunks| {
            out.look(lookup, 0, &mut 1).map(|out| records.get(0).give_back(out.chunk().mask(), out.chunk().units))
        };

        open(&mut out);
        map(&all[..256]);
        page_states::spend_unused(&all[256..]);
        assert!(look(&mut out).is_none(), "{}: 256 pages are mapped", Rule::Reuse);
        let cleared_by_the_late_one = clear(&all[..256]);
        assert!(look(&mut out).is_some());
        open(&mut out);
        [&all[..40], &all[40..256]].into_iter().for_each(map);
        page_states::spend_unused(&all[256..]);
        all[0].store_bits(cleared_by_the_late_one);
        assert!(look(&mut out).is_none(), "{}: pages from 40 on are mapped", Rule::Reuse);
    });
}
