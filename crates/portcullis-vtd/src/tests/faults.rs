use super::fake_unit::*;
use super::host::Host;
use super::{CONFIG, bring_up};
use crate::spec::faults::{FaultReason, FaultRecord, FaultRequest, status};
use crate::spec::registers::*;
use crate::{BringUpError, RegisterError, Unit};
use portcullis::Iova;
use portcullis::iommu::SourceId;

fn record(number: u64) -> FaultRecord {
    FaultRecord {
        source: SourceId::new(0, 3, 0),
        page: Iova::from_pfn(number),
        request: FaultRequest::Write,
        reason: FaultReason::NoWrite,
    }
}

#[test]
fn faults_come_oldest_first_and_are_cleared() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_nfr(3), EXTENDED);
    let unit = bring_up(&fake, &host);
    let mut seen = Vec::new();
    assert_eq!(unit.faults(&mut |fault| seen.push(fault)), Ok(false));
    assert_eq!(seen, []);

    // Registers 2, 3 and 0 are in use, in this order.
    fake.with(|state| {
        for (number, index) in [(1, 2), (2, 3), (3, 0)] {
            state.records.insert(0x220 + 16 * index, record(number).encode());
        }
        state.faults = status::with_first_record(status::OVERFLOW, 2);
    });
    assert_eq!(unit.faults(&mut |fault| seen.push(fault)), Ok(true), "some were lost");
    assert_eq!(seen, [record(1), record(2), record(3)]);
    assert_eq!(fake.with(|state| state.faults & status::OVERFLOW), 0);
    seen.clear();
    assert_eq!(unit.faults(&mut |fault| seen.push(fault)), Ok(false));
    assert_eq!(seen, []);
}

#[test]
fn a_storm_takes_no_more_than_there_are_registers() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_nfr(3), EXTENDED);
    let unit = bring_up(&fake, &host);
    let refill = || {
        fake.with(|state| {
            for index in 0..4 {
                state.records.insert(0x220 + 16 * index, record(9).encode());
            }
            state.faults |= status::OVERFLOW;
        });
    };
    refill();
    let mut seen = 0;
    // The device faults again before each fault is handled.
    let lost = unit.faults(&mut |_| {
        seen += 1;
        refill();
    });
    assert_eq!((seen, lost), (4, Ok(true)));
}

/// All ones look like faults of every kind. The unit goes before the status is read, or between two records.
#[test]
fn a_unit_that_is_gone_reports_no_faults() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_nfr(3), EXTENDED);
    let unit = bring_up(&fake, &host);
    for index in 0..4 {
        fake.with(|state| state.records.insert(0x220 + 16 * index, record(u64::from(index)).encode()));
    }
    let mut seen = Vec::new();
    let polled = unit.faults(&mut |fault| {
        seen.push(fault);
        fake.with(|state| state.gone = true);
    });
    assert_eq!((polled, seen), (Err(RegisterError::Gone { offset: 0x238 }), vec![record(0)]));
    assert_eq!(unit.faults(&mut |fault| panic!("{fault:?}")), Err(RegisterError::Gone { offset: FSTS }));
}

/// Firmware may have faults written to a log in memory. The recording registers then stay empty.
#[test]
fn the_fault_log_of_firmware_is_turned_off() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    fake.with(|state| state.status = global::ADVANCED_FAULTS | global::COMPATIBILITY_INTERRUPTS);
    let unit = bring_up(&fake, &host);
    let expected = global::TRANSLATION | global::QUEUED_INVALIDATION | global::COMPATIBILITY_INTERRUPTS;
    assert_eq!(fake.with(|state| state.status & !global::ROOT_TABLE), expected);
    drop(unit);
    // One that does not go off is an error, and nothing was shown to the unit.
    let fake = FakeUnit::new(&host);
    fake.with(|state| (state.status, state.stuck) = (global::ADVANCED_FAULTS, global::ADVANCED_FAULTS));
    let error = RegisterError::Timeout { offset: GSTS, limit_us: CONFIG.wait_us_max };
    assert_eq!(Unit::bring_up(&fake, &host, CONFIG).err(), Some(BringUpError::Register(error)));
    assert_eq!(fake.with(|state| state.root), 0);
}
