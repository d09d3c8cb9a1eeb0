//! A page is spent after its invalidation, and the CPU that gets it next sees both. This is an ordering between CPUs
//! through the entry alone: the hardware here has no lock that would order them by accident.

use super::{DEVICE, check_with};
use crate::forwarding::forward_domains;
use crate::raw_face::RawFace;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use portcullis::designs::Portcullis;
use portcullis::iommu::QueueError;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{
    Access, Capabilities, DomainConfig, DomainOf, Invalidation, Iommu, Iova, IovaRange, Open, PAGE_SIZE, PhysAddr,
    Protection,
};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Pages of a table that are handed out.
const TABLE: u64 = 4;
/// Addresses of this many bits have room for four tables.
const ADDRESS_BITS: u8 = 24;

/// Hardware that has cached every page of a table, until it is invalidated. It tells other CPUs nothing except by
/// these flags.
struct Hardware {
    /// Domains and devices, but no invalidations.
    fake: FakeIommu<'static>,
    /// By the number of a page in its table. Relaxed, because the library must order the flags.
    lost: [AtomicBool; TABLE as usize],
    /// Whether an unmap may submit within its walk, where it then also spends its page. Otherwise it spends it in
    /// another walk.
    in_walks: bool,
}

impl Hardware {
    fn flag(&self, iova: Iova) -> &AtomicBool {
        &self.lost[(iova.pfn() % 512 % TABLE) as usize]
    }
}

// SAFETY: no hardware behind it reaches memory.
unsafe impl Iommu for Hardware {
    type Ticket = ();

    forward_domains!(fake);

    fn submit(&self, commands: &[Invalidation]) -> Result<(), QueueError> {
        for command in commands {
            let Invalidation::Pages { first, mask, .. } = *command else { panic!("{command:?}") };
            for pfn in first.pfn()..first.pfn() + (1 << mask) {
                self.flag(Iova::from_pfn(pfn)).store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<()>, QueueError> {
        if self.in_walks { self.submit(commands).map(Some) } else { Ok(None) }
    }

    fn is_done(&self, (): ()) -> Result<bool, QueueError> {
        Ok(true)
    }
}

type Small = DomainOf<Portcullis, &'static FakeHost, &'static Hardware>;

/// How a mapping is unmapped.
type Unmap = fn(&Small, Iova, u64);

fn single(domain: &Small, iova: Iova, pages: u64) {
    domain.unmap_raw(iova, pages * PAGE_SIZE).expect("mapped");
}

fn batched(domain: &Small, iova: Iova, pages: u64) {
    let mut batch = domain.raw_batch();
    batch.unmap(IovaRange::covering(iova, pages * PAGE_SIZE).expect("a range")).expect("mapped");
    batch.commit().expect("the hardware answers");
}

/// One CPU unmaps a mapping of `pages` pages, the last in its table, and the other maps as many. If the map gets the
/// same address, it sees the invalidation of each page. Returns how often it got the same address.
fn spent_beside_a_map(pages: u64, unmap: Unmap) -> usize {
    let reused = Arc::new(AtomicUsize::new(0));
    let count = reused.clone();
    check_with(Some(2), move || {
        let host: &'static FakeHost = Box::leak(Box::default());
        let all = FakeIommu::new(host).capabilities();
        let fake = FakeIommu::with_capabilities(host, Capabilities { leaf_2m: false, leaf_1g: false, ..all });
        let lost = core::array::from_fn(|_| AtomicBool::new(false));
        let hardware: &'static Hardware = Box::leak(Box::new(Hardware { fake, lost, in_walks: pages == 1 }));
        let config = DomainConfig { address_bits: ADDRESS_BITS, ..DomainConfig::new(Protection::Strict) };
        run_on(1);
        let domain = Arc::new(Portcullis::open_with(hardware, host, &config).expect("a domain"));
        domain.attach(DEVICE).expect("a device");
        let map = |domain: &Small, pfn, pages| {
            domain.raw_map(PhysAddr::from_pfn(pfn), pages * PAGE_SIZE, Access::DeviceWrites).expect("room")
        };
        let gone = map(&domain, 10, pages);
        if pages == 1 {
            let others = [20, 21, 22].map(|pfn| map(&domain, pfn, 1));
            others.into_iter().for_each(|iova| single(&domain, iova, 1));
        }
        let range = IovaRange::new(gone.pfn(), pages).expect("a range");
        let other = domain.clone();
        let second = thread::spawn(move || {
            run_on(1);
            let new = map(&other, 30, pages);
            if new == gone {
                for pfn in range.first_pfn()..range.end_pfn() {
                    let is_lost = hardware.flag(Iova::from_pfn(pfn)).load(Ordering::Relaxed);
                    assert!(is_lost, "S3: {new} is handed out while page {pfn:#x} is cached");
                }
            }
            new
        });
        run_on(0);
        unmap(&domain, gone, pages);
        let new = second.join().expect("no panic");
        count.fetch_add(usize::from(new == gone), std::sync::atomic::Ordering::Relaxed);
        drop(Arc::into_inner(domain).expect("the other thread has ended"));
        assert_eq!(host.frames_lent(), 0);
    });
    reused.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn a_page_is_handed_out_after_its_invalidation() {
    for unmap in [single as Unmap, batched] {
        // One page of a chunk, and a mapping with its own table.
        for pages in [1, TABLE - 1] {
            assert!(spent_beside_a_map(pages, unmap) > 0, "no page is handed out again in any interleaving");
        }
    }
}
