//! The driver against a software unit that can misbehave. There is one file for each subject, which makes more files
//! than in other folders.

mod bring_up;
mod domains;
mod every_unit;
mod fake_unit;
mod faults;
mod foreign;
mod full_ring;
mod gathering;
mod halts;
mod handover;
mod host;
mod inherits;
mod locked;
mod long_submissions;
mod memory;
mod merging;
mod panics;
mod queue;
mod recovery;
mod reused_slots;
mod rings;
mod segments;
mod shared_commits;
mod strict_host;
mod units;

use crate::queue::ERRORS_US;
use crate::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use crate::{Discipline, Interrupts, Unit, UnitConfig};
use fake_unit::FakeUnit;
use host::Host;
use portcullis::iommu::{AttachError, DomainId, Invalidation, Iommu, QueueError, Translation};
use portcullis::{Iova, Platform};

/// Physical addresses of 46 bits, and hardware that is given little time.
const CONFIG: UnitConfig = UnitConfig {
    physical_bits: 46,
    wait_us_max: 50,
    leaf_only_hint: true,
    merge_min: None,
    segment: 0,
    discipline: Discipline::Combining,
    flushes_writes: false,
    interrupts: Interrupts::Unused,
};

type Driver<'a> = Unit<&'a FakeUnit<'a>, &'a Host>;

/// The time limit of the units that [`bring_up`] brings up.
const WAIT_US_MAX: u64 = 1000;

fn bring_up<'a>(fake: &'a FakeUnit<'a>, host: &'a Host) -> Driver<'a> {
    bring_up_merging(fake, host, None)
}

fn bring_up_merging<'a>(fake: &'a FakeUnit<'a>, host: &'a Host, merge_min: Option<u8>) -> Driver<'a> {
    let config = UnitConfig { wait_us_max: WAIT_US_MAX, merge_min, ..UnitConfig::default() };
    let unit = Unit::bring_up(fake, host, config).expect("a sound unit");
    fake.take_executed();
    host.take_steps();
    unit
}

/// [`Iommu::open_domain`] for tables that do not exist.
fn open<I: Iommu>(iommu: &I, translation: Translation) -> Result<DomainId, AttachError> {
    // SAFETY: no memory is behind the fake unit.
    unsafe { iommu.open_domain(translation) }
}

/// [`Iommu::close_domain`].
fn close<I: Iommu>(iommu: &I, domain: DomainId) -> Result<(), AttachError> {
    // SAFETY: as above.
    unsafe { iommu.close_domain(domain) }
}

/// The page-selective command for one page.
fn page(domain: u16, pfn: u64) -> Invalidation {
    Invalidation::Pages { domain: DomainId(domain), first: Iova::from_pfn(pfn), mask: 0, leaf_only: true }
}

/// The descriptor that the driver must make of [`page`].
fn page_descriptor(domain: u16, pfn: u64) -> InvalidationDescriptor {
    pages_descriptor(domain, pfn, 0)
}

/// The same for 2^`mask` pages.
fn pages_descriptor(domain: u16, pfn: u64, mask: u8) -> InvalidationDescriptor {
    let scope = IotlbScope::Pages { domain: DomainId(domain), first: Iova::from_pfn(pfn), mask, leaf_only: true };
    InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true }
}

/// Lets so much time pass that the next poll looks for errors of the queue.
fn pass_time(host: &Host) {
    host.fake.advance_us(u64::from(ERRORS_US));
}

/// Waits as a user of the driver does.
fn finish<I: Iommu>(iommu: &I, host: &Host, ticket: I::Ticket) -> Result<(), QueueError> {
    for _ in 0..100 {
        if iommu.is_done(ticket)? {
            return Ok(());
        }
        host.pause(portcullis::platform::Wait::Invalidation);
    }
    Err(QueueError::Timeout(100))
}

fn without_waits(executed: Vec<InvalidationDescriptor>) -> Vec<InvalidationDescriptor> {
    executed.into_iter().filter(|descriptor| !matches!(descriptor, InvalidationDescriptor::Wait { .. })).collect()
}
