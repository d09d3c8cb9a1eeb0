//! Coherence is a property of the unit: one host serves a unit whose page walker snoops and one whose page walker does
//! not.

use crate::raw_face::{RawFace, open};
use portcullis::iommu::fake::FakeIommu;
use portcullis::mapper::{Addressing, Design, Visitor};
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{Access, Capabilities, DomainConfig, Iommu, Iova, PAGE_SIZE, PhysAddr, Protection, Segment, SourceId};
use portcullis_designs::DesignId;

const DEVICES: [SourceId; 2] = [SourceId::from_requester(8), SourceId::from_requester(16)];

/// One domain on each unit, used in turn.
struct Both<'h> {
    host: &'h FakeHost,
    units: [&'h FakeIommu<'h>; 2],
    protection: Protection,
}

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for Both<'h> {
    type Output = ();

    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) {
        let Self { host, units, protection } = self;
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 34 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(protection) };
        let domains = units.map(|unit| open::<D, _, _>(unit, host, &config).expect("a domain"));
        for (domain, device) in domains.iter().zip(DEVICES) {
            domain.attach(device).expect("a free device");
        }
        for number in 0..70 {
            for ((domain, unit), device) in domains.iter().zip(units).zip(DEVICES) {
                let phys = PhysAddr::from_pfn(0x1000 + number);
                let iova = domain.raw_map(phys, PAGE_SIZE, Access::DeviceWrites).expect("room");
                assert_eq!(unit.access(device, iova, Rights::WRITE), Some(phys), "S1");
                if number == 0 && D::INFO.addressing != Addressing::Physical {
                    // An entry of the same tables that nothing has written.
                    let absent = Iova::new(iova.as_u64() ^ 1 << 20);
                    assert_eq!(unit.access(device, absent, Rights::READ), None, "S1");
                }
                if number % 2 == 0 {
                    domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
                    let is_gone = protection == Protection::Strict && D::INFO.addressing != Addressing::Physical;
                    assert!(!is_gone || unit.access(device, iova, Rights::WRITE).is_none(), "S2");
                }
            }
        }
    }
}

#[test]
fn two_units_that_differ_serve_one_host() {
    for &design in DesignId::ALL {
        for protection in design.info().protections {
            let host = FakeHost::default();
            let all = FakeIommu::new(&host).capabilities();
            let units =
                [true, false].map(|coherent| FakeIommu::with_capabilities(&host, Capabilities { coherent, ..all }));
            design.visit(Both { host: &host, units: units.each_ref(), protection: *protection });
        }
    }
}
