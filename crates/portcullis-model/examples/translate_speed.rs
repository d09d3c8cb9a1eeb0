//! Times the model itself: nanoseconds on this machine for each translation that hits, joins or walks.
//!
//! `cargo run --release -p portcullis-model --example translate_speed`

use portcullis::iommu::{DomainId, SourceId};
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{Parameters, Ram, Vtd};
use portcullis_vtd::spec::registers::{GCMD, RTADDR, global};
use portcullis_vtd::spec::tables::{ContextEntry, RootEntry, TranslationType, context_index, root_index};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

const DEVICE: SourceId = SourceId::new(3, 2, 0);
const ROUNDS: u64 = 4_000_000;
/// Long enough for every walk to complete before the next request.
const STEP_PS: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let ram = Arc::new(Ram::new(PhysAddr::new(0x100_0000), 64 << 20));
    let vtd = Vtd::new(Parameters::cascadelake(), Arc::clone(&ram));
    map(&ram, &vtd, 512 * PAGE_SIZE)?;
    let mut now_ps = 0;
    let mut time = |what: &str, pages: u64, per_page: u64| {
        let before = vtd.counters();
        let start = Instant::now();
        for round in 0..ROUNDS {
            now_ps += STEP_PS;
            let iova = Iova::new(round / per_page % pages * PAGE_SIZE);
            vtd.translate(now_ps, DEVICE, iova, Rights::WRITE).expect("every page is mapped");
        }
        let ns = start.elapsed().as_nanos() as f64 / ROUNDS as f64;
        let after = vtd.counters();
        let misses = (after.iotlb_misses - before.iotlb_misses) as f64 / ROUNDS as f64;
        println!("{what:40} {ns:6.1} ns   {misses:.3} misses each");
    };
    time("hits, the same page", 1, 1);
    time("hits, 100 pages in turn", 100, 1);
    time("misses, 512 pages in turn", 512, 1);
    time("a miss and seven hits, 512 pages in turn", 512, 8);
    Ok(())
}

/// Maps the first `bytes` for `DEVICE`, with one table at each level, and turns translation on.
fn map(ram: &Ram, vtd: &Vtd, bytes: u64) -> Result<(), Box<dyn Error>> {
    let leaves = ram.allocate()?;
    for page in 0..bytes / PAGE_SIZE {
        let leaf = EntryValue::leaf(PhysAddr::from_pfn(0x10_0000 + page), Rights::READ_WRITE, false);
        ram.frame(leaves)[page as usize].store(leaf);
    }
    let mut table = leaves;
    for _ in 2..=4 {
        let above = ram.allocate()?;
        ram.frame(above)[0].store(EntryValue::table(table));
        table = above;
    }
    let [root, contexts] = [ram.allocate()?, ram.allocate()?];
    let context = ContextEntry {
        faults_disabled: false,
        translation_type: TranslationType::Untranslated,
        table,
        levels: 4,
        domain: DomainId(1),
    };
    let write = |table, index: usize, [low, high]: [u64; 2]| {
        ram.frame(table)[2 * index].store_bits(low);
        ram.frame(table)[2 * index + 1].store_bits(high);
    };
    write(contexts, context_index(DEVICE), context.encode());
    write(root, root_index(DEVICE), RootEntry { context_table: contexts }.encode());
    vtd.write_register(0, RTADDR, 8, root.as_u64());
    vtd.write_register(0, GCMD, 4, (global::ROOT_TABLE | global::TRANSLATION).into());
    Ok(())
}
