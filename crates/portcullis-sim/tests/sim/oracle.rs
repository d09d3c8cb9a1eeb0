//! Compares the model's `qemu` preset with QEMU's own logs: it hits and misses where they say. Any other preset, and
//! any changed log, must differ.

use portcullis::table::EntryValue;
use portcullis::{Iova, PhysAddr};
use portcullis_model::{Parameters, Replacement};
use portcullis_sim::oracle::{Agreement, Answer, Disagreement, OracleError, replay};
use portcullis_trace::{AccessLog, LogEvent};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use portcullis_vtd::spec::faults::FaultReason;
use std::collections::BTreeMap;
use std::path::Path;

const RECEIVING: &str = "q-e1000e-rx.strict.2cpu";
const SENDING: &str = "q-e1000e-tx.lazy.2cpu";
const DISK: &str = "q-nvme-randread4k.strict.2cpu";

fn bundled(name: &str) -> AccessLog {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../traces").join(format!("{name}.qemu.xz"));
    AccessLog::read(&path, |_| ()).unwrap()
}

fn against_qemu(log: &AccessLog) -> Agreement {
    replay(log, &Parameters::qemu()).unwrap()
}

fn sized(iotlb_entries: u32) -> Parameters {
    Parameters { iotlb_entries, ..Parameters::qemu() }
}

fn count(log: &AccessLog, of: impl Fn(&LogEvent) -> bool) -> u64 {
    log.events.iter().filter(|event| of(event)).count() as u64
}

/// Checks that every access and every descriptor of the log has gone through the model.
fn is_whole(agreement: &Agreement, log: &AccessLog) {
    let counters = &agreement.counters;
    assert_eq!(agreement.accesses, count(log, |event| matches!(event, LogEvent::Access { .. })));
    assert_eq!(agreement.logged_hits, count(log, |event| matches!(event, LogEvent::Access { hit: true, .. })));
    assert_eq!(counters.descriptors, count(log, |event| matches!(event, LogEvent::Descriptor { .. })));
    assert_eq!(counters.lookups, agreement.accesses);
    assert_eq!((counters.iotlb_joined, counters.faults, counters.walks_into_freed), (0, 0, 0));
}

#[test]
fn every_access_of_the_lazy_log() {
    let log = bundled(SENDING);
    let agreement = against_qemu(&log);
    is_whole(&agreement, &log);
    assert_eq!(agreement.first, []);
    assert_eq!((agreement.disagreements, agreement.percent()), (0, 100.0));
    assert_eq!(agreement.counters.iotlb_hits, agreement.logged_hits);
    assert!(agreement.logged_hits > 10_000 && agreement.accesses - agreement.logged_hits > 10_000);
}

#[test]
fn nearly_every_access_of_the_strict_logs() {
    // How often QEMU walked although its IOTLB should have held the page: it also drops pages that are equal modulo
    // 256.
    for (name, disagreements) in [(RECEIVING, 28), (DISK, 0)] {
        let log = bundled(name);
        let agreement = against_qemu(&log);
        is_whole(&agreement, &log);
        assert!(agreement.percent() >= 99.0, "{name}: {} %", agreement.percent());
        assert_eq!(agreement.disagreements, disagreements, "{name}");
        // QEMU loses an entry from time to time. The model never misses where QEMU hits.
        assert_eq!(agreement.counters.iotlb_hits - agreement.logged_hits, agreement.disagreements, "{name}");
        for Disagreement { logged, found, .. } in agreement.first {
            let (Answer::Walk(logged), Answer::Hit(found)) = (logged, found) else { panic!("{logged}, {found}") };
            assert_eq!(logged, found, "{name}");
        }
        assert!(agreement.counters.invalidations_page > 7000, "{name}");
    }
}

/// The events at which a simple IOTLB, as described in the README of the traces, answers otherwise than the log. A
/// page-selective invalidation drops the pages with its number, ignoring the low bits that the address mask gives.
/// Only the bits in `compared` are compared.
fn plainly(log: &AccessLog, entries: usize, compared: u64) -> Vec<usize> {
    let mut cached = BTreeMap::new();
    let mut differ = Vec::new();
    for (index, event) in log.events.iter().enumerate() {
        match *event {
            LogEvent::Descriptor { qw0, qw1 } if qw0 & 0xf == 2 => match qw0 >> 4 & 3 {
                1 => cached.clear(),
                2 => cached.retain(|_, domain| u64::from(*domain) != qw0 >> 16 & 0xffff),
                _ => {
                    let mask = u64::MAX << (qw1 & 0x3f) & compared;
                    cached.retain(|(_, page), _| (page ^ qw1 >> 12) & mask != 0);
                }
            },
            LogEvent::Descriptor { .. } => {}
            LogEvent::Access { source, domain, hit, iova, .. } => {
                let key = (source, iova.pfn());
                let found = cached.contains_key(&key);
                if !found && cached.len() == entries {
                    cached.clear();
                }
                cached.insert(key, domain);
                if found != hit {
                    differ.push(index);
                }
            }
        }
    }
    differ
}

#[test]
fn a_plain_model_differs_where_the_model_does() {
    for name in [RECEIVING, SENDING, DISK] {
        let log = bundled(name);
        for entries in [1024, 512, 64] {
            let agreement = replay(&log, &sized(entries)).unwrap();
            let plain = plainly(&log, entries as usize, u64::MAX);
            assert_eq!(agreement.disagreements, plain.len() as u64, "{name}, {entries} entries");
            let first: Vec<_> = agreement.first.iter().map(|disagreement| disagreement.event).collect();
            assert_eq!(first, plain[..first.len()], "{name}, {entries} entries");
        }
    }
}

/// QEMU 7.2 keeps the mask of a page-selective invalidation in 8 bits, so it drops pages whose numbers are equal
/// modulo 256. This is the only difference between the strict logs and the model. Dropping too much is allowed, so the
/// model need not do it.
#[test]
fn what_qemu_loses_it_loses_to_a_mask_of_8_bits() {
    for name in [RECEIVING, SENDING, DISK] {
        assert_eq!(plainly(&bundled(name), 1024, 0xff).len(), 0, "{name}");
    }
    assert!(!plainly(&bundled(RECEIVING), 1024, 0x1ff).is_empty(), "not to one of 9 bits");
}

#[test]
fn half_as_many_entries_show() {
    let log = bundled(SENDING);
    let half = replay(&log, &sized(512)).unwrap();
    is_whole(&half, &log);
    assert!(half.disagreements > 0, "an IOTLB of 512 entries cannot do what the log shows");
    assert_eq!(half.first.len() as u64, half.disagreements.min(16));
    for disagreement in &half.first {
        let Disagreement { logged: Answer::Hit(logged), found: Answer::Walk(found), .. } = *disagreement else {
            panic!("{disagreement}");
        };
        assert_eq!(logged, found, "what was emptied too early is walked for again, and found");
    }
    // The most entries that the log ever caches between two flushes.
    let around = [572, 574].map(|entries| replay(&log, &sized(entries)).unwrap().disagreements > 0);
    assert_eq!(around, [true, false]);
    let smaller = [256, 128, 0].map(|entries| replay(&log, &sized(entries)).unwrap().disagreements);
    assert!(half.disagreements < smaller[0] && smaller.is_sorted(), "{} {smaller:?}", half.disagreements);
    assert_eq!(smaller[2], half.logged_hits, "without an IOTLB every hit of the log is a walk");
}

#[test]
fn other_hardware_shows() {
    for name in [RECEIVING, SENDING, DISK] {
        let agreement = replay(&bundled(name), &sized(8)).unwrap();
        assert!(agreement.disagreements > 100, "{name}: {}", agreement.disagreements);
    }
    let lru = Parameters { iotlb_replacement: Replacement::Lru, ..sized(16) };
    for name in [RECEIVING, SENDING, DISK] {
        let agreement = replay(&bundled(name), &lru).unwrap();
        assert!(agreement.disagreements > 100, "{name}, least recently used: {}", agreement.disagreements);
    }
}

/// The log as seen by hardware that misreads IOTLB descriptors, or ignores them.
fn misread(log: &AccessLog, read: impl Fn(IotlbScope) -> Option<IotlbScope>) -> AccessLog {
    let events = log.events.iter().filter_map(|event| {
        let LogEvent::Descriptor { qw0, qw1 } = *event else { return Some(*event) };
        match InvalidationDescriptor::decode([qw0, qw1]).unwrap() {
            InvalidationDescriptor::Iotlb { scope, drain_writes, drain_reads } => {
                let [qw0, qw1] =
                    InvalidationDescriptor::Iotlb { scope: read(scope)?, drain_writes, drain_reads }.encode();
                Some(LogEvent::Descriptor { qw0, qw1 })
            }
            _ => Some(*event),
        }
    });
    AccessLog { events: events.collect() }
}

#[test]
fn misread_descriptors_show() {
    let percent = |log: &AccessLog| against_qemu(log).percent();
    for name in [RECEIVING, SENDING, DISK] {
        let log = bundled(name);
        let same = misread(&log, Some);
        assert_eq!(same.events, log.events, "{name}: encoding gives back what was decoded");
        assert!(percent(&misread(&log, |_| None)) < 99.0, "{name}: no invalidation at all");
        let all = misread(&log, |_| Some(IotlbScope::Global));
        let elsewhere = misread(&log, |scope| match scope {
            IotlbScope::Global => Some(scope),
            IotlbScope::Domain(mut domain) => {
                domain.0 += 1;
                Some(IotlbScope::Domain(domain))
            }
            IotlbScope::Pages { mut domain, first, mask, leaf_only } => {
                domain.0 += 1;
                Some(IotlbScope::Pages { domain, first, mask, leaf_only })
            }
        });
        assert!(percent(&elsewhere) < 99.0, "{name}: another domain's invalidations");
        if name != SENDING {
            assert!(percent(&all) < 99.0, "{name}: pages taken for everything");
        }
    }
    // A third of the receive mappings have two pages. Without the address mask the second page stays cached.
    let first_page = misread(&bundled(RECEIVING), |scope| match scope {
        IotlbScope::Pages { domain, first, leaf_only, .. } => {
            Some(IotlbScope::Pages { domain, first, mask: 0, leaf_only })
        }
        other => Some(other),
    });
    assert!(percent(&first_page) < 99.0, "the address mask is ignored");
}

#[test]
fn one_wrong_line_is_found() {
    let log = bundled(SENDING);
    let changed = |at: usize, change: fn(&mut bool, &mut EntryValue)| {
        let mut log = log.clone();
        let LogEvent::Access { hit, entry, .. } = &mut log.events[at] else { panic!("no access") };
        change(hit, entry);
        let agreement = against_qemu(&log);
        assert_eq!(agreement.disagreements, 1);
        assert_eq!(agreement.first[0].event, at);
        agreement.first[0]
    };
    let is_hit = |event: &LogEvent| matches!(event, LogEvent::Access { hit: true, .. });
    let is_walk = |event: &LogEvent| matches!(event, LogEvent::Access { hit: false, .. });
    let hit = log.events.iter().rposition(is_hit).unwrap();
    let walk = log.events.iter().position(is_walk).unwrap();
    let found = changed(hit, |hit, _| *hit = false);
    assert!(matches!((found.logged, found.found), (Answer::Walk(_), Answer::Hit(_))), "{found}");
    let found = changed(walk, |hit, _| *hit = true);
    assert!(matches!((found.logged, found.found), (Answer::Hit(_), Answer::Walk(_))), "{found}");
    let found = changed(hit, |_, entry| *entry = EntryValue::from_bits(entry.bits() ^ 0x1000));
    assert!(
        matches!((found.logged, found.found), (Answer::Hit(logged), Answer::Hit(found)) if logged != found),
        "{found}"
    );
}

/// A log, written by hand.
#[derive(Default)]
struct Text(String);

impl Text {
    fn access(&mut self, hit: bool, sid: u16, iova: u64, slpte: u64, domain: u16) -> &mut Self {
        let event = if hit { "hit" } else { "update" };
        self.0 += &format!(
            "vtd_iotlb_page_{event} IOTLB page {event} sid {sid:#x} iova {iova:#x} slpte {slpte:#x} domain {domain:#x}\n"
        );
        self
    }

    fn hit(&mut self, iova: u64, slpte: u64) -> &mut Self {
        self.access(true, 0x20, iova, slpte, 4)
    }

    fn walk(&mut self, iova: u64, slpte: u64) -> &mut Self {
        self.access(false, 0x20, iova, slpte, 4)
    }

    fn descriptor(&mut self, high: u64, low: u64) -> &mut Self {
        self.0 += &format!("vtd_inv_desc invalidate desc type iotlb high {high:#x} low {low:#x}\n");
        self
    }

    /// Invalidates 2^mask pages of domain 4.
    fn pages(&mut self, iova: u64, mask: u64) -> &mut Self {
        self.descriptor(iova | 0x40 | mask, 0x400f2)
    }

    fn log(&self) -> AccessLog {
        AccessLog::read_from("log", self.0.as_bytes(), |_| ()).unwrap()
    }

    fn agreed(&self) {
        let agreement = against_qemu(&self.log());
        assert_eq!(agreement.first, [], "\n{}", self.0);
    }
}

#[test]
fn a_full_iotlb_is_emptied() {
    let page = |number: u64| (number << 12, (number + 0x8_0000) << 12 | 3);
    let mut text = Text::default();
    for number in 0..1024 {
        text.walk(page(number).0, page(number).1);
    }
    for number in 0..1024 {
        text.hit(page(number).0 + 8, page(number).1);
    }
    text.walk(page(1024).0, page(1024).1).hit(page(1024).0, page(1024).1);
    for number in (1..1024).rev() {
        text.walk(page(number).0, page(number).1);
    }
    text.hit(page(1024).0, page(1024).1).walk(page(0).0, page(0).1).walk(page(1024).0, page(1024).1);
    text.agreed();
    let lru = Parameters { iotlb_replacement: Replacement::Lru, ..Parameters::qemu() };
    assert!(replay(&text.log(), &lru).unwrap().disagreements > 1000);
}

#[test]
fn a_small_invalidation_drops_a_large_entry_whole() {
    const LARGE: u64 = 0x4020_0000 | 0x83;
    let mut text = Text::default();
    text.walk(0x8020_0000, LARGE).hit(0x803f_fff8, LARGE).pages(0x8040_0000, 0).hit(0x8020_1000, LARGE);
    text.pages(0x8021_0000, 0).walk(0x803f_f000, LARGE).hit(0x8021_0000, LARGE);
    // The range is mapped by single pages, and then by a large page again.
    text.pages(0x8020_0000, 9).walk(0x8020_1000, 0x9003).hit(0x8020_1004, 0x9003).walk(0x8020_0000, 0xa001);
    text.pages(0x8020_0000, 9).walk(0x8020_1000, LARGE).hit(0x8020_0000, LARGE);
    text.agreed();
}

#[test]
fn domains_and_devices_are_told_apart() {
    let mut text = Text::default();
    text.access(false, 0x20, 0x5000, 0xa003, 4).access(false, 0x118, 0x5000, 0xb003, 9);
    text.access(true, 0x20, 0x5008, 0xa003, 4).access(true, 0x118, 0x5008, 0xb003, 9);
    text.pages(0x5000, 0).access(true, 0x118, 0x5010, 0xb003, 9).access(false, 0x20, 0x5010, 0xa003, 4);
    text.descriptor(0, 0x900e2).access(true, 0x20, 0x5018, 0xa003, 4).access(false, 0x118, 0x5018, 0xb003, 9);
    // The device changes its domain. This takes effect once the context cache has been invalidated.
    text.descriptor(0, 0x11).access(false, 0x20, 0x5020, 0xc003, 6).access(true, 0x20, 0x5028, 0xc003, 6);
    text.agreed();
}

#[test]
fn a_stale_entry_leads_where_it_led() {
    let mut text = Text::default();
    text.walk(0x5000, 0xa003).walk(0x6000, 0xb003).pages(0x6000, 0).walk(0x6000, 0xc003).hit(0x5000, 0xa003);
    text.agreed();
    // The log walks to a new place without an invalidation that would make the model walk too.
    let agreement = against_qemu(&text.walk(0x5008, 0xd003).hit(0x5010, 0xd003).log());
    let (old, new) = (PhysAddr::new(0xa008), PhysAddr::new(0xd008));
    let event = agreement.accesses as usize - 1;
    let first = Disagreement { event, iova: Iova::new(0x5008), logged: Answer::Walk(new), found: Answer::Hit(old) };
    assert_eq!((agreement.first[0], agreement.disagreements), (first, 2));
}

#[test]
fn a_log_that_begins_later_costs_one_disagreement_a_page() {
    let mut text = Text::default();
    text.hit(0x5000, 0xa003).hit(0x5008, 0xa003).hit(0x6000, 0xb001).hit(0x6004, 0xb001);
    let agreement = against_qemu(&text.log());
    assert_eq!((agreement.disagreements, agreement.percent()), (2, 50.0));
    let told = agreement.first[0].to_string();
    assert_eq!(told, "event 0, 0x5000: the log has a hit that leads to 0xa000, the model a walk that leads to 0xa000");
}

#[test]
fn a_refused_access_is_a_disagreement() {
    let iova = 1 << 50;
    let agreement = against_qemu(&Text::default().walk(iova, 0xa003).walk(0x5000, 0xa003).log());
    assert_eq!(agreement.disagreements, 1);
    assert_eq!(agreement.first[0].found, Answer::Refused(FaultReason::AddressBeyondWidth));
    // A cached entry has fewer rights than the log shows.
    let agreement = against_qemu(&Text::default().walk(0x5000, 0xa001).hit(0x5000, 0xa003).log());
    assert_eq!(agreement.first[0].found, Answer::Refused(FaultReason::NoWrite));
}

#[test]
fn what_cannot_be_done_again_is_an_error() {
    let log = Text::default().walk(0x5000, 0xa003).descriptor(0, 0xf).log();
    let error = replay(&log, &Parameters::qemu()).unwrap_err();
    assert_eq!(error, OracleError::Descriptor { event: 1, qw0: 0xf, qw1: 0 });
    assert!(error.to_string().starts_with("event 1 of the access log: the model cannot execute"), "{error}");
    let small = Parameters { mamv: 3, ..Parameters::qemu() };
    assert!(replay(&Text::default().pages(0, 3).log(), &small).is_ok());
    assert!(matches!(
        replay(&Text::default().pages(0, 4).log(), &small),
        Err(OracleError::Descriptor { event: 0, .. })
    ));
    let impossible = Parameters { walkers: 0, ..Parameters::qemu() };
    assert!(matches!(replay(&log, &impossible), Err(OracleError::Parameters(_))));
    let none = against_qemu(&AccessLog::default());
    assert_eq!((none.accesses, none.percent()), (0, 100.0));
}
