//! Every design, with each protection that it offers, moves NVMe and e1000e traffic through QEMU's VT-d, and every
//! byte is compared. Then `edu` tries addresses that are no longer mapped.
//!
//! One machine serves all designs, one after the other: a domain is opened, its devices are attached, the traffic
//! runs, and everything is taken down again.

mod as_if_strict;
mod blocks;
mod frames;
mod parts;
mod refusals;
mod stale;

use as_if_strict::AsIfStrict;
use portcullis::iommu::SourceId;
use portcullis::mapper::{Design, Visitor};
use portcullis::{
    Access, DomainConfig, DynDomain, Iommu, Iova, NewDomainError, Open, PAGE_SIZE, PhysAddr, Protection, Rule, Segment,
};
use portcullis_designs::{DesignId, Unprotected};
use portcullis_qemu::edu::Edu;
use portcullis_qemu::{Accelerator, GuestBuffer, GuestMemory, MachineError, QemuHost, QemuMachine, QemuSetup, VtdMmio};
use portcullis_vtd::Unit;
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use std::time::Instant;

const EDU: SourceId = SourceId::from_requester(3 << 3);
const NVME: SourceId = SourceId::from_requester(5 << 3);
const NIC: SourceId = SourceId::from_requester(6 << 3);

const COMMANDS_MIN: usize = 1000;
const FRAMES_MIN: usize = 1000;
const STALE_PAGES_MIN: usize = 50;

/// The value of memory that no device has written.
const UNTOUCHED: u8 = 0xee;

type Vtd = Arc<Unit<VtdMmio, QemuHost>>;

/// The machine, and everything that outlives a domain.
struct World {
    machine: Arc<QemuMachine>,
    memory: Arc<GuestMemory>,
    host: QemuHost,
    unit: Vtd,
    edu: Edu,
    /// The contents of the drive.
    drive: Vec<u8>,
    random: Pcg64Mcg,
}

fn machine() -> Result<Arc<QemuMachine>, MachineError> {
    let drive = |path: &str| ["-blockdev".into(), format!("driver=file,node-name=drive,filename={path},locking=off")];
    // A clock that jumps, because `edu` takes time for each access. The other devices do not depend on the clock.
    let setup = QemuSetup::new(Accelerator::Jumping)
        .device("edu,addr=3,dma_mask=0xffffffffffffffff")
        .file(blocks::DRIVE_BYTES as u64, drive)?
        .device("nvme,addr=5,serial=1,drive=drive")
        .arguments(["-netdev", "hubport,id=hub,hubid=0"])
        .device("e1000e,addr=6,netdev=hub");
    QemuMachine::start(setup)
}

impl World {
    fn new() -> Self {
        let machine = machine().unwrap_or_else(|error| panic!("{error}"));
        let (memory, host) = (machine.memory().clone(), machine.host());
        let config = portcullis_vtd::UnitConfig::default();
        let unit = Arc::new(Unit::bring_up(VtdMmio(machine.clone()), host.clone(), config).unwrap());
        // A unit keeps the context table of a bus once it has one. This attach allocates it before table pages are
        // counted.
        let config = DomainConfig::new(Protection::None);
        // SAFETY: the memory of a machine holds no Rust objects.
        let first = unsafe { Unprotected::open_unprotected(unit.clone(), host.clone(), &config) }.unwrap();
        first.attach(EDU).unwrap();
        drop(first);
        let edu = Edu::new(&machine.function(EDU)).unwrap();
        let drive = vec![0; blocks::DRIVE_BYTES];
        Self { memory, host, unit, edu, drive, random: Pcg64Mcg::seed_from_u64(4), machine }
    }

    /// The faults recorded since the last call. There is one register, and QEMU adds no second fault of a source that
    /// is in it.
    fn faults(&self) -> Vec<FaultRecord> {
        let mut faults = Vec::new();
        self.unit.faults(&mut |fault| faults.push(fault)).unwrap();
        faults
    }

    /// A buffer of this number of pages.
    fn buffer(&self, pages: u64) -> GuestBuffer {
        GuestBuffer::new(&self.memory, pages).unwrap()
    }

    fn bytes(&self, at: PhysAddr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes);
        bytes
    }

    fn random_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes[..]);
        bytes
    }
}

/// The whole test of a design under one protection.
struct Run<'w> {
    world: &'w mut World,
    protection: Protection,
}

impl Visitor<QemuHost, Vtd> for Run<'_> {
    type Output = ();

    fn visit<D: Design<QemuHost, Vtd>>(self) {
        match self.protection {
            Protection::Strict => self.run::<D>(),
            Protection::Deferred => self.run::<AsIfStrict<D, true>>(),
            Protection::None => self.run::<AsIfStrict<D, false>>(),
        }
    }
}

impl Run<'_> {
    fn run<D: Design<QemuHost, Vtd>>(self) {
        let Run { world, protection } = self;
        let tables = world.memory.tables_lent();
        let memory = [Segment { phys: PhysAddr::new(0), len: world.memory.bytes() }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(Protection::Strict) };
        let domain = D::open_with(world.unit.clone(), world.host.clone(), &config).unwrap();
        // Of any design, so that drivers and tests are compiled once and not for each design.
        all(world, Box::new(domain), protection);
        assert_eq!(world.memory.tables_lent(), tables, "{}: {}: tables are lost", D::INFO.id, Rule::Teardown);
    }
}

/// The whole test of a domain.
fn all(world: &mut World, domain: Box<DynDomain>, protection: Protection) {
    let who = format!("{} {protection}", domain.info().id);
    let begun = Instant::now();
    for device in [EDU, NVME, NIC] {
        domain.attach(device).unwrap();
    }
    let commands = blocks::run(world, &domain, &who);
    assert!(commands >= COMMANDS_MIN, "{who}: {commands} commands");
    assert_eq!(world.faults(), [], "{who}: a device of this domain was refused access to its mappings");
    let frames = frames::run(world, &domain, &who);
    assert!(frames >= FRAMES_MIN, "{who}: {frames} frames");
    assert_eq!(world.faults(), [], "{who}: a device of this domain was refused access to its mappings");
    let traffic = begun.elapsed();
    let stale = stale::run(world, &domain, protection, &who);
    assert!(stale.pages >= STALE_PAGES_MIN, "{who}: {} pages", stale.pages);
    drop(domain);
    assert_eq!(world.memory.buffer_pages_lent(), 0, "{who}: {}: buffers are lost", Rule::Errors);
    assert_eq!(world.memory.small_lent(), 0, "{who}: {}: small allocations are lost", Rule::Teardown);
    println!("{who}: {commands} commands and {frames} frames in {traffic:.1?}; {stale:?}; {:.1?}", begun.elapsed());
}

/// A timer interrupt, which flushes what is due.
fn tick(world: &World, domain: &DynDomain) {
    use portcullis::Platform;
    if domain.due_us().is_some_and(|due| due <= world.host.now_us()) {
        domain.tick().unwrap();
    }
}

/// S6: the live mappings are those of `lent` buffers and of the rings, and no others.
fn assert_live(domain: &DynDomain, rings: usize, lent: usize, who: &str) {
    if !domain.info().physical_addresses() {
        assert_eq!(live(domain), rings + lent, "{who}: {}: {lent} buffers are with the device", Rule::Errors);
    }
}

/// The number of mappings that are not unmapped.
fn live(domain: &DynDomain) -> usize {
    let usage = domain.usage();
    usage.live_ranges - usage.queued_unmaps
}

/// The device may use a buffer only as its driver requested (S5). `edu`, in the same domain, tries the other
/// direction.
fn assert_one_way(world: &World, domain: &DynDomain, iova: Iova, access: Access, who: &str) {
    if domain.info().physical_addresses() {
        return;
    }
    let reason = match access {
        Access::DeviceReads => {
            world.edu.store(iova, 1).unwrap();
            FaultReason::NoWrite
        }
        _ => {
            world.edu.fetch(iova, 1).unwrap();
            FaultReason::NoRead
        }
    };
    let reasons: Vec<FaultReason> = world.faults().iter().map(|fault| fault.reason).collect();
    assert_eq!(reasons, [reason], "{who}: {}: {iova} is mapped for {access:?}", Rule::Rights);
}

/// Compares the memory at `at` with the expected bytes.
fn assert_bytes(world: &World, at: PhysAddr, expected: &[u8], what: impl FnOnce() -> String) {
    let found = world.bytes(at, expected.len());
    if let Some(wrong) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
        let (found, expected) = (found[wrong], expected[wrong]);
        panic!("{}: byte {wrong} at {at} is {found:#04x}; expected {expected:#04x}", what());
    }
}

#[test]
fn all_designs_move_data_and_give_memory_back() {
    let mut world = World::new();
    for &design in DesignId::ALL {
        if design.info().is_hypothetical() && !world.unit.capabilities().rings {
            println!("{} is skipped: QEMU's unit has no rings, as no VT-d has", design.info().id);
            let config = DomainConfig::new(Protection::Strict);
            let refused = DynDomain::open(design, world.unit.clone(), world.host.clone(), &config);
            assert!(matches!(refused, Err(NewDomainError::NoRings)), "{:?}", refused.err());
            continue;
        }
        for protection in design.info().protections {
            design.visit(Run { world: &mut world, protection: *protection });
        }
    }
    let World { memory, unit, machine, edu, .. } = world;
    // SAFETY: as above.
    unsafe { Arc::into_inner(unit).expect("the domains have gone").shut_down() }.unwrap();
    assert_eq!(memory.tables_lent(), 0, "{}: tables are lost", Rule::Teardown);
    drop(edu);
    let process = machine.process_id().expect("this process has started it");
    assert!(Arc::into_inner(machine).is_some(), "no other owner of the machine is left");
    assert!(!std::fs::exists(format!("/proc/{process}")).unwrap(), "QEMU, process {process}, is still there");
}
