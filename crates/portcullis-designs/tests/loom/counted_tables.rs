//! Table pages that are freed when they are empty, while other CPUs map in their place.

use super::{Bench, check};
use portcullis::{Invalidation, Protection};
use portcullis_designs::FreeBsd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One CPU unmaps the only page of a leaf table, so that the table is freed, and its directory with it. The other CPU
/// maps there. The device, which knows the old tables, must find the new page as soon as its map has returned, and
/// must never walk a freed table.
#[test]
fn a_map_beside_the_last_unmap_of_a_table() {
    static INVALIDATED: AtomicUsize = AtomicUsize::new(0);
    static NOT_INVALIDATED: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let bench = Bench::<FreeBsd>::new(Protection::Strict);
        let gone = bench.map(10, 1);
        assert_eq!(bench.reach(gone), Some(10));
        let other = bench.clone();
        let unmapped = loom::thread::spawn(move || other.unmap(gone, 1));
        let new = bench.map(20, 1);
        assert_eq!(bench.reach(new), Some(20), "a map that has returned is reached");
        unmapped.join().unwrap().expect("mapped");
        assert_eq!(bench.reach(new), Some(20));
        if new != gone {
            assert_eq!(bench.reach(gone), None, "S2");
            let is_maps =
                |command: &Invalidation| matches!(command, Invalidation::Pages { first, .. } if *first == new);
            let invalidated = bench.iommu.take_commands().iter().any(is_maps);
            (if invalidated { &INVALIDATED } else { &NOT_INVALIDATED }).fetch_add(1, Ordering::Relaxed);
        }
        // The root, a directory and a leaf table, and the pages kept ready for the next map.
        let (tables, lent) = (bench.domain.usage().table_pages, bench.host.frames_lent());
        assert_eq!(tables, 3);
        assert!((tables..=tables + bench.domain.tables_max(1)).contains(&lent), "{lent} lent");
        bench.close();
    });
    assert!(INVALIDATED.load(Ordering::Relaxed) > 0, "in some interleavings the map must invalidate");
    assert!(NOT_INVALIDATED.load(Ordering::Relaxed) > 0, "in some it need not");
}

/// A device walks while the last page of a table is unmapped. It may be let through or not, but it must never walk a
/// table that was freed (S4).
#[test]
fn a_device_beside_the_last_unmap_of_a_table() {
    static LET_THROUGH: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let bench = Bench::<FreeBsd>::new(Protection::Strict);
        let gone = bench.map(10, 1);
        let device = bench.clone();
        let device = loom::thread::spawn(move || device.reach(gone));
        bench.unmap(gone, 1).expect("mapped");
        assert_eq!(bench.reach(gone), None, "S2");
        LET_THROUGH.fetch_add(usize::from(device.join().unwrap().is_some()), Ordering::Relaxed);
        assert_eq!((bench.domain.usage().table_pages, bench.host.frames_lent()), (1, 1));
        bench.close();
    });
    assert!(LET_THROUGH.load(Ordering::Relaxed) > 0, "the device came first in some interleavings");
}
