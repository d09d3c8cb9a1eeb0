//! From the tables that QEMU provides to a working unit: their contents, the devices that the unit serves, and the
//! effect of reserved regions.

#[path = "../../examples/bring_up.rs"]
mod bring_up;

use portcullis::designs::{Magazine, Static};
use portcullis::{Access, DomainConfig, Iova, IovaRange, Open, PAGE_SIZE, PhysAddr, Protection, Segment, SourceId};
use portcullis_qemu::edu::Edu;
use portcullis_qemu::{Accelerator, GuestBuffer, QemuMachine, QemuSetup, VTD_BASE, VtdMmio, acpi_tables, find_table};
use portcullis_vtd::Unit;
use portcullis_vtd::dmar::{Dmar, ScopeKind};
use portcullis_vtd::spec::faults::FaultReason;
use std::sync::Arc;

const EDU: SourceId = SourceId::from_requester(3 << 3);

fn start(accelerator: Accelerator) -> Arc<QemuMachine> {
    QemuMachine::start(QemuSetup::new(accelerator).device("edu,addr=3,dma_mask=0xffffffffffffffff")).unwrap()
}

#[test]
fn the_example_runs() {
    bring_up::main().unwrap();
}

#[test]
fn the_tables_are_whole() {
    for accelerator in [Accelerator::Jumping, Accelerator::Stopped] {
        let machine = start(accelerator);
        let tables = acpi_tables(&machine).unwrap();
        for signature in [b"DSDT", b"FACP", b"APIC", b"DMAR"] {
            let table = find_table(&tables, *signature).unwrap();
            assert_eq!(
                table.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)),
                0,
                "{}",
                signature.escape_ascii()
            );
            assert_eq!(&table[10..14], b"BOCH");
        }
        assert_eq!(find_table(&tables, *b"FACS").unwrap().len(), 64);
        assert_eq!(find_table(&tables, *b"IVRS"), None);
        assert_eq!(acpi_tables(&machine).unwrap(), tables, "the second reading");
    }
}

#[test]
fn a_table_is_found_by_its_length_or_not_at_all() {
    let table = |signature: &[u8; 4], length: u32, bytes: usize| {
        let mut table = [&signature[..], &length.to_le_bytes()].concat();
        table.resize(bytes, 0xee);
        table
    };
    let tables = [table(b"FACS", 8, 8), table(b"AAAA", 40, 40), table(b"DMAR", 48, 48)].concat();
    assert_eq!(find_table(&tables, *b"DMAR"), Some(&tables[48..]));
    assert_eq!(find_table(&tables, *b"AAAA"), Some(&tables[8..48]));
    assert_eq!(find_table(&tables[..95], *b"DMAR"), None, "cut short");
    assert_eq!(find_table(&tables[1..], *b"DMAR"), None);
    for length in [0, 7, 200, u32::MAX] {
        let tables = [table(b"AAAA", length, 40), table(b"DMAR", 48, 48)].concat();
        assert_eq!(find_table(&tables, *b"DMAR"), None, "a length of {length} leads nowhere");
    }
    assert_eq!(find_table(&[], *b"DMAR"), None);
}

#[test]
fn the_table_describes_the_machine() {
    for bits in [39, 48] {
        let machine =
            QemuMachine::start(QemuSetup::new(Accelerator::Stopped).address_bits(bits).device("edu,addr=3")).unwrap();
        let tables = acpi_tables(&machine).unwrap();
        let dmar = Dmar::parse(find_table(&tables, *b"DMAR").unwrap()).unwrap();
        assert_eq!(dmar.host_address_bits(), bits);
        let unit = dmar.unit_for(0, EDU, |_| None).unwrap();
        assert_eq!((unit.segment, unit.register_base, unit.register_bytes), (0, PhysAddr::new(VTD_BASE), PAGE_SIZE));
        assert_eq!(unit.scopes.iter().filter(|scope| scope.kind == ScopeKind::IoApic).count(), 1);
        assert_eq!(dmar.reserved_regions().count(), 0);
    }
}

#[test]
fn a_device_behind_a_bridge_is_found_once_its_bus_has_a_number() {
    let setup = QemuSetup::new(Accelerator::Stopped).device("pcie-root-port,id=above,addr=4").device("edu,bus=above");
    let machine = QemuMachine::start(setup).unwrap();
    let tables = acpi_tables(&machine).unwrap();
    let dmar = Dmar::parse(find_table(&tables, *b"DMAR").unwrap()).unwrap();
    let (port, behind) = (SourceId::from_requester(4 << 3), SourceId::from_requester(7 << 8));
    let served = |source| dmar.unit_for(0, source, |bridge| bring_up::buses_behind(&machine, bridge)).is_some();
    assert_eq!([port, behind, EDU].map(served), [true, false, false]);
    // Primary 0, secondary 7, subordinate 9.
    machine.function(port).write(0x18, 0x0009_0700);
    assert_eq!(machine.function(behind).identity(), portcullis_qemu::edu::IDENTITY);
    assert_eq!(
        [port, behind, SourceId::from_requester(9 << 8), SourceId::from_requester(10 << 8)].map(served),
        [true, true, true, false]
    );
}

/// The last 64 KiB of memory, which these tests do not use for buffers.
const REGION: Segment = Segment { phys: PhysAddr::new(0x0fff_0000), len: 0x1_0000 };

/// The machine's table with a region reserved for the edu device, as firmware of real machines has them.
fn with_region(machine: &QemuMachine) -> Vec<u8> {
    let tables = acpi_tables(machine).unwrap();
    let mut table = find_table(&tables, *b"DMAR").unwrap().to_vec();
    table.extend([1, 0, 32, 0, 0, 0, 0, 0]);
    table.extend(REGION.phys.as_u64().to_le_bytes());
    table.extend((REGION.phys.as_u64() + REGION.len - 1).to_le_bytes());
    table.extend([1, 8, 0, 0, 0, 0, 3, 0]);
    table[4] += 32;
    table[9] = table[9].wrapping_sub(table.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
    table
}

#[test]
fn a_reserved_region_keeps_its_addresses_or_leads_to_itself() {
    let machine = start(Accelerator::Jumping);
    let memory = machine.memory().clone();
    let table = with_region(&machine);
    let dmar = Dmar::parse(&table).unwrap();
    let regions: Vec<IovaRange> = dmar.reserved_for(0, EDU, |_| None).collect();
    let [region] = regions[..] else { panic!("{regions:?}") };
    let unit = Unit::bring_up(VtdMmio(machine.clone()), machine.host(), portcullis_vtd::UnitConfig::default()).unwrap();
    let edu = Edu::new(&machine.function(EDU)).unwrap();
    let at = Iova::new(REGION.phys.as_u64() + 0x123);
    let reaches = |domain_is: &str| {
        memory.write(REGION.phys, &[0x5a; 0x200]);
        edu.store(at, 4).unwrap();
        let mut landed = [0; 4];
        memory.read(PhysAddr::new(at.as_u64()), &mut landed);
        let mut faults = Vec::new();
        unit.faults(&mut |fault| faults.push((fault.page.pfn(), fault.reason))).unwrap();
        assert_eq!(faults.is_empty(), landed == [0; 4], "{domain_is}: {faults:?}");
        faults.pop()
    };
    // The device is not attached yet.
    assert_eq!(reaches("no domain"), Some((at.pfn(), FaultReason::RootNotPresent)));

    // While it waits for its driver, the device reaches the region and nothing else.
    let segments = [Segment { phys: PhysAddr::new(region.start().as_u64()), len: region.pages() * PAGE_SIZE }];
    assert_eq!(segments, [REGION]);
    let config = DomainConfig { memory: &segments, ..DomainConfig::new(Protection::None) };
    // SAFETY: the memory of a machine holds no Rust objects.
    let waiting = unsafe { Static::open_unprotected(&unit, machine.host(), &config) }.unwrap();
    waiting.attach(EDU).unwrap();
    assert_eq!(reaches("the region alone"), None);
    edu.store(Iova::new(REGION.phys.as_u64() - PAGE_SIZE), 4).unwrap();
    let mut faults = 0;
    unit.faults(&mut |_| faults += 1).unwrap();
    assert_eq!(faults, 1, "beside the region");
    waiting.detach(EDU).unwrap();

    // With its driver. The domain is so narrow that the first address would come from the region.
    let reserved: [IovaRange; 1] = [region];
    let first = |reserved: &[IovaRange]| {
        let config = DomainConfig { address_bits: 28, reserved, ..DomainConfig::new(Protection::Strict) };
        let domain = Magazine::open_with(&unit, machine.host(), &config).unwrap();
        domain.attach(EDU).unwrap();
        let mapping = domain.map(GuestBuffer::new(&memory, 1).unwrap(), Access::DeviceWrites).unwrap();
        let pfn = mapping.iova().pfn();
        // DMA that firmware would still make the device do there is refused.
        let there = (pfn != at.pfn()).then(|| reaches("its driver's domain"));
        domain.unmap(mapping).unwrap();
        (region.contains(pfn), there)
    };
    assert!(first(&[]).0, "without the table it would be handed out (S9)");
    assert_eq!(first(&reserved), (false, Some(Some((at.pfn(), FaultReason::NoWrite)))));
}
