//! Compares the constants with literal values. The driver and a model share the constants, so without this they could
//! share an error.

use super::descriptors::*;
use super::faults::*;
use super::interrupts::*;
use super::registers::*;
use super::tables::*;
use portcullis::iommu::{DomainId, SourceId};
use portcullis::{Iova, PhysAddr};

#[test]
fn registers_are_where_the_specification_puts_them() {
    assert_eq!([VER, CAP, ECAP, GCMD, GSTS, RTADDR, CCMD], [0x0, 0x8, 0x10, 0x18, 0x1c, 0x20, 0x28]);
    assert_eq!([FSTS, FECTL, FEDATA, FEADDR, FEUADDR, PMEN], [0x34, 0x38, 0x3c, 0x40, 0x44, 0x64]);
    assert_eq!([IQH, IQT, IQA, ICS, IECTL, IEDATA, IEADDR, IEUADDR], [0x80, 0x88, 0x90, 0x9c, 0xa0, 0xa4, 0xa8, 0xac]);
    assert_eq!(global::TRANSLATION, 0x8000_0000);
    assert_eq!(global::ROOT_TABLE, 0x4000_0000);
    assert_eq!(global::WRITE_BUFFER_FLUSH, 0x0800_0000);
    assert_eq!(global::QUEUED_INVALIDATION, 0x0400_0000);
    assert_eq!(!global::ONE_SHOT, 0x96ff_ffff);
    assert_eq!([protected_memory::ENABLE, protected_memory::ENABLED], [0x8000_0000, 1]);
    assert_eq!([fault_event::MASKED, fault_event::PENDING], [0x8000_0000, 0x4000_0000]);
    assert_eq!((255 << QUEUE_INDEX_SHIFT) & QUEUE_OFFSET_MASK, 0xff0);
    assert_eq!(QUEUE_OFFSET_MASK, 0x7fff0);
}

/// The registers of QEMU's unit with 48-bit addresses.
const QEMU_CAP: Capability = Capability(0x00d2_008c_222f_0606);
const QEMU_ECAP: ExtendedCapability = ExtendedCapability(0x00f0_0f4a);

#[test]
fn capabilities_of_a_known_unit_decode() {
    assert_eq!(QEMU_CAP.domain_id_bits(), Some(16));
    assert!(!QEMU_CAP.rwbf() && !QEMU_CAP.cm() && !QEMU_CAP.zlr());
    assert_eq!(QEMU_CAP.sagaw(), widths::LEVELS_3 | widths::LEVELS_4);
    assert_eq!(QEMU_CAP.address_bits(), 48);
    assert_eq!(QEMU_CAP.sllps(), large_pages::SIZE_2M | large_pages::SIZE_1G);
    assert_eq!(QEMU_CAP.fault_record_offset(0), 0x220);
    assert_eq!(QEMU_CAP.fault_records(), 1);
    assert!(QEMU_CAP.psi() && QEMU_CAP.dwd() && QEMU_CAP.drd());
    assert_eq!(QEMU_CAP.mamv(), 18);
    assert!(QEMU_ECAP.qi() && QEMU_ECAP.pt() && QEMU_ECAP.ir());
    assert!(!QEMU_ECAP.rings() && ExtendedCapability(1 << 63).rings());
    assert!(!QEMU_ECAP.coherent() && !QEMU_ECAP.dt() && !QEMU_ECAP.sc() && !QEMU_ECAP.eim());
    assert_eq!((QEMU_ECAP.iro(), QEMU_ECAP.mhmv()), (0xf, 15));
}

#[test]
fn capabilities_are_built_to_the_same_bits() {
    let cap = Capability(0)
        .with_nd(6)
        .with_sagaw(0b110)
        .with_mgaw(47)
        .with_fro(0x22)
        .with_sllps(0b11)
        .with_psi(true)
        .with_nfr(0)
        .with_mamv(18)
        .with_dwd(true)
        .with_drd(true);
    assert_eq!(cap, QEMU_CAP);
    let ecap = ExtendedCapability(0).with_qi(true).with_ir(true).with_pt(true).with_iro(0xf).with_mhmv(15);
    assert_eq!(ecap, QEMU_ECAP);
    assert_eq!(Capability(0).with_rwbf(true).with_cm(true).with_zlr(true).0, 0x40_0090);
    assert_eq!(Capability(0).with_plmr(true).with_phmr(true).0, 0x60);
    assert_eq!(ExtendedCapability(0).with_coherent(true).with_dt(true).with_sc(true).with_eim(true).0, 0x95);
    assert_eq!(ExtendedCapability(0).with_rings(true).0, 0x8000_0000_0000_0000);
    assert_eq!(ExtendedCapability(u64::MAX).with_rings(false).0, 0x7fff_ffff_ffff_ffff);
    assert_eq!(Capability(u64::MAX).with_nd(2).with_cm(false).0, 0xffff_ffff_ffff_ff7a);
    assert_eq!(Capability(u64::MAX).domain_id_bits(), None);
    assert_eq!(Capability(0).with_nfr(7).fault_records(), 8);
    assert_eq!(Capability(0).with_fro(0x20).fault_record_offset(3), 0x230);
}

/// Every descriptor with its two quadwords, low first.
const DESCRIPTORS: [(InvalidationDescriptor, [u64; 2]); 12] = [
    (InvalidationDescriptor::ContextCache(ContextScope::Global), [0x11, 0]),
    (InvalidationDescriptor::ContextCache(ContextScope::Domain(DomainId(7))), [0x7_0021, 0]),
    (
        InvalidationDescriptor::ContextCache(ContextScope::Device {
            domain: DomainId(7),
            source: SourceId::new(0, 3, 0),
            function_mask: 2,
        }),
        [0x2_0018_0007_0031, 0],
    ),
    (InvalidationDescriptor::Iotlb { scope: IotlbScope::Global, drain_writes: true, drain_reads: true }, [0xd2, 0]),
    // Linux flushes a domain with this descriptor under lazy invalidation.
    (
        InvalidationDescriptor::Iotlb { scope: IotlbScope::Domain(DomainId(4)), drain_writes: true, drain_reads: true },
        [0x4_00e2, 0],
    ),
    // Linux flushes one page with this descriptor under strict invalidation.
    (
        InvalidationDescriptor::Iotlb {
            scope: IotlbScope::Pages { domain: DomainId(4), first: Iova::new(0xffff_8000), mask: 0, leaf_only: true },
            drain_writes: true,
            drain_reads: true,
        },
        [0x4_00f2, 0xffff_8040],
    ),
    (
        InvalidationDescriptor::Iotlb {
            scope: IotlbScope::Pages { domain: DomainId(4), first: Iova::new(0x20_0000), mask: 9, leaf_only: false },
            drain_writes: true,
            drain_reads: false,
        },
        [0x4_0072, 0x20_0009],
    ),
    (
        InvalidationDescriptor::DeviceTlb {
            source: SourceId::new(1, 0, 0),
            physical_function: SourceId::new(0xab, 25, 5),
            pending_max: 31,
            address: Iova::new(0x7fff),
            sized: true,
        },
        [0xabc0_0100_001f_d003, 0x7001],
    ),
    (InvalidationDescriptor::InterruptEntryCache { entries: None }, [0x4, 0]),
    (InvalidationDescriptor::InterruptEntryCache { entries: Some((0x1234, 3)) }, [0x1234_1800_0014, 0]),
    (
        InvalidationDescriptor::Wait {
            status: Some(StatusWrite { address: PhysAddr::new(0x9b_0c04), data: 2 }),
            interrupt: false,
            fence: false,
            drain_page_requests: false,
        },
        [0x2_0000_0025, 0x9b_0c04],
    ),
    (InvalidationDescriptor::Wait { status: None, interrupt: true, fence: true, drain_page_requests: true }, [0xd5, 0]),
];

#[test]
fn descriptors_have_the_specified_bits() {
    for (descriptor, words) in DESCRIPTORS {
        assert_eq!(descriptor.encode(), words, "{descriptor:?}");
        let decoded = InvalidationDescriptor::decode(words).expect("a descriptor that hardware takes");
        assert_eq!(decoded.encode(), words, "{descriptor:?}");
    }
    assert_eq!(InvalidationDescriptor::decode([0x4_00f2, 0xffff_8040]), Ok(DESCRIPTORS[5].0));
}

#[test]
fn every_reserved_bit_of_a_descriptor_is_refused() {
    let mut refused = 0;
    for (descriptor, words) in DESCRIPTORS {
        for bit in 0..128 {
            let mut flipped = words;
            flipped[bit / 64] ^= 1 << (bit % 64);
            match InvalidationDescriptor::decode(flipped) {
                // A bit that is not reserved must survive, or be in a field that this scope ignores.
                Ok(other) => {
                    let ignored = matches!(
                        other,
                        InvalidationDescriptor::ContextCache(_)
                            | InvalidationDescriptor::Iotlb { .. }
                            | InvalidationDescriptor::InterruptEntryCache { .. }
                            | InvalidationDescriptor::Wait { status: None, .. }
                    );
                    assert!(other.encode() == flipped || ignored, "bit {bit} of {descriptor:?} was dropped");
                }
                Err(InvalidationDescriptorError::Reserved { low, high }) => {
                    assert_eq!([low, high], flipped);
                    refused += 1;
                }
                Err(InvalidationDescriptorError::Type(_) | InvalidationDescriptorError::Granularity(_)) => {}
            }
        }
    }
    // The number of reserved bits, without the three bits that extend the type, of 3 context-cache, 4 IOTLB, 1
    // device-TLB, 2 interrupt-entry and 2 wait descriptors.
    let each = [3 * (21 + 64), 4 * (37 + 5), 16 + 11, 2 * (35 + 64), 2 * (21 + 2)];
    assert!(refused >= each.iter().sum::<usize>(), "{refused} bits refused");
    assert_eq!(InvalidationDescriptor::decode([0x4_0002, 0]), Err(InvalidationDescriptorError::Granularity(0x4_0002)));
    assert_eq!(InvalidationDescriptor::decode([0, 0]), Err(InvalidationDescriptorError::Type(0)));
    assert_eq!(InvalidationDescriptor::decode([0x202, 0]), Err(InvalidationDescriptorError::Type(0x12)));
    assert_eq!(
        InvalidationDescriptor::decode([0x10f2, 0]),
        Err(InvalidationDescriptorError::Reserved { low: 0x10f2, high: 0 })
    );
}

#[test]
fn root_and_context_entries_have_the_specified_bits() {
    let root = RootEntry { context_table: PhysAddr::new(0x12_3000) };
    assert_eq!(root.encode(), [0x12_3001, 0]);
    assert_eq!(RootEntry::decode([0x12_3001, 0]), Ok(Some(root)));
    assert_eq!(RootEntry::decode([0x12_3000, 0]), Ok(None));
    assert!(RootEntry::decode([0x12_3003, 0]).is_err());
    assert!(RootEntry::decode([0x12_3001, 1]).is_err());

    let context = ContextEntry {
        faults_disabled: false,
        translation_type: TranslationType::Untranslated,
        table: PhysAddr::new(0x45_6000),
        levels: 4,
        domain: DomainId(7),
    };
    assert_eq!(context.encode(), [0x45_6001, 0x702]);
    assert_eq!(ContextEntry::decode([0x45_6001, 0x702]), Ok(Some(context)));
    let through = ContextEntry {
        faults_disabled: true,
        translation_type: TranslationType::PassThrough,
        table: PhysAddr::new(0),
        levels: 3,
        domain: DomainId(0xffff),
    };
    assert_eq!(through.encode(), [0xb, 0xff_ff01]);
    assert_eq!(ContextEntry::decode([0xb, 0xff_ff01]), Ok(Some(through)));
    assert_eq!(ContextEntry::decode([0xa, 0xff_ff01]), Ok(None));
    assert!(ContextEntry::is_fault_disabled(0xa));
    let rings = ContextEntry { faults_disabled: false, translation_type: TranslationType::Rings, levels: 4, ..context };
    assert_eq!(rings.encode(), [0x45_600d, 0x702]);
    assert_eq!(ContextEntry::decode([0x45_600d, 0x702]), Ok(Some(rings)));
    assert!(ContextEntry::decode([0x11, 2]).is_err());
    assert!(ContextEntry::decode([0x1, 0x82]).is_err(), "bit 71 is reserved");
    assert!(ContextEntry::decode([0x1, 0x7a]).is_ok(), "bits 70:67 are for software");
    assert!(ContextEntry::decode([0x1, 1 << 24]).is_err());
    assert_eq!((root_index(SourceId::new(0x12, 0, 3)), context_index(SourceId::new(0x12, 0, 3))), (0x12, 3));
}

#[test]
fn fault_records_have_the_specified_bits() {
    let record = FaultRecord {
        source: SourceId::new(0, 3, 0),
        page: Iova::new(0x7f12_3456_7000),
        request: FaultRequest::Write,
        reason: FaultReason::NoWrite,
    };
    assert_eq!(record.encode(), [0x7f12_3456_7000, 0x8000_0005_0000_0018]);
    assert_eq!(FaultRecord::decode([0x7f12_3456_7000, 0x8000_0005_0000_0018]), Some(record));
    assert_eq!(FaultRecord::decode([0x7f12_3456_7000, 0x0000_0005_0000_0018]), None);
    let read = FaultRecord { request: FaultRequest::Read, reason: FaultReason::NoRead, ..record };
    assert_eq!(read.encode()[1], 0xc000_0006_0000_0018);
    let atomic = FaultRecord { request: FaultRequest::Atomic, ..record };
    assert_eq!(atomic.encode()[1], 0xc000_0005_1000_0018);
    for request in [FaultRequest::Write, FaultRequest::Page, FaultRequest::Read, FaultRequest::Atomic] {
        let record = FaultRecord { request, ..record };
        assert_eq!(FaultRecord::decode(record.encode()), Some(record));
    }
    for code in 0..=u8::MAX {
        assert_eq!(FaultReason::from_code(code).code(), code);
    }
    assert_eq!(FaultReason::from_code(2), FaultReason::ContextNotPresent);
    assert_eq!(FaultReason::from_code(12), FaultReason::EntryReserved);
    // The names of Linux's tables for these codes (drivers/iommu/intel/dmar.c), in our words.
    assert_eq!(FaultReason::from_code(0x26), FaultReason::InterruptSource);
    assert_eq!(FaultReason::from_code(0x71), FaultReason::FirstLevelNotPresent);
    assert_eq!(FaultReason::from_code(0x87), FaultReason::ScalableInterruptRange);
    for unnamed in [0, 0x1f, 0x28, 0x30, 0x6f, 0x7d, 0x88, 0xff] {
        assert_eq!(FaultReason::from_code(unnamed), FaultReason::Other(unnamed));
    }
    assert_eq!(record.interrupt_index(), None);
    let interrupt = FaultRecord { page: Iova::new(0x0123 << 48), reason: FaultReason::InterruptSource, ..record };
    assert_eq!(FaultRecord::decode(interrupt.encode()), Some(interrupt));
    assert_eq!(interrupt.interrupt_index(), Some(0x123));
    assert_eq!([status::OVERFLOW, status::PENDING], [1, 2]);
    assert_eq!(status::QUEUE_ERRORS, 0x70);
    assert_eq!(status::QUEUE_ERROR, 0x10);
    assert_eq!(status::TIMEOUT_ERROR, 0x40);
    assert_eq!(status::first_record(0x0302), 3);
    assert_eq!(status::with_first_record(0x0302, 9), 0x0902);
}

#[test]
fn interrupt_entries_and_requests() {
    let interrupt = Interrupt { vector: 0x41, destination: 0x1234_5678 };
    let source = SourceId::new(3, 2, 1);
    let of_device = Validation::Source { source, ignored: 2 };
    for validation in [Validation::None, of_device, Validation::Buses { first: 3, last: 5 }] {
        let entry = InterruptEntry { interrupt, validation };
        assert_eq!(InterruptEntry::decode(entry.encode()), Ok(entry));
    }
    let entry = InterruptEntry { interrupt, validation: of_device };
    assert_eq!(entry.encode(), [0x1234_5678_0041_0001, 0x0006_0311]);
    assert_eq!(InterruptEntry::decode([0, 0]), Err(InterruptEntryError::NotPresent));
    // Bit 15: posted. Validation 3 and what lies above it: reserved.
    for words in [[0x8001, 0], [0x0100_0001, 0], [1, 3 << 18], [1, 1 << 20]] {
        assert_eq!(InterruptEntry::decode(words), Err(InterruptEntryError::Reserved));
    }
    let admitted =
        |validation: Validation| (0..8).map(move |function| validation.admits(SourceId::new(3, 2, function)));
    for (ignored, admits) in [(0, [1].as_slice()), (1, &[1, 5]), (2, &[1, 3, 5, 7]), (3, &[0, 1, 2, 3, 4, 5, 6, 7])] {
        let found = admitted(Validation::Source { source, ignored });
        let expected = (0..8).map(|function| admits.contains(&function));
        assert!(found.eq(expected), "SQ {ignored}");
    }
    let buses = Validation::Buses { first: 3, last: 5 };
    assert!([2, 3, 5, 6].map(|bus| buses.admits(SourceId::new(bus, 0, 0))) == [false, true, true, false]);

    for index in [0, 1, 0x7fff, 0x8000, 0xffff] {
        let (address, data) = InterruptRequest::remappable(index);
        let request = InterruptRequest::Remappable { index: index.into(), is_malformed: false };
        assert_eq!(InterruptRequest::decode(address, data), Some(request));
    }
    let compatibility = InterruptRequest::Compatibility(Interrupt { vector: 0x22, destination: 7 });
    assert_eq!(InterruptRequest::decode(0xfee0_7000, 0x122), Some(compatibility));
    assert_eq!([0xfed0_0000, 0x1_fee0_0000].map(|address| InterruptRequest::decode(address, 0)), [None; 2]);
}
