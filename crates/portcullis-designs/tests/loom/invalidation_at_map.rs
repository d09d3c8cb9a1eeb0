//! An unmap that leaves the translation as it is, and a map that invalidates the address that it was given.

use super::{Bench, check};
use crate::raw_face::RawFace;
use loom::thread;
use portcullis::platform::fake::run_on;
use portcullis::{Access, Iova, PAGE_SIZE, PhysAddr, Protection};
use portcullis_designs::Solaris;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maps physical page `pfn`. If a device already uses the address, it may have cached the right translation.
fn map(bench: &Bench<Solaris>, pfn: u64) -> Iova {
    let iova = bench.domain.raw_map(PhysAddr::from_pfn(pfn), PAGE_SIZE, Access::DeviceWrites).expect("room");
    assert_eq!(bench.reach(iova), Some(pfn), "S3: the old page is reached through {iova}");
    iova
}

/// One CPU gives an address back while another maps with it, and the device uses the address all the time. When the
/// map has returned, the device no longer reaches the old page.
#[test]
fn a_device_beside_an_unmap_and_a_map() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    static REACHED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    check(|| {
        let bench = Bench::<Solaris>::new(Protection::Deferred);
        let gone = map(&bench, 10);
        let (device, other) = (bench.clone(), bench.clone());
        let device = thread::spawn(move || {
            for reached in [device.reach(gone), device.reach(gone)] {
                let which = [10, 20].iter().position(|pfn| reached == Some(*pfn));
                REACHED[which.expect("something is always there")].fetch_add(1, Ordering::Relaxed);
            }
        });
        let unmapped = thread::spawn(move || {
            run_on(1);
            other.unmap(gone, 1).expect("mapped");
        });
        run_on(0);
        let new = map(&bench, 20);
        REUSED.fetch_add(usize::from(new == gone), Ordering::Relaxed);
        device.join().unwrap();
        unmapped.join().unwrap();
        assert_eq!(bench.reach(new), Some(20), "S3");
        if new != gone {
            assert_eq!(bench.reach(gone), Some(10), "the declared window");
        }
        assert_eq!(bench.domain.usage().live_ranges, 1);
        bench.close();
    });
    assert!(REUSED.load(Ordering::Relaxed) > 0, "the address is reused in some interleavings");
    assert!(
        REACHED.iter().all(|count| count.load(Ordering::Relaxed) > 0),
        "the device came before and after: {REACHED:?}"
    );
}

/// Both CPUs map while one of them has just given an address back. One of them gets it, and each address leads to its
/// own page.
#[test]
fn two_maps_beside_an_unmap() {
    static REUSED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    check(|| {
        let bench = Bench::<Solaris>::new(Protection::Deferred);
        let gone = map(&bench, 10);
        let other = bench.clone();
        let second = thread::spawn(move || {
            run_on(1);
            other.unmap(gone, 1).expect("mapped");
            map(&other, 30)
        });
        run_on(0);
        let maps = [map(&bench, 20), second.join().unwrap()];
        assert_ne!(maps[0], maps[1], "S3");
        assert_eq!(maps.map(|iova| bench.reach(iova)), [Some(20), Some(30)]);
        let reused = maps.iter().position(|iova| *iova == gone).expect("it is the first that is free");
        REUSED[reused].fetch_add(1, Ordering::Relaxed);
        bench.close();
    });
    assert!(REUSED.iter().all(|count| count.load(Ordering::Relaxed) > 0), "either CPU may be the one: {REUSED:?}");
}
