//! Two or three CPUs in every interleaving, checked by loom:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p portcullis-designs --release --test loom --target-dir target/loom
//! ```
#![cfg(loom)]

mod asynchronous;
mod chunks;
mod counted_tables;
#[path = "../forwarding/mod.rs"]
mod forwarding;
mod halves;
mod identity;
mod invalidation_at_map;
mod magazines;
mod open_runs;
mod per_cpu_queues;
// The file, because the crate has dependencies that take long to build.
#[allow(dead_code, unreachable_pub, reason = "a file of another crate")]
#[path = "../../../portcullis-testkit/src/raw_face.rs"]
mod raw_face;
mod rings;
mod spending;
mod table_records;
mod windows;

/// What the files of [`open_runs`] and [`table_records`] need of their crate.
mod address {
    pub(crate) use portcullis::IovaRange;
}
mod platform {
    pub(crate) use portcullis::Platform;
    pub(crate) use portcullis::platform::Step;
}
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64};
    pub(crate) use std::sync::atomic::Ordering;
}
mod table {
    pub(crate) use portcullis::table::{ENTRIES, Entry, Frame};
}

use loom::model::Builder;
use loom::thread;
use portcullis::invalidation::QUEUE_TIMEOUT_US;
use portcullis::iommu::fake::FakeIommu;
use portcullis::mapper::Design;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainConfig, DomainOf, Invalidation, Iommu, Iova, Open, PAGE_SIZE, PhysAddr, Protection,
    RawUnmapError, SourceId, UnmapError,
};
use portcullis_designs::Stock;
use raw_face::RawFace;
// Not loom's: the models are about what lies inside.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DEVICE: SourceId = SourceId::new(0, 5, 0);

/// Runs `model` in every interleaving.
fn check(model: impl Fn() + Sync + Send + 'static) {
    check_with(None, model);
}

/// Runs `model` in every interleaving, or in those with at most `preemption_bound` preemptions.
fn check_with(preemption_bound: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemption_bound;
    // Teardown reads every entry of every directory.
    builder.max_branches = 100_000;
    builder.check(model);
}

/// A domain on fakes that are leaked, because loom has no scoped threads. The memory that they lend comes back with
/// the domain.
struct Bench<D: Design<&'static FakeHost, &'static FakeIommu<'static>> = Stock> {
    host: &'static FakeHost,
    iommu: &'static FakeIommu<'static>,
    domain: Arc<DomainOf<D, &'static FakeHost, &'static FakeIommu<'static>>>,
}

impl<D: Design<&'static FakeHost, &'static FakeIommu<'static>>> Clone for Bench<D> {
    fn clone(&self) -> Self {
        Self { host: self.host, iommu: self.iommu, domain: self.domain.clone() }
    }
}

impl<D: Design<&'static FakeHost, &'static FakeIommu<'static>>> Bench<D> {
    /// Makes a domain and a device, which reaches memory through an empty table of three levels.
    fn new(protection: Protection) -> Self {
        Self::with_width(protection, 32)
    }

    /// Does the same for addresses of `address_bits` bits.
    fn with_width(protection: Protection, address_bits: u8) -> Self {
        let host: &FakeHost = Box::leak(Box::default());
        let all = FakeIommu::new(host).capabilities();
        let iommu = FakeIommu::with_capabilities(host, Capabilities { leaf_2m: false, leaf_1g: false, ..all });
        let iommu: &FakeIommu<'_> = Box::leak(Box::new(iommu));
        let config = DomainConfig { address_bits, ..DomainConfig::new(protection) };
        let domain = D::open_with(iommu, host, &config).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        Self { host, iommu, domain: Arc::new(domain) }
    }

    /// Maps `pages` pages at physical page `pfn`. No address that is still cached may be handed out (S3).
    fn map(&self, pfn: u64, pages: u64) -> Iova {
        let iova = self.domain.raw_map(PhysAddr::from_pfn(pfn), pages * PAGE_SIZE, Access::DeviceWrites);
        let iova = iova.expect("room");
        assert!(!self.iommu.is_cached(self.domain.id(), iova.pfn()), "S3: {iova} is cached");
        iova
    }

    fn unmap(&self, iova: Iova, pages: u64) -> Result<(), RawUnmapError> {
        self.domain.unmap_raw(iova, pages * PAGE_SIZE)
    }

    /// The physical page that the device reaches.
    fn reach(&self, iova: Iova) -> Option<u64> {
        self.iommu.access(DEVICE, iova, Rights::WRITE).map(PhysAddr::pfn)
    }

    /// Ends the domain. Nothing of it may be left (S10).
    fn close(self) {
        let Self { host, domain, .. } = self;
        drop(Arc::into_inner(domain).expect("the other thread has ended"));
        assert_eq!(host.frames_lent(), 0);
    }
}

/// Both CPUs find that the table for their pages is missing. One installs its own. The other frees its own, and uses
/// the installed one.
#[test]
fn two_maps_install_one_table() {
    check(|| {
        let bench = Bench::<Stock>::new(Protection::Strict);
        let other = bench.clone();
        let second = thread::spawn(move || other.map(20, 1));
        let first = bench.map(10, 1);
        let second = second.join().unwrap();
        assert_eq!((bench.reach(first), bench.reach(second)), (Some(10), Some(20)));
        // The root, a directory and a leaf table.
        assert_eq!((bench.domain.usage().table_pages, bench.host.frames_lent()), (3, 3));
        bench.close();
    });
}

/// A buffer goes back to one caller only.
#[test]
fn of_two_unmaps_one_succeeds() {
    for protection in [Protection::Strict, Protection::Deferred] {
        check(move || {
            let bench = Bench::<Stock>::new(protection);
            let iova = bench.map(10, 1);
            let other = bench.clone();
            let second = thread::spawn(move || other.unmap(iova, 1));
            let results = [bench.unmap(iova, 1), second.join().unwrap()];
            let refused = Err(RawUnmapError::Refused(UnmapError::NotMapped(iova)));
            assert!(results == [Ok(()), refused] || results == [refused, Ok(())], "{results:?}");
            bench.close();
        });
    }
}

/// A map and the unmap of its neighbour share a table, and perhaps the address.
#[test]
fn a_map_beside_an_unmap() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let bench = Bench::<Stock>::new(Protection::Strict);
        let (gone, neighbour) = (bench.map(10, 1), bench.map(11, 1));
        assert_eq!((bench.reach(gone), bench.reach(neighbour)), (Some(10), Some(11)));
        let other = bench.clone();
        let unmapped = thread::spawn(move || other.unmap(gone, 1));
        let new = bench.map(20, 1);
        unmapped.join().unwrap().expect("mapped");
        assert_eq!((bench.reach(neighbour), bench.reach(new)), (Some(11), Some(20)));
        if new == gone {
            REUSED.fetch_add(1, Ordering::Relaxed);
        } else {
            assert_eq!(bench.reach(gone), None);
        }
        bench.close();
    });
    assert!(REUSED.load(Ordering::Relaxed) > 0, "the address is reused in some interleavings");
}

/// The device uses a page while it is unmapped. It may still be let through, but not once the unmap has returned (S2).
#[test]
fn a_device_beside_a_strict_unmap() {
    static LET_THROUGH: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let bench = Bench::<Stock>::new(Protection::Strict);
        let gone = bench.map(10, 1);
        let device = bench.clone();
        let device = thread::spawn(move || device.reach(gone));
        bench.unmap(gone, 1).expect("mapped");
        assert_eq!(bench.reach(gone), None, "S2");
        LET_THROUGH.fetch_add(usize::from(device.join().unwrap().is_some()), Ordering::Relaxed);
        bench.close();
    });
    assert!(LET_THROUGH.load(Ordering::Relaxed) > 0, "the device came first in some interleavings");
}

/// One CPU unmaps, so that the address waits in the flush queue, and maps again. The other CPU flushes when the time
/// has come.
#[test]
fn a_tick_beside_an_unmap_and_a_map() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let bench = Bench::<Stock>::new(Protection::Deferred);
        let gone = bench.map(10, 1);
        assert_eq!(bench.reach(gone), Some(10));
        let other = bench.clone();
        let ticked = thread::spawn(move || {
            other.host.advance_us(QUEUE_TIMEOUT_US);
            other.domain.tick()
        });
        bench.unmap(gone, 1).expect("mapped");
        let new = bench.map(20, 1);
        ticked.join().unwrap().expect("the hardware answers");
        assert_eq!(bench.reach(new), Some(20));
        REUSED.fetch_add(usize::from(new == gone), Ordering::Relaxed);
        bench.host.advance_us(QUEUE_TIMEOUT_US);
        bench.domain.tick().expect("the hardware answers");
        assert_eq!(bench.domain.usage().queued_unmaps, 0);
        if new != gone {
            assert_eq!(bench.reach(gone), None);
        }
        bench.close();
    });
    assert!(REUSED.load(Ordering::Relaxed) > 0, "the address is reused in some interleavings");
}

/// Two CPUs find that a flush is due, and one of them sends it.
#[test]
fn of_two_ticks_one_flushes() {
    check(|| {
        let bench = Bench::<Stock>::new(Protection::Deferred);
        let gone = bench.map(10, 1);
        bench.unmap(gone, 1).expect("mapped");
        bench.host.advance_us(QUEUE_TIMEOUT_US);
        let other = bench.clone();
        let ticked = thread::spawn(move || other.domain.tick());
        bench.domain.tick().expect("the hardware answers");
        ticked.join().unwrap().expect("the hardware answers");
        assert_eq!((bench.iommu.take_commands(), bench.domain.usage().live_ranges), (vec![Invalidation::Global], 0));
        bench.close();
    });
}

/// One CPU unmaps everything that a leaf table translates, which frees the table. The other CPU maps elsewhere, or
/// there (S4).
#[test]
fn a_map_beside_an_unmap_that_frees_a_table() {
    check(|| {
        let bench = Bench::<Stock>::new(Protection::Strict);
        let gone = bench.map(0x1000, 512);
        assert_eq!(bench.reach(gone), Some(0x1000));
        let other = bench.clone();
        let unmapped = thread::spawn(move || other.unmap(gone, 512));
        let new = bench.map(20, 1);
        unmapped.join().unwrap().expect("mapped");
        assert_eq!(bench.reach(new), Some(20));
        assert_eq!(bench.reach(Iova::from_pfn(gone.pfn() + 1)), None);
        bench.close();
    });
}

/// Three CPUs: one of them unmaps the page that it has mapped, while the others install the tables that it used.
#[test]
fn three_cpus_on_one_table() {
    check_with(Some(2), || {
        let bench = Bench::<Stock>::new(Protection::Strict);
        let others = [20, 30].map(|pfn| {
            let other = bench.clone();
            thread::spawn(move || (pfn, other.map(pfn, 1)))
        });
        let gone = bench.map(10, 1);
        bench.unmap(gone, 1).expect("mapped");
        for other in others {
            let (pfn, iova) = other.join().unwrap();
            assert_eq!(bench.reach(iova), Some(pfn));
        }
        assert_eq!((bench.domain.usage().table_pages, bench.host.frames_lent()), (3, 3));
        bench.close();
    });
}
