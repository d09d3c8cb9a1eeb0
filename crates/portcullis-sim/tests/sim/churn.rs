//! Table pages when mappings have random lifetimes, in memory that other programs use too (ATC'15, §6.1, Figure 6).

use super::{job, machine, measured};
use portcullis::Protection;
use portcullis_designs::DesignId;
use portcullis_sim::{RunOutcome, Work};

fn churn(design: DesignId, background: f64, operations: u64) -> RunOutcome {
    let machine = machine("cascadelake-cx5");
    let work = Work::parse(&format!("churn:live=4096,background={background},operations={operations}")).unwrap();
    let protection = design.info().protections.last().copied().unwrap_or(Protection::Strict);
    let outcome = measured(&job(&machine, work, design, protection));
    assert_eq!((outcome.faults, outcome.operations), (0, operations), "{}", design.info().id);
    outcome
}

/// The order of the figure: magazines come near the tree, identity takes several times as much, and the allocator that
/// ignores tables takes ever more. A design that frees empty tables has only the root left at the end, because
/// everything is unmapped then.
#[test]
fn tables_grow_in_the_order_of_the_paper() {
    const OPERATIONS: u64 = 32_000;
    const BACKGROUND: f64 = 4.0;
    let end = |design| churn(design, BACKGROUND, OPERATIONS).table_pages_end;
    let stock = end(DesignId::Stock);
    let [magazine, identity, kmalloc] = [DesignId::Magazine, DesignId::Identity, DesignId::Kmalloc].map(end);
    assert!((stock..=stock * 3 / 2).contains(&magazine), "stock {stock}, magazine {magazine}");
    assert!(identity >= 2 * stock, "stock {stock}, identity {identity}");
    assert!(kmalloc > 2 * identity, "identity {identity}, kmalloc {kmalloc}");
    let freebsd = churn(DesignId::FreeBsd, BACKGROUND, OPERATIONS);
    assert_eq!(freebsd.table_pages_end, 1, "the root");
    assert!(freebsd.table_pages_max > stock, "guard pages take room while all is mapped");
    let longer = |background| churn(DesignId::Kmalloc, background, 3 * OPERATIONS).table_pages_end;
    let later = longer(BACKGROUND);
    assert!(later > kmalloc * 11 / 10, "{later} after {kmalloc}");
    // Without other programs, it keeps the addresses that it has.
    let alone = churn(DesignId::Kmalloc, 0.0, OPERATIONS).table_pages_end;
    assert_eq!(longer(0.0), alone);
    assert!(alone < kmalloc / 2, "{alone} of {kmalloc}");
}

#[test]
fn a_seed_decides_about_the_memory() {
    let machine = machine("cascadelake-cx5");
    let work = Work::parse("churn:live=1024,background=1,operations=20000").unwrap();
    let run = |seed| {
        let mut job = job(&machine, work.clone(), DesignId::Kmalloc, Protection::Deferred);
        job.seed = seed;
        measured(&job).table_pages_end
    };
    let first = run(1);
    assert_eq!(first, run(1));
    // Two counts may be equal by chance.
    assert_ne!([2, 3, 4].map(run), [first; 3]);
}
