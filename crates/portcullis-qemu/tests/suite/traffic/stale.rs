//! What devices reach after the unmap: `edu` tries every page of unmapped mappings, while others stay live.

use super::*;
use portcullis::domain::Mapping;
use portcullis::{Access, Iova, IovaRange, Platform};
use portcullis_qemu::e1000e::E1000e;
use portcullis_qemu::nvme::{Nvme, Operation};
use portcullis_vtd::spec::faults::{FaultReason, FaultRequest};
use std::collections::VecDeque;
use std::time::Duration;

const MAPPINGS: usize = 24;
/// The least number of mappings that stay live while others are unmapped.
const LIVE_MIN: usize = 5;
const PAGES_MAX: u64 = 4;
/// Bytes of one access. Each access is in a separate page.
const PROBE: usize = 16;

/// The results.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    /// Pages of mappings that were reached while live and tried after the unmap.
    pub(crate) pages: usize,
    /// Accesses that still succeeded right after the unmap.
    landed: usize,
    /// Accesses that were refused, each with exactly one recorded fault.
    blocked: usize,
    /// Under strict protection: whether a buffer stays reachable through a mapped neighbour in its page. S8 requires
    /// that this is reported, not prevented.
    through_neighbour: Option<bool>,
}

/// A buffer that the device reads and writes: its physical address, and its IOVA while or before it was unmapped.
#[derive(Clone, Copy)]
struct Place {
    phys: PhysAddr,
    iova: Iova,
    range: IovaRange,
}

impl Place {
    /// One place in each page: the beginning of the page, or of the buffer.
    fn pages(self) -> impl Iterator<Item = (Iova, PhysAddr)> {
        let first = self.phys.page_offset();
        (0..self.range.pages()).map(move |page| {
            let bytes = if page == 0 { 0 } else { page * PAGE_SIZE - first };
            (self.iova.checked_add(bytes).unwrap(), self.phys.checked_add(bytes).unwrap())
        })
    }
}

/// A buffer that the device reads and writes.
struct Mapped {
    mapping: Mapping<GuestBuffer>,
    place: Place,
}

/// A buffer that was unmapped. Its memory is kept, because the device tries whether it still reaches it.
struct Gone {
    buffer: GuestBuffer,
    place: Place,
}

impl Mapped {
    fn new(domain: &DynDomain, buffer: GuestBuffer) -> Self {
        Self::with(domain, buffer, Access::DeviceReadsAndWrites)
    }

    fn with(domain: &DynDomain, buffer: GuestBuffer, access: Access) -> Self {
        let phys = buffer.lent().phys;
        let mapping = domain.map(buffer, access).unwrap();
        let place = Place { phys, iova: mapping.iova(), range: mapping.range() };
        Self { mapping, place }
    }

    fn unmap(self, domain: &DynDomain) -> Gone {
        Gone { buffer: domain.unmap(self.mapping).unwrap(), place: self.place }
    }
}

/// `edu`, with a page that stays mapped. It fetches what it will write from there, and writes what it has read to
/// there.
struct Prober<'w> {
    world: &'w mut World,
    page: Place,
}

impl Prober<'_> {
    /// Makes the device write at `iova`. Returns whether it landed at `phys`.
    fn writes(&mut self, (iova, phys): (Iova, PhysAddr)) -> bool {
        let token = self.world.random_bytes(PROBE);
        self.world.memory.write(self.page.phys, &token);
        self.world.memory.fill(phys, PROBE, UNTOUCHED);
        self.world.edu.fetch(self.page.iova, PROBE).unwrap();
        self.world.edu.store(iova, PROBE).unwrap();
        self.told(phys, &token, &[UNTOUCHED; PROBE])
    }

    /// Makes the device read at `iova`. Returns whether it got the contents of `phys`. Otherwise it gets zeros.
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

    /// Checks that reads and writes reach a live place.
    fn reaches(&mut self, place: (Iova, PhysAddr), who: &str) {
        let reached = (self.writes(place), self.reads(place), self.world.faults());
        assert_eq!(reached, (true, true, vec![]), "{who}: a live mapping at {}", place.0);
    }

    /// Checks that reads and writes do not reach an unmapped place, and that each access causes exactly one fault.
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

/// Maps, reaches, unmaps in batches of 1 to 3, and tries again. Then tests what the other devices reach.
pub(crate) fn run(world: &mut World, domain: &DynDomain, protection: Protection, who: &str) -> Stale {
    let breaks = |rule| domain.info().breaks(protection, rule);
    // Open access stays open. A late revocation comes within a window, if the window has an end.
    let (open, late) = (breaks(Rule::Reach), breaks(Rule::Strict));
    let window_us_max = domain.usage().window_us_max;
    let window_ends = late && !open && window_us_max.is_some();
    if window_ends {
        // Otherwise the unmaps that the traffic left waiting could fill the queue in the middle of this test, and
        // cause a flush.
        close_window(world, domain);
    }
    let mut stale = Stale::default();
    let page = Mapped::new(domain, world.buffer(1));
    let mut prober = Prober { world, page: page.place };
    let (mut live, mut retired) = (VecDeque::new(), Vec::new());
    for number in 0..MAPPINGS {
        let mapped = map_some(prober.world, domain, 1 + number as u64 % PAGES_MAX);
        mapped.place.pages().for_each(|place| prober.reaches(place, who));
        live.push_back(mapped);
        let batch = if number + 1 == MAPPINGS { live.len() } else { 1 + number % 3 };
        if live.len() < LIVE_MIN + batch && number + 1 < MAPPINGS {
            continue;
        }
        let mut unmaps = domain.batch();
        let mut places = Vec::new();
        for Mapped { mapping, place } in live.drain(..batch) {
            // Makes sure that every translation is in the unit's cache at the unmap.
            place.pages().for_each(|page| assert!(prober.writes(page), "{who}: live"));
            unmaps.unmap(mapping).unwrap();
            places.push(place);
        }
        let buffers = unmaps.commit().unwrap();
        for place in places.iter().copied().flat_map(Place::pages) {
            stale.pages += 1;
            if open || late {
                stale.landed += usize::from(prober.writes(place)) + usize::from(prober.reads(place));
                prober.world.faults();
            } else {
                prober.is_shut_out(place, who);
                stale.blocked += 2;
            }
        }
        retired.extend(buffers.into_iter().zip(places).map(|(buffer, place)| Gone { buffer, place }));
        if window_ends && (number % 20 == 19 || live.is_empty()) {
            assert!(domain.usage().queued_unmaps > 0, "{who}: nothing waits for a flush");
            close_window(prober.world, domain);
            // After a flush in between, another mapping may have the addresses.
            let again = |gone: Place| live.iter().any(|mapped: &Mapped| mapped.place.range.overlaps(gone.range));
            for gone in retired.drain(..).filter(|gone: &Gone| !again(gone.place)) {
                for place in gone.place.pages() {
                    prober.is_shut_out(place, who);
                    stale.blocked += 2;
                }
            }
        }
        if let Some(mapped) = live.get(number % LIVE_MIN) {
            mapped.place.pages().for_each(|place| prober.reaches(place, who));
        }
    }
    // A design may keep only pages mapped that devices write, as received packets lie in.
    let received = Mapped::with(domain, prober.world.buffer(1), Access::DeviceWrites);
    let place = (received.place.iova, received.place.phys);
    assert!(prober.writes(place), "{who}: live");
    let received = received.unmap(domain);
    if open || late {
        stale.landed += usize::from(prober.writes(place));
        prober.world.faults();
    } else {
        prober.is_shut_out(place, who);
    }
    drop(received);
    // If the design tells the hardware at once, the window is the time that the hardware takes. QEMU takes none: it
    // invalidates before the write to the tail returns. Other hardware may take longer.
    let may_be_empty = late && !open && window_us_max == Some(0);
    if !may_be_empty {
        assert_eq!(stale.landed > 0, open || late, "{who}: the declared breach and the observed one");
    }
    if !open && !late {
        stale.through_neighbour = Some(through_neighbour(&mut prober, domain, who));
        drive_is_shut_out(prober.world, domain, who);
    }
    domain.unmap(page.mapping).unwrap();
    detached_nic_is_shut_out(world, domain, who);
    stale
}

/// Maps a buffer that begins and ends anywhere in its `pages` pages, with room for an access in the first and the
/// last page.
fn map_some(world: &mut World, domain: &DynDomain, pages: u64) -> Mapped {
    let offset = world.random.random_range(0..=PAGE_SIZE / 2);
    let in_last = PROBE as u64 + world.random.random_range(0..PAGE_SIZE / 4);
    let len = if pages == 1 { in_last } else { (pages - 1) * PAGE_SIZE - offset + in_last };
    Mapped::new(domain, world.buffer(pages).lending(offset, len))
}

/// Calls ticks as a timer would, until no unmap waits any more.
fn close_window(world: &World, domain: &DynDomain) {
    while domain.usage().queued_unmaps > 0 {
        let due = domain.due_us().expect("unmaps that wait are due at some time");
        std::thread::sleep(Duration::from_micros(due.saturating_sub(world.host.now_us())));
        domain.tick().unwrap();
    }
}

/// Two halves of one page have two mappings: one is unmapped, the other stays. Returns whether the device still
/// reaches the first half through the second (S8). If the design gave both the same address, only the last unmap can
/// revoke it.
fn through_neighbour(prober: &mut Prober<'_>, domain: &DynDomain, who: &str) -> bool {
    const HALF: u64 = PAGE_SIZE / 2;
    let [first, second] = prober.world.buffer(1).split_at(HALF).map(|half| Mapped::new(domain, half));
    let places = [first.place, second.place].map(|Place { iova, phys, .. }| (iova, phys));
    places.iter().for_each(|place| prober.reaches(*place, who));
    let first = first.unmap(domain);
    if !first.place.range.overlaps(second.place.range) {
        prober.is_shut_out(places[0], who);
    }
    prober.reaches(places[1], who);
    let reached = prober.writes((page(places[1].0), places[0].1));
    prober.world.faults();
    let _second = second.unmap(domain);
    places.iter().for_each(|place| prober.is_shut_out(*place, who));
    reached
}

/// A driver with a bug programs an address that it has unmapped. The drive reports success, but the fault is
/// recorded.
fn drive_is_shut_out(world: &mut World, domain: &DynDomain, who: &str) {
    let mut nvme = Nvme::start(&world.machine.function(NVME), domain).unwrap();
    let len = nvme.block_bytes();
    let mapped = Mapped::new(domain, world.buffer(1).lending(0, len));
    let Place { phys, iova, .. } = mapped.place;
    let mut command = |operation| {
        nvme.submit_mapped(operation, 0, iova, len).unwrap();
        nvme.ring();
        assert_eq!(nvme.reap().unwrap()[0].status, 0, "{who}: {operation:?}");
    };
    let fault = |request, reason| [FaultRecord { source: NVME, page: page(iova), request, reason }];
    let block = world.random_bytes(len as usize);
    world.memory.write(phys, &block);
    command(Operation::Write);
    command(Operation::Read);
    assert_eq!(world.faults(), [], "{who}: mapped");
    let Gone { buffer, .. } = mapped.unmap(domain);
    buffer.fill(UNTOUCHED);
    command(Operation::Read);
    assert_bytes(world, phys, &vec![UNTOUCHED; len as usize], || format!("{who}: {}", Rule::Strict));
    assert_eq!(world.faults(), fault(FaultRequest::Write, FaultReason::NoWrite), "{who}: {}", Rule::Strict);
    command(Operation::Write);
    assert_eq!(world.faults(), fault(FaultRequest::Read, FaultReason::NoRead), "{who}: {}", Rule::Strict);
    // The drive now holds the zeros that it got instead of the buffer.
    nvme.submit(Operation::Read, 0, buffer).unwrap();
    nvme.ring();
    let done = nvme.reap().unwrap();
    assert_eq!(done[0].status, 0, "{who}");
    assert_bytes(world, phys, &vec![0; len as usize], || format!("{who}: {}", Rule::Strict));
    world.drive[..len as usize].fill(0);
    nvme.stop().unwrap();
}

/// A device that was detached from its domain reaches nothing, not even its own rings.
fn detached_nic_is_shut_out(world: &mut World, domain: &DynDomain, who: &str) {
    let mut nic = E1000e::start(&world.machine.function(NIC), domain).unwrap();
    domain.detach(NIC).unwrap();
    nic.send(world.buffer(1).lending(0, 60)).unwrap();
    nic.ring();
    assert!(nic.sent().unwrap().is_empty(), "{who}: {}", Rule::Reach);
    let [fault] = world.faults()[..] else { panic!("{who}: {}: not one fault", Rule::Reach) };
    let found = (fault.source, fault.request, fault.reason);
    assert_eq!(found, (NIC, FaultRequest::Read, FaultReason::ContextNotPresent), "{who}: {}", Rule::Reach);
    nic.stop().unwrap();
}
