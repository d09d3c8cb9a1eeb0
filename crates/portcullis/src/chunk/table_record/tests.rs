//! Compares what a table record takes to be spent with what is spent. A stream fills chunks of one table with mappings
//! of any length; they are unmapped, and their invalidations complete at any later time.

use super::super::geometry::{CHUNK_UNITS, SLOW_UNITS};
use super::page_states::Cleared;
use super::*;
use crate::address::{IovaRange, PAGE_SIZE, PhysAddr, Segment};
use crate::platform::Context;
use crate::platform::fake::FakeHost;
use crate::proof::Proof;
use crate::safety::Rule;
use crate::table::{Entry, Rights, Walker};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::format;
use std::string::String;

/// The number of scripts that are run. The flaw is found in one of them.
const SCRIPTS: usize = 64;

/// One step of a script. A mapping is named by a number, modulo the number of mappings.
#[derive(Clone, Debug)]
enum Operation {
    /// The stream makes a mapping of this many pages. If it needs another chunk, the chunk has this many units.
    Map(u64, u32),
    /// A mapping is cleared.
    Clear(usize),
    /// The invalidation of a cleared mapping completes.
    Spend(usize),
}

fn script() -> impl Strategy<Value = Vec<Operation>> {
    let units = prop_oneof![Just(SLOW_UNITS), Just(CHUNK_UNITS), Just(TABLE_UNITS)];
    let map = units.prop_flat_map(|units| (1..u64::from(units) * UNIT_PAGES, Just(units)));
    let operation = prop_oneof![
        3 => map.prop_map(|(pages, units)| Operation::Map(pages, units)),
        3 => any::<usize>().prop_map(Operation::Clear),
        2 => any::<usize>().prop_map(Operation::Spend),
    ];
    vec(operation, 1..100)
}

/// The pages of a mapping by their index in the table, and what is left of it once it is cleared.
struct Mapping<'t> {
    first: u64,
    pages: u64,
    cleared: Option<Cleared<'t>>,
}

struct Model<'t> {
    host: &'t FakeHost,
    tables: &'t ChunkTables,
    table: TableRecord,
    /// The first unused page of the stream's chunk, and the end of the chunk.
    chunk: (u64, u64),
    /// The mappings that are not spent.
    mappings: Vec<Mapping<'t>>,
    /// The flaw: the record forgets which units were handed out together.
    forgets_joints: bool,
}

impl<'t> Model<'t> {
    fn entries(&self, first: u64, end: u64) -> &'t [Entry] {
        &self.tables.linked(0)[first as usize..end as usize]
    }

    /// Gives up what is left of the chunk and takes another, if one is spent. No mapping may lie in it (S3).
    fn next_chunk(&mut self, units: u32) -> Result<bool, (Rule, String)> {
        let (first, end) = core::mem::take(&mut self.chunk);
        page_states::spend_unused(self.entries(first, end));
        self.table.look(self.host, 0, self.tables);
        let left = runs(self.table.spent(), units);
        if left == 0 {
            return Ok(false);
        }
        let unit = left.trailing_zeros();
        self.table.hand_out(self.host, 0, self.tables, (u32::MAX >> (u32::BITS - units)) << unit);
        if self.forgets_joints {
            self.table.joined = 0;
        }
        let first = u64::from(unit) * UNIT_PAGES;
        let end = first + u64::from(units) * UNIT_PAGES;
        self.chunk = (first, end);
        match self.mappings.iter().find(|mapping| mapping.first < end && first < mapping.first + mapping.pages) {
            Some(Mapping { first: other, pages, cleared }) => {
                let state = if cleared.is_some() { "cleared" } else { "mapped" };
                Err((
                    Rule::Reuse,
                    format!("pages {first}-{end} are handed out, and {pages} from {other} on are {state}"),
                ))
            }
            None => Ok(true),
        }
    }

    fn run(&mut self, operation: &Operation) -> Result<(), (Rule, String)> {
        match *operation {
            Operation::Map(pages, units) => {
                while self.chunk.1 - self.chunk.0 < pages {
                    if !self.next_chunk(units)? {
                        return Ok(());
                    }
                }
                let first = self.chunk.0;
                self.chunk.0 += pages;
                let segment = Segment { phys: PhysAddr::from_pfn(0x1000), len: pages * PAGE_SIZE };
                page_states::write(
                    Walker::new(self.host, true),
                    self.entries(first, first + pages),
                    &[segment],
                    Rights::WRITE,
                );
                self.mappings.push(Mapping { first, pages, cleared: None });
            }
            Operation::Clear(which) => {
                let count = self.mappings.len().max(1);
                let Some(&Mapping { first, pages, cleared: None }) = self.mappings.get(which % count) else {
                    return Ok(());
                };
                let range = IovaRange::new(first, pages).expect("a range");
                let cleared = page_states::clear(self.host, self.entries(first, first + pages), range).expect("mapped");
                self.mappings[which % count].cleared = Some(cleared);
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
}

/// Two unmaps race for one mapping. The later one clears a page that has been handed out again by then, before its new
/// owner writes it. The new mapping takes its generation from that page, and is lost. The mappings beside it are not
/// affected.
#[test]
fn an_unmap_that_comes_too_late_harms_one_mapping() {
    let host = FakeHost::default();
    let tables = ChunkTables::new(&host, 1).expect("memory");
    let frame = host.allocate_frame(Context::Atomic).expect("memory");
    // SAFETY: it is never freed.
    tables.link(0, unsafe { host.frame(frame) });
    let (mut table, chunk) = (TableRecord::default(), run(0, CHUNK_UNITS));
    let pages = u64::from(CHUNK_UNITS) * UNIT_PAGES;
    let entry = |page: u64| &tables.linked(0)[page as usize..][..1];
    // The address has no zero bit where a length may be.
    let segment = Segment { phys: PhysAddr::from_pfn(0x1_ffff), len: PAGE_SIZE };
    let map = |page| page_states::write(Walker::new(&host, true), entry(page), &[segment], Rights::WRITE);
    let spend = |cleared: Cleared<'_>| cleared.spend(&Proof::never_visible());
    let clear =
        |page| page_states::clear(&host, entry(page), IovaRange::new(page, 1).expect("a range")).expect("mapped");

    table.hand_out(&host, 0, &tables, chunk);
    (0..pages).for_each(map);
    let seen_by_the_late_one = entry(0)[0].load_bits();
    (0..pages).for_each(|page| spend(clear(page)));
    table.look(&host, 0, &tables);
    assert_eq!(table.spent(), ALL);
    table.hand_out(&host, 0, &tables, chunk);
    entry(0)[0].store_bits(seen_by_the_late_one);
    let _late = clear(0);

    (0..pages).for_each(map);
    (1..8).for_each(|page| spend(clear(page)));
    table.look(&host, 0, &tables);
    assert_eq!(table.spent() & chunk, 0, "{}: pages from 8 on are mapped", Rule::Reuse);
    // All but the lost mapping come back.
    (8..pages).for_each(|page| spend(clear(page)));
    table.look(&host, 0, &tables);
    assert_eq!(table.spent(), ALL);
}

/// Runs scripts, always the same ones, until one fails.
fn first_violation(forgets_joints: bool) -> Option<(Rule, String)> {
    let mut runner = TestRunner::deterministic();
    (0..SCRIPTS).find_map(|_| {
        let script = script().new_tree(&mut runner).expect("no script is filtered out").current();
        let host = FakeHost::default();
        let tables = ChunkTables::new(&host, 1).expect("memory");
        let frame = host.allocate_frame(Context::Atomic).expect("memory");
        // SAFETY: it is never freed.
        tables.link(0, unsafe { host.frame(frame) });
        let table = TableRecord::default();
        let (chunk, mappings) = ((0, 0), Vec::new());
        let mut model = Model { host: &host, tables: &tables, table, chunk, mappings, forgets_joints };
        script.iter().find_map(|operation| model.run(operation).err())
    })
}

/// A mapping that spans units is cleared, and its invalidation has not completed: its later pages look spent. Its last
/// unit must not become available, in a smaller chunk, before its first.
#[test]
fn planted_s3_units_that_come_back_out_of_their_order() {
    assert_eq!(first_violation(false), None, "without the flaw");
    match first_violation(true) {
        Some((rule, what)) => assert_eq!(rule, Rule::Reuse, "{what}"),
        None => panic!("the flaw was not found in {SCRIPTS} scripts"),
    }
}
