//! A unit serves the devices of one PCI segment. Its tables and its registers have only their requester ids.

use super::domains::TABLES;
use super::fake_unit::*;
use super::host::Host;
use super::inherits::left_on;
use super::open;
use crate::spec::faults::{FaultReason, FaultRecord, FaultRequest, status};
use crate::{TakeOver, Unit, UnitConfig};
use portcullis::Iova;
use portcullis::iommu::{AttachError, Iommu, SourceId};

const CONFIG: UnitConfig = UnitConfig { segment: 2, ..super::CONFIG };
const OTHER: SourceId = SourceId::new(0, 3, 0);
const DEVICE: SourceId = OTHER.in_segment(2);

#[test]
fn a_device_of_another_segment_is_refused() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = Unit::bring_up(&fake, &host, CONFIG).expect("a sound unit");
    let domain = open(&unit, TABLES).expect("an id");
    for device in [OTHER, OTHER.in_segment(3)] {
        let refused = unit.attach(domain, device);
        assert_eq!(refused, Err(AttachError::OtherSegment(device)));
        assert_eq!(fake.context(DEVICE), None, "its twin was not attached in its place");
    }
    unit.attach(domain, DEVICE).expect("a free device");
    assert_eq!(fake.context(DEVICE).map(|context| context.domain), Some(domain));
    assert_eq!(unit.detach(domain, OTHER), Err(AttachError::NotAttached(OTHER)));
    assert_eq!(fake.context(DEVICE).map(|context| context.domain), Some(domain));
    unit.detach(domain, DEVICE).expect("attached");
    assert_eq!(
        AttachError::OtherSegment(DEVICE).to_string(),
        "device 0002:00:03.0 is not on the PCI segment of this IOMMU"
    );
}

#[test]
fn faults_and_inherited_devices_have_the_segment_of_the_unit() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    left_on(&fake, &host);
    // SAFETY: no memory is behind the fake unit.
    let unit = unsafe { Unit::take_over(&fake, &host, CONFIG, TakeOver::Always, |_| Ok(())) }.expect("it was in use");
    let inherited: Vec<SourceId> = unit.inherited_devices().collect();
    assert_eq!(inherited.iter().map(|device| device.segment()).collect::<Vec<_>>(), [2; 3]);
    assert_eq!(unit.release_inherited(OTHER), Err(AttachError::NotAttached(OTHER)));
    unit.release_inherited(DEVICE).expect("inherited");

    let record = FaultRecord {
        source: DEVICE,
        page: Iova::from_pfn(1),
        request: FaultRequest::Write,
        reason: FaultReason::NoWrite,
    };
    fake.with(|state| {
        state.records.insert(0x220, record.encode());
        state.faults = status::with_first_record(0, 0);
    });
    let mut seen = Vec::new();
    assert_eq!(unit.faults(&mut |fault| seen.push(fault)), Ok(false));
    assert_eq!(seen, [record]);
}
