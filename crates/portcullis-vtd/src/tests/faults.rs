use super::bring_up;
use super::fake_unit::*;
use super::host::Host;
use crate::spec::faults::{FaultReason, FaultRecord, FaultRequest, status};
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
    assert!(!unit.faults(&mut |fault| seen.push(fault)));
    assert_eq!(seen, []);

    // Registers 2, 3 and 0 are in use, in this order.
    fake.with(|state| {
        for (number, index) in [(1, 2), (2, 3), (3, 0)] {
            state.records.insert(0x220 + 16 * index, record(number).encode());
        }
        state.faults = status::with_first_record(status::OVERFLOW, 2);
    });
    assert!(unit.faults(&mut |fault| seen.push(fault)), "some were lost");
    assert_eq!(seen, [record(1), record(2), record(3)]);
    assert_eq!(fake.with(|state| state.faults & status::OVERFLOW), 0);
    seen.clear();
    assert!(!unit.faults(&mut |fault| seen.push(fault)));
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
    assert!(unit.faults(&mut |_| {
        seen += 1;
        refill();
    }));
    assert_eq!(seen, 4);
}
