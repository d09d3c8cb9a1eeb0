//! A machine passes from one kernel to another while its devices work. One process has QEMU, and starts a second
//! process, which takes the unit over. The second process uses memory that the first never uses, like the kernel that
//! is started after a crash.
//!
//! The drive keeps protection information beside its blocks. So QEMU reads a block into separate memory, and consults
//! the IOMMU only when it copies the block to the driver's buffer: a read in flight is a write to memory that is not
//! translated yet. Reads are slowed down, so that many are in flight at the take-over. `edu` has one more write in
//! flight, which waits for the machine's clock.

mod halted;
mod second;

use portcullis::designs::Magazine;
use portcullis::iommu::{DomainId, SourceId};
use portcullis::mapper::Design;
use portcullis::{Access, Iova, Open, PAGE_SIZE, PhysAddr, Protection};
use portcullis_qemu::edu::Edu;
use portcullis_qemu::nvme::{CommandId, Nvme, Operation};
use portcullis_qemu::{Accelerator, GuestBuffer, GuestMemory, QemuHost, QemuMachine, QemuSetup, VtdMmio};
use portcullis_vtd::spec::faults::FaultRecord;
use portcullis_vtd::{Unit, UnitConfig};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::mem::ManuallyDrop;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;

const EDU: SourceId = SourceId::from_requester(3 << 3);
const NVME: SourceId = SourceId::from_requester(5 << 3);

type Vtd = Arc<Unit<VtdMmio, QemuHost>>;
type Drive<'d> = Nvme<'d, <Magazine as Design<QemuHost, Vtd>>::Mapper>;

/// The number of pages that are being read from the drive when it is taken over.
const READS: u64 = 12;
/// Operations of the drive per second. A read takes two operations: the block, and its protection information. So the
/// reads are in flight for three seconds, far longer than the second process takes to start.
const READS_PER_SECOND: u64 = 8;
const DRIVE_BYTES: u64 = 1 << 20;
const BLOCKS_PER_PAGE: u64 = PAGE_SIZE / 512;
/// The value of memory that no device has written.
const UNTOUCHED: u8 = 0xee;
/// The value that `edu` writes, because nothing else was stored in its buffer.
const EDU_WRITES: u8 = 0;
const EDU_BYTES: usize = 4000;

/// Tells this test, when it is started again, what to take over and how.
const ESTATE_VARIABLE: &str = "PORTCULLIS_TEST_ESTATE";
/// The second process prints this when devices may continue.
const GO_ON: &str = "the clock may go";

/// How the second process acts.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    /// It is not allowed to take the unit over.
    Refused,
    /// It lets devices continue, and releases them after they are reset.
    Whole,
    /// It releases them while they are working.
    CutsOff,
}

const WAYS: [(&str, Way); 3] = [("refused", Way::Refused), ("whole", Way::Whole), ("cuts-off", Way::CutsOff)];

/// The state that the first process leaves.
#[derive(Clone, PartialEq, Debug)]
struct Estate {
    way: Way,
    /// The id of the domain of its devices.
    domain: DomainId,
    /// The target of `edu`'s write: the IOVA and the physical address.
    edu: (Iova, PhysAddr),
    /// The physical address at which page `n` of the drive should land.
    pages: Vec<PhysAddr>,
}

impl Estate {
    fn to_words(&self) -> String {
        let way = WAYS.iter().find(|(_, way)| *way == self.way).expect("a way").0;
        let numbers = [self.domain.0.into(), self.edu.0.as_u64(), self.edu.1.as_u64()];
        let numbers = numbers.into_iter().chain(self.pages.iter().map(|page| page.as_u64()));
        numbers.fold(way.to_owned(), |words, number| format!("{words} {number}"))
    }

    fn from_words(words: &str) -> Self {
        let (name, numbers) = words.split_once(' ').expect("a way, and numbers");
        let way = WAYS.iter().find(|(known, _)| *known == name).expect("a way").1;
        let numbers: Vec<u64> = numbers.split(' ').map(|number| u64::from_str(number).expect("a number")).collect();
        let edu = (Iova::new(numbers[1]), PhysAddr::new(numbers[2]));
        let pages = numbers[3..].iter().map(|page| PhysAddr::new(*page)).collect();
        Self { way, domain: DomainId(numbers[0] as u16), edu, pages }
    }

    /// Checks that each write in flight has landed whole where the first process directed it, and nothing beside it.
    /// The first one that has not is named.
    fn landed(&self, memory: &GuestMemory) -> Result<(), String> {
        for (number, page) in (0..).zip(&self.pages) {
            is(memory, *page, &content(number), &format!("page {number} of the drive"))?;
        }
        is(memory, self.edu.1, &[EDU_WRITES; EDU_BYTES], "what edu writes")?;
        let rest = PhysAddr::new(self.edu.1.as_u64() + EDU_BYTES as u64);
        is(memory, rest, &[UNTOUCHED; PAGE_SIZE as usize - EDU_BYTES], "behind what edu writes")?;
        for page in self.pages.iter().chain([&self.edu.1]) {
            for beside in [page.as_u64() - PAGE_SIZE, page.as_u64() + PAGE_SIZE] {
                is(memory, PhysAddr::new(beside), &[UNTOUCHED; PAGE_SIZE as usize], "beside a buffer")?;
            }
        }
        Ok(())
    }

    /// The number of pages of the drive that have not begun to land.
    fn pages_in_flight(&self, memory: &GuestMemory) -> usize {
        self.pages.iter().filter(|page| is_untouched(memory, **page)).count()
    }

    /// All buffers of the first process, and the pages around them.
    fn snapshot(&self, memory: &GuestMemory) -> Vec<Vec<u8>> {
        let around = |page: &PhysAddr| bytes(memory, PhysAddr::new(page.as_u64() - PAGE_SIZE), 3 * PAGE_SIZE as usize);
        self.pages.iter().chain([&self.edu.1]).map(around).collect()
    }
}

fn bytes(memory: &GuestMemory, at: PhysAddr, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes);
    bytes
}

/// Whether no device has written to a page.
fn is_untouched(memory: &GuestMemory, at: PhysAddr) -> bool {
    bytes(memory, at, PAGE_SIZE as usize).iter().all(|byte| *byte == UNTOUCHED)
}

/// Compares memory with the expected bytes.
fn is(memory: &GuestMemory, at: PhysAddr, expected: &[u8], what: &str) -> Result<(), String> {
    let found = bytes(memory, at, expected.len());
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        Some(wrong) => {
            Err(format!("{what}: byte {wrong} at {at} is {:#04x}, not {:#04x}", found[wrong], expected[wrong]))
        }
        None => Ok(()),
    }
}

/// The contents of page `number` of the drive.
fn content(number: u64) -> Vec<u8> {
    (0..PAGE_SIZE).map(|at| (number * 31 + at * 7 + at / 256 + 1) as u8 & 0x7f).collect()
}

/// A machine with a drive that is slowed down by `limits`, options of QEMU's throttle group.
fn machine(accelerator: Accelerator, limits: &str) -> QemuSetup {
    let file = |path: &str| ["-blockdev".into(), format!("driver=file,node-name=disk,filename={path},locking=off")];
    let setup = QemuSetup::new(accelerator).device("edu,addr=3,dma_mask=0xffffffffffffffff");
    let setup = setup.file(DRIVE_BYTES, file).unwrap_or_else(|error| panic!("{error}"));
    setup
        .arguments(["-object", &format!("throttle-group,id=slow,{limits}")])
        .arguments(["-blockdev", "driver=throttle,node-name=drive,throttle-group=slow,file=disk"])
        .device("nvme,id=nvme,addr=5,serial=1")
        .device("nvme-ns,drive=drive,bus=nvme,ms=8,pi=1")
}

fn faults(unit: &Unit<VtdMmio, QemuHost>) -> Vec<FaultRecord> {
    let mut faults = Vec::new();
    unit.faults(&mut |fault| faults.push(fault)).unwrap();
    faults
}

/// A page with a page before it and a page after it that are not lent. No device has written to any of them.
fn page(memory: &Arc<GuestMemory>) -> GuestBuffer {
    let buffer = GuestBuffer::new(memory, 3).unwrap().lending(PAGE_SIZE, PAGE_SIZE);
    buffer.fill(UNTOUCHED);
    buffer
}

/// Writes pages of the drive, from the first on.
fn write_pages(nvme: &mut Drive<'_>, memory: &Arc<GuestMemory>, pages: u64) {
    for number in 0..pages {
        let data = page(memory);
        data.write(PAGE_SIZE, &content(number));
        nvme.submit(Operation::Write, number * BLOCKS_PER_PAGE, data).unwrap();
    }
    nvme.ring();
    for done in reap(nvme, pages as usize) {
        assert_eq!(done.1, 0, "{:?}", done.0);
    }
}

/// Submits reads of pages of the drive, from the first on. Returns each page's command and physical address.
fn begin_reads(nvme: &mut Drive<'_>, memory: &Arc<GuestMemory>, pages: u64) -> Vec<(CommandId, PhysAddr)> {
    let read = |number| {
        let data = page(memory);
        let at = data.lent().phys;
        (nvme.submit(Operation::Read, number * BLOCKS_PER_PAGE, data).unwrap(), at)
    };
    let begun = (0..pages).map(read).collect();
    nvme.ring();
    begun
}

/// Reaps this number of commands, and returns the status of each.
fn reap(nvme: &mut Drive<'_>, commands: usize) -> BTreeMap<CommandId, u16> {
    let mut all = BTreeMap::new();
    while all.len() < commands {
        all.extend(nvme.reap().unwrap().into_iter().map(|done| (done.command, done.status)));
    }
    all
}

/// Checks that the pages of `begin_reads` have arrived whole.
fn check_reads(nvme: &mut Drive<'_>, memory: &GuestMemory, begun: &[(CommandId, PhysAddr)]) {
    let status = reap(nvme, begun.len());
    for (number, (command, at)) in (0..).zip(begun) {
        assert_eq!(status[command], 0, "{command:?}");
        is(memory, *at, &content(number), "what was read").unwrap();
    }
}

/// Starts the second process, starts the machine's clock when that process says so, and checks that it ends well.
fn run_second(machine: &QemuMachine, estate: &Estate) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "take_over::second::runs_in_a_process_of_its_own", "--nocapture"]);
    command.env(ESTATE_VARIABLE, estate.to_words());
    machine.hand_over(&mut command).unwrap();
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut let_go = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
        if line.contains(GO_ON) {
            machine.let_go().unwrap();
            let_go = true;
        }
        said.push_str(&line);
        said.push('\n');
    }
    let status = child.wait().unwrap();
    assert!(status.success() && said.contains("1 passed"), "{:?}: {status}; it said:\n{said}", estate.way);
    assert_eq!(let_go, estate.way != Way::Refused, "it said:\n{said}");
}

/// The first process: brings the unit up and makes its devices work. Then either it is gone from one moment to the
/// next, or it continues.
fn first(way: Way) {
    let setup = machine(Accelerator::Jumping, &format!("x-iops-read={READS_PER_SECOND}")).paused();
    let machine = QemuMachine::start(setup).unwrap_or_else(|error| panic!("{error}"));
    let (memory, host) = (machine.memory(), machine.host());
    let unit: Vtd = Arc::new(Unit::bring_up(VtdMmio(machine.clone()), host.clone(), UnitConfig::default()).unwrap());
    // Uses up an id, so that the domain gets a different one.
    drop(Magazine::open(unit.clone(), host.clone(), Protection::Strict).unwrap());
    // A process that is gone unmaps, detaches and stops nothing.
    let domain = ManuallyDrop::new(Magazine::open(unit.clone(), host, Protection::Strict).unwrap());
    domain.attach(EDU).unwrap();
    domain.attach(NVME).unwrap();
    let mut nvme = ManuallyDrop::new(Nvme::start(&machine.function(NVME), &*domain).unwrap());
    write_pages(&mut nvme, memory, READS);
    let edu = Edu::new(&machine.function(EDU)).unwrap();
    let target = page(memory);
    let target_phys = target.lent().phys;
    let target = ManuallyDrop::new(domain.map(target, Access::DeviceWrites).unwrap());
    let begun = begin_reads(&mut nvme, memory, READS);
    edu.begin_store(target.iova(), EDU_BYTES).unwrap();
    let pages = begun.iter().map(|(_, at)| *at).collect();
    let estate = Estate { way, domain: domain.id(), edu: (target.iova(), target_phys), pages };
    assert_eq!(Estate::from_words(&estate.to_words()), estate);

    run_second(&machine, &estate);
    if way != Way::Refused {
        return;
    }
    // The first process still has the machine.
    check_reads(&mut nvme, memory, &begun);
    machine.let_go().unwrap();
    edu.finish().unwrap();
    estate.landed(memory).unwrap();
    let again = begin_reads(&mut nvme, memory, 3);
    check_reads(&mut nvme, memory, &again);
    assert_eq!(faults(&unit), []);
    let iova = target.iova();
    drop(domain.unmap(ManuallyDrop::into_inner(target)).unwrap());
    edu.store(iova, 1).unwrap();
    assert_eq!(faults(&unit).len(), 1, "what is unmapped is out of reach");
    assert!(ManuallyDrop::into_inner(nvme).stop().unwrap().is_empty(), "none was in flight");
    drop(ManuallyDrop::into_inner(domain));
    assert_eq!(memory.buffer_pages_lent(), 0);
}

#[test]
fn a_second_kernel_carries_on_and_takes_over() {
    first(Way::Whole);
}

/// The same check fails if devices are released before they are reset.
#[test]
fn a_second_kernel_that_cuts_devices_off_is_noticed() {
    first(Way::CutsOff);
}

#[test]
fn a_second_kernel_that_is_refused_changes_nothing() {
    first(Way::Refused);
}
