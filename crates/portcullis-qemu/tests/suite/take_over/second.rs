//! The second process, which takes the machine over.

use super::*;
use portcullis::iommu::{AttachError, Iommu, Translation};
use portcullis_qemu::nvme;
use portcullis_vtd::spec::faults::FaultRequest;
use portcullis_vtd::{BringUpError, TakeOver};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// The distance from what the first process has mapped to where it has mapped nothing.
const FAR: u64 = 1 << 30;
/// More domains than the first process ever had.
const DOMAINS: usize = 100;

/// Does nothing unless [`run_second`] has started it.
#[test]
fn runs_in_a_process_of_its_own() {
    let Ok(words) = std::env::var(ESTATE_VARIABLE) else { return };
    let estate = Estate::from_words(&words);
    let machine = QemuMachine::handed_over().unwrap_or_else(|error| panic!("{error}"));
    match estate.way {
        Way::Refused => refused(&machine, &estate),
        Way::Whole => whole(&machine, &estate),
        Way::CutsOff => cuts_off(&machine, &estate),
    }
}

fn take_over(machine: &Arc<QemuMachine>, from: TakeOver) -> Result<Unit<VtdMmio, QemuHost>, BringUpError> {
    let config = UnitConfig::default();
    // SAFETY: the first process does nothing with the unit until this one has ended, and its memory is left to the
    // devices.
    unsafe { Unit::take_over(VtdMmio(machine.clone()), machine.host(), config, from, |_| Ok(())) }
}

fn refused(machine: &Arc<QemuMachine>, estate: &Estate) {
    for from in [TakeOver::Never, TakeOver::Firmware] {
        let error = take_over(machine, from).err();
        assert!(matches!(error, Some(BringUpError::InUse { .. })), "{from:?}: {error:?}");
    }
    assert_eq!(machine.memory().tables_lent(), 0);
    assert!(estate.pages_in_flight(machine.memory()) > 0, "the first's devices are at work");
}

/// Waits for an action of the devices.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn whole(machine: &Arc<QemuMachine>, estate: &Estate) {
    let memory = machine.memory();
    let unit: Vtd = Arc::new(take_over(machine, TakeOver::Always).unwrap());
    assert!(estate.pages_in_flight(memory) > 0, "reads are in flight");
    is(memory, estate.edu.1, &[UNTOUCHED; EDU_BYTES], "edu waits").unwrap();
    assert_eq!(unit.inherited_devices().collect::<Vec<_>>(), [EDU, NVME]);
    println!("{GO_ON}");
    let edu = Edu::new(&machine.function(EDU)).unwrap();
    edu.finish().unwrap();
    until("reads of the first do not land", || estate.landed(memory).is_ok());
    assert_eq!(faults(&unit), [], "DMA to mappings of the first is not refused");

    // DMA to addresses that the first process has not mapped is refused, for its own memory and for ours.
    let ours = page(memory);
    let unmapped = Iova::new(estate.edu.0.as_u64() - FAR);
    for at in [unmapped, Iova::new(estate.pages[0].as_u64()), Iova::new(ours.lent().phys.as_u64())] {
        edu.store(at, EDU_BYTES).unwrap();
        let refused: Vec<_> = faults(&unit).iter().map(|fault| (fault.source, fault.page, fault.request)).collect();
        assert_eq!(refused, [(EDU, at, FaultRequest::Write)]);
    }
    is(memory, ours.lent().phys, &[UNTOUCHED; PAGE_SIZE as usize], "memory of the second").unwrap();
    estate.landed(memory).unwrap();

    // The id of its domain is not reused, and its devices are not moved while they have its translations.
    let tables = Translation::Tables { root: PhysAddr::new(0x1000), levels: 4 };
    // SAFETY: no device is attached to these domains, and the memory of a machine holds no Rust objects.
    let ids: Vec<DomainId> = (0..DOMAINS).map(|_| unsafe { unit.open_domain(tables) }.unwrap()).collect();
    assert!(!ids.contains(&estate.domain), "{ids:?}");
    // SAFETY: opened above.
    ids.iter().for_each(|id| unsafe { unit.close_domain(*id) }.unwrap());
    let domain = Magazine::open(unit.clone(), machine.host(), Protection::Strict).unwrap();
    assert_ne!(domain.id(), estate.domain);
    for device in [EDU, NVME] {
        assert_eq!(domain.attach(device), Err(AttachError::Inherited(device)));
    }

    let before = estate.snapshot(memory);
    nvme::reset(&machine.function(NVME)).unwrap();
    unit.release_inherited(NVME).unwrap();
    assert_eq!(unit.inherited_devices().collect::<Vec<_>>(), [EDU]);
    domain.attach(NVME).unwrap();
    let mut nvme = Nvme::start(&machine.function(NVME), &domain).unwrap();
    // Checks what the first process has written, and what this one writes.
    let begun = begin_reads(&mut nvme, memory, 2);
    check_reads(&mut nvme, memory, &begun);
    write_pages(&mut nvme, memory, READS + 4);
    let begun = begin_reads(&mut nvme, memory, 4);
    check_reads(&mut nvme, memory, &begun);
    assert!(nvme.stop().unwrap().is_empty(), "none was in flight");
    assert_eq!(faults(&unit), [], "DMA to mappings of the second is not refused");

    // The other device still has the translations of the first process until it is released.
    edu.store(estate.edu.0, 1).unwrap();
    assert_eq!(faults(&unit), []);
    unit.release_inherited(EDU).unwrap();
    edu.store(estate.edu.0, 1).unwrap();
    assert_eq!(faults(&unit).len(), 1, "it is shut out");
    domain.attach(EDU).unwrap();
    let target = domain.map(ours, Access::DeviceWrites).unwrap();
    edu.store(target.iova(), EDU_BYTES).unwrap();
    let ours = domain.unmap(target).unwrap();
    is(memory, ours.lent().phys, &[EDU_WRITES; EDU_BYTES], "under the second").unwrap();
    assert_eq!(estate.snapshot(memory), before, "buffers of the first were written");
    assert_eq!(faults(&unit), []);
}

fn cuts_off(machine: &Arc<QemuMachine>, estate: &Estate) {
    let memory = machine.memory();
    let unit = take_over(machine, TakeOver::Always).unwrap();
    assert!(estate.pages_in_flight(memory) > 0, "reads are in flight");
    for device in [EDU, NVME] {
        unit.release_inherited(device).unwrap();
    }
    println!("{GO_ON}");
    Edu::new(&machine.function(EDU)).unwrap().finish().unwrap();
    let mut refused = Vec::new();
    until("nothing of the drive is refused", || {
        refused.extend(faults(&unit).iter().map(|fault| (fault.source, fault.request)));
        refused.contains(&(NVME, FaultRequest::Write))
    });
    // This ends the DMA in flight.
    nvme::reset(&machine.function(NVME)).unwrap();
    assert!(refused.contains(&(EDU, FaultRequest::Write)), "{refused:?}");
    let missing = estate.landed(memory).unwrap_err();
    println!("{missing}");
    is(memory, estate.edu.1, &[UNTOUCHED; PAGE_SIZE as usize], "what edu has not written").unwrap();
    assert!(estate.pages_in_flight(memory) > 0, "what was in flight has landed");
}
