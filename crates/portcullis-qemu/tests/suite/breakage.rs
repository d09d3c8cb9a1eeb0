//! Breaks the driver on purpose, one wire at a time. The suite must detect each flaw by the right checks, and these
//! checks must pass with the intact driver.

use portcullis::Access;
use portcullis::table::Entry;
use portcullis_qemu::conformance::{Check, DATA_BASE, Side, Straight, Subject, Verdict, Wiring, checks};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use std::sync::Arc;

/// A descriptor that every unit executes and that has no effect.
const HARMLESS: InvalidationDescriptor = InvalidationDescriptor::InterruptEntryCache { entries: None };

/// IOTLB invalidations are not sent.
struct SkipsPages;

impl Wiring for SkipsPages {
    fn descriptor(&self, descriptor: InvalidationDescriptor) -> InvalidationDescriptor {
        if matches!(descriptor, InvalidationDescriptor::Iotlb { .. }) { HARMLESS } else { descriptor }
    }
}

/// Context-cache invalidations are not sent.
struct SkipsContexts;

impl Wiring for SkipsContexts {
    fn descriptor(&self, descriptor: InvalidationDescriptor) -> InvalidationDescriptor {
        if matches!(descriptor, InvalidationDescriptor::ContextCache(_)) { HARMLESS } else { descriptor }
    }
}

/// Page-selective invalidations cover half of what they should.
struct HalvesMask;

impl Wiring for HalvesMask {
    fn descriptor(&self, descriptor: InvalidationDescriptor) -> InvalidationDescriptor {
        match descriptor {
            InvalidationDescriptor::Iotlb {
                scope: IotlbScope::Pages { domain, first, mask, leaf_only },
                drain_writes,
                drain_reads,
            } => {
                let scope = IotlbScope::Pages { domain, first, mask: mask.saturating_sub(1), leaf_only };
                InvalidationDescriptor::Iotlb { scope, drain_writes, drain_reads }
            }
            other => other,
        }
    }
}

/// Every page-selective invalidation has the hint that tables stay.
struct AlwaysHints;

impl Wiring for AlwaysHints {
    fn descriptor(&self, descriptor: InvalidationDescriptor) -> InvalidationDescriptor {
        match descriptor {
            InvalidationDescriptor::Iotlb {
                scope: IotlbScope::Pages { domain, first, mask, .. },
                drain_writes,
                drain_reads,
            } => {
                let scope = IotlbScope::Pages { domain, first, mask, leaf_only: true };
                InvalidationDescriptor::Iotlb { scope, drain_writes, drain_reads }
            }
            other => other,
        }
    }
}

/// Reads and writes are swapped.
struct SwapsRights;

impl Wiring for SwapsRights {
    fn access(&self, access: Access) -> Access {
        match access {
            Access::DeviceReads => Access::DeviceWrites,
            Access::DeviceWrites => Access::DeviceReads,
            both => both,
        }
    }
}

/// Every map gets all rights.
struct WidensRights;

impl Wiring for WidensRights {
    fn access(&self, _access: Access) -> Access {
        Access::DeviceReadsAndWrites
    }
}

/// The driver does not wait for the hardware.
struct IgnoresWait;

impl Wiring for IgnoresWait {
    fn is_done(&self, _done: bool) -> bool {
        true
    }
}

/// New leaves stay in the CPU's cache until something else flushes their line.
struct LateMaps;

impl Wiring for LateMaps {
    fn reaches_walker(&self, entries: &[Entry]) -> bool {
        // Leaves lead to data. Directory entries, contexts and descriptors do not.
        !entries.iter().any(|entry| entry.load().is_present() && entry.load().phys().as_u64() >= DATA_BASE)
    }
}

/// Cleared entries stay in the CPU's cache.
struct LateUnmaps;

impl Wiring for LateUnmaps {
    fn reaches_walker(&self, entries: &[Entry]) -> bool {
        entries.iter().any(|entry| entry.load_bits() != 0)
    }
}

/// Where a flaw can be seen.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    /// On the model and on QEMU.
    Everywhere,
    /// On the model only, because QEMU completes invalidations at once, sees entries that are not flushed, and caches
    /// no pointers.
    OnTheModel,
}

/// Checks that the named checks fail under the flaw and pass without it.
fn notices(flaw: impl Wiring + 'static, named: &[&str], seen: Seen) {
    let (flaw, straight): (Arc<dyn Wiring>, Arc<dyn Wiring>) = (Arc::new(flaw), Arc::new(Straight));
    let checks = checks();
    for name in named {
        let check = checks.iter().find(|check| check.name == *name).unwrap_or_else(|| panic!("no check `{name}`"));
        for side in [Side::Model, Side::Qemu] {
            assert_eq!(check.run(side, &straight), Verdict::Pass, "{name} on the {side}, whole");
            let broken = check.run(side, &flaw);
            let fails = matches!(&broken, Verdict::Fail(why) if !why.contains("could not be made"));
            let should = side == Side::Model || seen == Seen::Everywhere;
            assert_eq!(fails, should, "{name} on the {side}, broken: {broken}");
            assert!(fails || broken == Verdict::Pass, "{name} on the {side}, broken: {broken}");
        }
    }
    // The list of all checks shows the flaw too, and shows that the units are not the cause.
    let failed = failures(&checks, &flaw);
    let unit = failed.iter().filter(|check| check.subject == Subject::Unit).map(|check| check.name);
    assert_eq!(unit.collect::<Vec<_>>(), Vec::<&str>::new(), "checks of the unit do not use the driver");
    let failed: Vec<_> = failed.iter().map(|check| check.name).collect();
    println!("{} checks fail on the model: {}", failed.len(), failed.join(", "));
    assert!(named.iter().all(|name| failed.contains(name)), "{failed:?}");
}

/// The checks that fail on the model.
fn failures(checks: &[Check], wiring: &Arc<dyn Wiring>) -> Vec<Check> {
    checks.iter().filter(|check| matches!(check.run(Side::Model, wiring), Verdict::Fail(_))).copied().collect()
}

#[test]
fn invalidations_of_pages_are_missed() {
    let named =
        ["unmap-revokes-a-write", "unmap-revokes-a-read", "design-stock-is-strict", "random-life-under-magazine"];
    notices(SkipsPages, &named, Seen::Everywhere);
}

#[test]
fn invalidations_of_contexts_are_missed() {
    notices(SkipsContexts, &["detach-shuts-a-device-out", "device-changes-its-domain"], Seen::Everywhere);
}

#[test]
fn a_mask_too_small_is_noticed() {
    let named = ["unmap-of-7-pages-revokes-each", "unmap-of-64-pages-revokes-each", "random-life-under-stock"];
    notices(HalvesMask, &named, Seen::Everywhere);
}

#[test]
fn a_hint_too_many_is_noticed() {
    notices(AlwaysHints, &["unmapped-tables-are-not-walked"], Seen::OnTheModel);
}

#[test]
fn swapped_rights_are_noticed() {
    let named = ["map-for-reads-is-not-written", "map-for-writes-is-not-read", "random-life-under-eiovar"];
    notices(SwapsRights, &named, Seen::Everywhere);
}

#[test]
fn widened_rights_are_noticed() {
    notices(WidensRights, &["map-for-reads-is-not-written", "map-for-writes-is-not-read"], Seen::Everywhere);
}

#[test]
fn an_ignored_wait_is_noticed() {
    let named = ["unmap-revokes-a-write", "batch-revokes-all", "design-magazine-is-strict"];
    notices(IgnoresWait, &named, Seen::OnTheModel);
}

#[test]
fn entries_visible_too_late_are_noticed() {
    notices(LateMaps, &["map-is-visible-at-once"], Seen::OnTheModel);
}

#[test]
fn entries_gone_too_late_are_noticed() {
    notices(LateUnmaps, &["unmap-revokes-a-write", "unmap-of-7-pages-revokes-each"], Seen::OnTheModel);
}

#[test]
fn the_whole_driver_passes() {
    let straight: Arc<dyn Wiring> = Arc::new(Straight);
    let failed = failures(&checks(), &straight);
    assert_eq!(failed.iter().map(|check| check.name).collect::<Vec<_>>(), Vec::<&str>::new());
}
