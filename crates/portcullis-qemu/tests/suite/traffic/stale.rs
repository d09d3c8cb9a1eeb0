//! What devices reach after the unmap: `edu` tries every page of mappings that are gone, while others stay live.

use super::*;
use portcullis::{Access, Iova, IovaRange, Platform};
use portcullis_qemu::e1000e::E1000e;
use portcullis_qemu::nvme::{Nvme, Operation};
use portcullis_vtd::spec::faults::{FaultReason, FaultRequest};
use std::collections::VecDeque;
use std::time::Duration;

const MAPPINGS: usize = 48;
/// Mappings that stay live, at least, while others are unmapped.
const LIVE_MIN: usize = 5;
const PAGES_MAX: u64 = 4;
/// Bytes of one access, each in a page of its own.
const PROBE: usize = 16;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    /// Pages of mappings that were reached while live, and tried after the unmap.
    pub(crate) pages: usize,
    /// Accesses that still succeeded right after the unmap.
    landed: usize,
    /// Accesses that were refused, each with the one fault that tells of it.
    blocked: usize,
    /// Under strict protection: whether a buffer stays in reach through a neighbour in its page that is still mapped. S8 has
    /// that reported, not prevented.
    through_neighbour: Option<bool>,
}

/// A buffer that the device reads and writes, on pages of its own.
#[derive(Clone, Copy)]
struct Mapped {
    phys: PhysAddr,
    iova: Iova,
    len: u64,
}

impl Mapped {
    fn new<D: Design<QemuHost, Vtd>>(domain: &Domain<D, QemuHost, Vtd>, phys: PhysAddr, len: u64) -> Self {
        // SAFETY: nothing of Rust lies in the memory of a machine.
        let iova = unsafe { domain.map_raw(phys, len, Access::DeviceReadsAndWrites) }.unwrap();
        Self { phys, iova, len }
    }

    fn range(&self) -> IovaRange {
        IovaRange::covering(self.iova, self.len).unwrap()
    }

    /// A place in each page: its beginning, or that of the buffer.
    fn places(self) -> impl Iterator<Item = (Iova, PhysAddr)> {
        let first = self.phys.page_offset();
        (0..self.range().pages()).map(move |page| {
            let bytes = if page == 0 { 0 } else { page * PAGE_SIZE - first };
            (self.iova.checked_add(bytes).unwrap(), self.phys.checked_add(bytes).unwrap())
        })
    }
}

/// `edu`, with a page that stays mapped: what it is to write is fetched from there, and what it has read is shown there.
struct Prober<'w> {
    world: &'w mut World,
    page: Mapped,
}

impl Prober<'_> {
    /// Lets the device write at `iova`; whether it landed at `phys`.
    fn writes(&mut self, (iova, phys): (Iova, PhysAddr)) -> bool {
        let token = self.world.random_bytes(PROBE);
        self.world.memory.write(self.page.phys, &token);
        self.world.memory.fill(phys, PROBE, UNTOUCHED);
        self.world.edu.fetch(self.page.iova, PROBE).unwrap();
        self.world.edu.store(iova, PROBE).unwrap();
        self.told(phys, &token, &[UNTOUCHED; PROBE])
    }

    /// Lets the device read at `iova`; whether it got what is at `phys`. Zeros are what it gets otherwise.
    fn reads(&mut self, (iova, phys): (Iova, PhysAddr)) -> bool {
        let secret = self.world.random_bytes(PROBE);
        self.world.memory.write(phys, &secret);
        self.world.edu.fetch(iova, PROBE).unwrap();
        self.world.edu.store(self.page.iova, PROBE).unwrap();
        self.told(self.page.phys, &secret, &[0; PROBE])
    }

    fn told(&self, at: PhysAddr, reached: &[u8], refused: &[u8]) -> bool {
        let found = self.world.bytes(at, PROBE);
        assert!(
            found == reached || found == refused,
            "{found:02x?} at {at}; expected {reached:02x?} or {refused:02x?}"
        );
        found == reached
    }

    /// Both at a place that is live.
    fn reaches(&mut self, place: (Iova, PhysAddr), who: &str) {
        let reached = (self.writes(place), self.reads(place), self.world.faults());
        assert_eq!(reached, (true, true, vec![]), "{who}: a live mapping at {}", place.0);
    }

    /// Both at a place that is not: nothing moves, and each access has its one fault.
    fn is_shut_out(&mut self, place: (Iova, PhysAddr), who: &str) {
        let fault = |request, reason| FaultRecord { source: EDU, page: page(place.0), request, reason };
        let written = (self.writes(place), self.world.faults());
        let refused = fault(FaultRequest::Write, FaultReason::NoWrite);
        assert_eq!(written, (false, vec![refused]), "{who}: {}: a stale write at {}", Rule::Strict, place.0);
        let read = (self.reads(place), self.world.faults());
        let refused = fault(FaultRequest::Read, FaultReason::NoRead);
        assert_eq!(read, (false, vec![refused]), "{who}: {}: a stale read at {}", Rule::Strict, place.0);
    }
}

fn page(iova: Iova) -> Iova {
    Iova::from_pfn(iova.pfn())
}

/// Maps, reaches, unmaps in batches of 1 to 3, and tries again; then what the other devices do.
pub(crate) fn run<D: Design<QemuHost, Vtd>>(
    world: &mut World,
    domain: &Domain<D, QemuHost, Vtd>,
    protection: Protection,
    buffers: &mut Buffers,
    who: &str,
) -> Stale {
    let breaks = |rule| D::INFO.breaks(protection, rule);
    // What is open stays open; what comes late comes within a window, if that has an end.
    let (open, late) = (breaks(Rule::Reach), breaks(Rule::Strict));
    let window_us_max = domain.usage().window_us_max;
    let window_ends = late && !open && window_us_max.is_some();
    if window_ends {
        // What the traffic left waiting would else fill the queue in the middle of this, and have it flushed.
        close_window(world, domain);
    }
    let mut stale = Stale::default();
    let page = Mapped::new(domain, buffers.take(1).unwrap(), PAGE_SIZE);
    let mut prober = Prober { world, page };
    let (mut live, mut retired) = (VecDeque::new(), Vec::new());
    for number in 0..MAPPINGS {
        let mapped = map_some(prober.world, domain, 1 + number as u64 % PAGES_MAX, buffers);
        mapped.places().for_each(|place| prober.reaches(place, who));
        live.push_back(mapped);
        let batch = if number + 1 == MAPPINGS { live.len() } else { 1 + number % 3 };
        if live.len() < LIVE_MIN + batch && number + 1 < MAPPINGS {
            continue;
        }
        let gone: Vec<Mapped> = live.drain(..batch).collect();
        // So that every translation is in the unit's cache when it goes.
        gone.iter().flat_map(|mapped| mapped.places()).for_each(|place| assert!(prober.writes(place), "{who}: live"));
        let mut unmaps = domain.raw_batch();
        gone.iter().for_each(|mapped| unmaps.unmap(mapped.range()).unwrap());
        unmaps.commit().unwrap();
        for place in gone.iter().flat_map(|mapped| mapped.places()) {
            stale.pages += 1;
            if open || late {
                stale.landed += usize::from(prober.writes(place)) + usize::from(prober.reads(place));
                prober.world.faults();
            } else {
                prober.is_shut_out(place, who);
                stale.blocked += 2;
            }
        }
        retired.extend(gone);
        if window_ends && (number % 20 == 19 || live.is_empty()) {
            assert!(domain.usage().queued_unmaps > 0, "{who}: nothing waits for a flush");
            close_window(prober.world, domain);
            // After a flush in between, the addresses may be another mapping's.
            let again = |gone: &Mapped| live.iter().any(|mapped: &Mapped| mapped.range().overlaps(gone.range()));
            for place in retired.drain(..).filter(|gone| !again(gone)).flat_map(Mapped::places) {
                prober.is_shut_out(place, who);
                stale.blocked += 2;
            }
        }
        if let Some(mapped) = live.get(number % LIVE_MIN) {
            mapped.places().for_each(|place| prober.reaches(place, who));
        }
    }
    // Where the hardware is told at once, the window is the time that it takes, and QEMU takes none: it invalidates before the
    // write that tells it returns. Other hardware may be seen to take longer.
    let may_be_empty = late && !open && window_us_max == Some(0);
    if !may_be_empty {
        assert_eq!(stale.landed > 0, open || late, "{who}: the breach that is declared and what was found");
    }
    if !open && !late {
        stale.through_neighbour = Some(through_neighbour(&mut prober, domain, buffers, who));
        drive_is_shut_out(prober.world, domain, buffers, who);
    }
    domain.unmap_raw(page.iova, page.len).unwrap();
    detached_nic_is_shut_out(world, domain, buffers, who);
    stale
}

/// Maps a buffer that begins and ends anywhere in its `pages` pages, with room for an access in the first and the last.
fn map_some<D: Design<QemuHost, Vtd>>(
    world: &mut World,
    domain: &Domain<D, QemuHost, Vtd>,
    pages: u64,
    buffers: &mut Buffers,
) -> Mapped {
    let offset = world.random.random_range(0..=PAGE_SIZE / 2);
    let phys = buffers.take(pages).unwrap().checked_add(offset).unwrap();
    let in_last = PROBE as u64 + world.random.random_range(0..PAGE_SIZE / 4);
    let len = if pages == 1 { in_last } else { (pages - 1) * PAGE_SIZE - offset + in_last };
    Mapped::new(domain, phys, len)
}

/// Calls ticks as a timer would, until nothing waits any more.
fn close_window<D: Design<QemuHost, Vtd>>(world: &World, domain: &Domain<D, QemuHost, Vtd>) {
    while domain.usage().queued_unmaps > 0 {
        let due = domain.due_us().expect("unmaps that wait are due at some time");
        std::thread::sleep(Duration::from_micros(due.saturating_sub(world.host.now_us())));
        domain.tick().unwrap();
    }
}

/// Two halves of one page under two mappings: one is unmapped, the other stays. Returns whether the device still reaches the
/// first half through the second (S8). Where the design gave both one address, only the last unmap can take it away.
fn through_neighbour<D: Design<QemuHost, Vtd>>(
    prober: &mut Prober<'_>,
    domain: &Domain<D, QemuHost, Vtd>,
    buffers: &mut Buffers,
    who: &str,
) -> bool {
    const HALF: u64 = PAGE_SIZE / 2;
    let phys = buffers.take(1).unwrap();
    let first = Mapped::new(domain, phys, HALF);
    let second = Mapped::new(domain, phys.checked_add(HALF).unwrap(), HALF);
    let places = [(first.iova, first.phys), (second.iova, second.phys)];
    places.iter().for_each(|place| prober.reaches(*place, who));
    domain.unmap_raw(first.iova, HALF).unwrap();
    if !first.range().overlaps(second.range()) {
        prober.is_shut_out(places[0], who);
    }
    prober.reaches(places[1], who);
    let reached = prober.writes((page(second.iova), phys));
    prober.world.faults();
    domain.unmap_raw(second.iova, HALF).unwrap();
    places.iter().for_each(|place| prober.is_shut_out(*place, who));
    reached
}

/// A driver with a bug: it programs an address that it has unmapped. The drive says success; the fault record tells.
fn drive_is_shut_out<D: Design<QemuHost, Vtd>>(
    world: &mut World,
    domain: &Domain<D, QemuHost, Vtd>,
    buffers: &mut Buffers,
    who: &str,
) {
    let mut nvme = Nvme::start(&world.machine.function(NVME), domain, buffers).unwrap();
    let len = nvme.block_bytes();
    let buffer = Mapped::new(domain, buffers.take(1).unwrap(), len);
    let mut command = |operation| {
        nvme.submit_mapped(operation, 0, buffer.iova, len).unwrap();
        nvme.ring();
        assert_eq!(nvme.reap().unwrap()[0].status, 0, "{who}: {operation:?}");
    };
    let fault = |request, reason| [FaultRecord { source: NVME, page: page(buffer.iova), request, reason }];
    let block = world.random_bytes(len as usize);
    world.memory.write(buffer.phys, &block);
    command(Operation::Write);
    command(Operation::Read);
    assert_eq!(world.faults(), [], "{who}: mapped");
    domain.unmap_raw(buffer.iova, len).unwrap();
    world.memory.fill(buffer.phys, len as usize, UNTOUCHED);
    command(Operation::Read);
    assert_bytes(world, buffer.phys, &vec![UNTOUCHED; len as usize], || format!("{who}: {}", Rule::Strict));
    assert_eq!(world.faults(), fault(FaultRequest::Write, FaultReason::NoWrite), "{who}: {}", Rule::Strict);
    command(Operation::Write);
    assert_eq!(world.faults(), fault(FaultRequest::Read, FaultReason::NoRead), "{who}: {}", Rule::Strict);
    // What is on the drive now: the zeros that it was given instead of the buffer.
    let data = Segment { phys: buffer.phys, len };
    nvme.submit(Operation::Read, 0, data).unwrap();
    nvme.ring();
    assert_eq!(nvme.reap().unwrap()[0].status, 0, "{who}");
    assert_bytes(world, buffer.phys, &vec![0; len as usize], || format!("{who}: {}", Rule::Strict));
    world.drive[..len as usize].fill(0);
    nvme.stop().unwrap();
}

/// A device that is taken out of its domain reaches nothing, its own rings included.
fn detached_nic_is_shut_out<D: Design<QemuHost, Vtd>>(
    world: &mut World,
    domain: &Domain<D, QemuHost, Vtd>,
    buffers: &mut Buffers,
    who: &str,
) {
    let mut nic = E1000e::start(&world.machine.function(NIC), domain, buffers).unwrap();
    domain.detach(NIC).unwrap();
    nic.send(Segment { phys: buffers.take(1).unwrap(), len: 60 }).unwrap();
    nic.ring();
    assert_eq!(nic.sent(), Ok(vec![]), "{who}: {}", Rule::Reach);
    let [fault] = world.faults()[..] else { panic!("{who}: {}: not one fault", Rule::Reach) };
    let found = (fault.source, fault.request, fault.reason);
    assert_eq!(found, (NIC, FaultRequest::Read, FaultReason::ContextNotPresent), "{who}: {}", Rule::Reach);
    nic.stop().unwrap();
}
