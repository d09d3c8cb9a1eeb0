//! A malicious device. It has the driver's knowledge of a run: it is told of every map, unmap and hand-back, and acts
//! at each of them. Its accesses are real ones, at the time of the core beside which it acts: they fill the caches of
//! the modelled unit, walk its tables, and are refused by it. They cost no core anything, and do not show in the
//! workload's counts.
//!
//! It learns addresses from the maps of its own host, gets every translation cached before the unmap, and keeps using
//! what it still reaches afterwards, so that no cache evicts it. It also tries what it was never given: neighbours,
//! guesses, reserved addresses, addresses of other devices, rights that were not granted, and the rest of pages. What
//! it tries beyond the current mapping is drawn from a seed, a bounded number at each step.

mod attack;
mod findings;
mod owners;

pub use attack::{
    Attacked, PROBES_CACHED_MIN, attack, attack_on_breaking_hardware, attack_on_flawed_prefetcher,
    attack_on_flawed_rings,
};
pub use findings::Found;

use super::Job;
use super::event::RunEvent;
use super::live::{Live, LivePage, Slot};
use super::world::{Observer, World};
use findings::Findings;
use owners::{Breach, Owners, Place, Share};
use portcullis::iommu::rings::{ENTRY_PAGES, RingAddress};
use portcullis::iova::INTERRUPT_RANGE;
use portcullis::mapper::Addressing;
use portcullis::table::Rights;
use portcullis::{Iova, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Rule, SourceId};
use portcullis_model::{Device, LookupOutcome, Vtd};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use smallvec::SmallVec;
use std::sync::Arc;

/// Pages of one mapping that are tried at a time.
const SAMPLE: usize = 16;
/// Stale translations that are kept in use. The same number applies to mappings that are being unmapped. Each is a
/// quarter of a usual IOTLB, so that they do not evict each other.
const HOSTAGES_MAX: usize = 32;
/// How far the hardware may be behind before the device postpones what it need not try now: the time that a walker
/// takes for a few walks.
const BACKLOG_PS: u64 = 2 * PS_PER_US;
/// Pages seen before that are tried at each step, and as many neighbours of some of them.
const SEEN_PER_STEP: usize = 2;
/// The largest distance of a tried neighbour from its page.
const NEIGHBOURHOOD: u64 = 8;
/// Designs first look below this address, so half of the guesses lie there.
const LOW_PFN: u64 = 1 << (32 - PAGE_SHIFT);
const PS_PER_US: u64 = 1_000_000;

/// An access that no mapping explains yet. A map that was in progress may still explain it.
struct Suspect {
    place: Place,
    memory: u64,
    rights: Rights,
    breach: Breach,
    at_ps: u64,
    /// The cores that have not yet ended the map in which they were then.
    under_way: SmallVec<[usize; 4]>,
}

/// A page of a mapping that is cleared but whose buffer is not yet handed back, because it waits for the rest of its
/// batch.
struct Departing {
    slot: Slot,
    place: Place,
    rights: Rights,
}

/// The counters of the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probes {
    /// Accesses.
    pub(super) all: u64,
    /// Pages whose translation the hardware had cached when their unmap began.
    pub(super) cached: u64,
    /// Accesses that reached bytes of a page outside its buffer.
    pub(super) residual: u64,
    /// Accesses that reached buffers between the halves of a commit. The device still has them.
    pub(super) between_halves: u64,
}

/// The malicious device, and the devices that cooperate with it.
pub(super) struct Adversary {
    vtd: Arc<Vtd>,
    /// The source ids that it may use: the devices of the run, one with an empty domain, and one without a domain.
    sources: Vec<SourceId>,
    address_bits: u8,
    random: Pcg64Mcg,
    owners: Owners,
    findings: Findings,
    suspects: Vec<Suspect>,
    /// Pages that were reached after their hand-back, and will be tried again.
    hostages: Vec<Place>,
    /// Whether addresses name ring entries, which lead to runs of bytes, not pages.
    is_by_entry: bool,
    /// First pages of entries that are cleared and not yet invalidated, each with its memory and rights.
    in_burst: Vec<(Slot, Place, u64, Rights)>,
    /// The most of these in one ring that were within reach at once.
    in_burst_max: u64,
    /// Also kept in use: otherwise, by the end of a large batch, nothing of its first mappings would still be cached.
    departing: Vec<Departing>,
    /// The cores that are inside a map.
    mapping: SmallVec<[usize; 4]>,
    probes: Probes,
    /// Walks into freed tables that the unit had made before the run.
    walks_into_freed: u64,
    /// The number of hand-backs left before the hardware breaks.
    breaks_in: Option<u64>,
    now_ps: u64,
    /// When the last of its accesses so far is answered.
    answered_ps: u64,
    /// The time of the latest hand-back.
    back_ps: u64,
}

impl Observer for Adversary {
    fn note(&mut self, world: &World, event: &RunEvent<'_>) {
        self.is_now(world.engine.now_ps());
        match *event {
            RunEvent::MapBegins { core } => self.map_begins(core),
            RunEvent::Mapped { slot, live } => self.mapped(slot, live),
            RunEvent::MapEnds { core, .. } => self.map_ends(core),
            _ => {}
        }
    }

    fn acts(&self) -> bool {
        true
    }

    fn act(&mut self, world: &World, event: &RunEvent<'_>) {
        self.is_now(world.engine.now_ps());
        match *event {
            RunEvent::MapEnds { slot, .. } => drop(world.look(slot, |live| self.try_out(live))),
            RunEvent::UnmapBegins { slot } => drop(world.look(slot, |live| self.leaving(slot, live))),
            RunEvent::Cleared { slot, live, .. } => self.cling(slot, live),
            RunEvent::HandedBack { slot, live } => self.handed_back(slot, live),
            RunEvent::Submitted => self.between_halves(),
            RunEvent::Idle => self.roam(),
            _ => {}
        }
    }
}

impl Adversary {
    /// The adversary of a run of `job` in `world`.
    pub(super) fn new(job: &Job<'_>, world: &World) -> Self {
        let (iommu, bound_us) = (&job.machine.iommu, world.bound_us());
        let bound_ps = bound_us.map(|bound_us| bound_us.saturating_mul(PS_PER_US).saturating_add(job.grace_ps()));
        let is_by_entry = matches!(world.info.addressing, Addressing::Entries { .. });
        let mut sources: Vec<SourceId> = world.devices.borrow().iter().map(Device::source).collect();
        sources.push(Self::stranger(&sources));
        Self {
            walks_into_freed: world.vtd.counters().walks_into_freed,
            vtd: world.vtd.clone(),
            sources,
            address_bits: if is_by_entry { 64 } else { iommu.address_bits },
            is_by_entry,
            in_burst: Vec::new(),
            in_burst_max: 0,
            // This sequence differs from the one from which workloads draw.
            random: Pcg64Mcg::seed_from_u64(job.seed ^ 0x6174_7461_636b),
            owners: Owners::default(),
            findings: Findings::new(world.info, job.protection, bound_ps),
            suspects: Vec::new(),
            hostages: Vec::new(),
            departing: Vec::new(),
            mapping: SmallVec::new(),
            probes: Probes::default(),
            breaks_in: None,
            now_ps: 0,
            answered_ps: 0,
            back_ps: 0,
        }
    }

    /// A source id that is not among `devices`.
    pub(super) fn stranger(devices: &[SourceId]) -> SourceId {
        let mut others = (0..=u16::MAX).rev().map(SourceId::from_requester).filter(|source| !devices.contains(source));
        others.next().unwrap_or(SourceId::from_requester(u16::MAX))
    }

    /// Makes the hardware refuse every invalidation after this many hand-backs.
    pub(super) fn break_hardware_after(&mut self, hand_backs: u64) {
        self.breaks_in = Some(hand_backs);
    }

    fn is_now(&mut self, now_ps: u64) {
        self.now_ps = self.now_ps.max(now_ps);
    }

    /// The counters so far.
    pub(super) fn probes(&self) -> Probes {
        self.probes
    }

    /// The most entries of one ring that were cleared, not yet invalidated, and within reach at once; `None` if there
    /// are no rings.
    pub(super) fn in_burst_entries_max(&self) -> Option<u64> {
        self.is_by_entry.then_some(self.in_burst_max)
    }

    /// Identifies the memory behind the first byte of a page: the page or, for an entry, the byte.
    fn name(&self, phys: PhysAddr) -> u64 {
        if self.is_by_entry { phys.as_u64() } else { phys.pfn() }
    }

    /// The findings so far.
    pub(super) fn found(&mut self) -> Vec<Found> {
        let walks = self.vtd.counters().walks_into_freed;
        self.findings.count(Rule::Tables, walks - std::mem::replace(&mut self.walks_into_freed, walks));
        self.findings.by_rule()
    }

    /// The time from which no buffer handed back so far may be reached. Without a bound, this is twice the timeout of
    /// Linux's queues.
    pub(super) fn over_ps(&self) -> u64 {
        const UNBOUNDED_PS: u64 = 20_000 * PS_PER_US;
        self.back_ps + self.findings.bound_ps.map_or(UNBOUNDED_PS, |bound_ps| bound_ps + 1)
    }

    /// Records that a mapping has been made. Must be called before any other core can act.
    fn mapped(&mut self, slot: Slot, live: &Live) {
        let rights = live.access.rights();
        for page in live.pages() {
            let bytes = page.extent.1 - page.extent.0;
            let memory = self.name(page.phys);
            self.owners.mapped(place(live, &page), slot, Share { memory, rights, bytes });
            self.findings.count(Rule::Reserved, u64::from(is_reserved(page.iova.pfn())));
        }
    }

    /// Records that a core begins a map: from now on the device may see translations that have not been announced.
    fn map_begins(&mut self, core: usize) {
        self.mapping.push(core);
    }

    /// Records that a core has ended its map. The map may explain some suspicious accesses; others can no longer be
    /// explained.
    fn map_ends(&mut self, core: usize) {
        self.mapping.retain(|inside| *inside != core);
        let mut suspects = std::mem::take(&mut self.suspects);
        suspects.retain_mut(|suspect| {
            if !suspect.under_way.contains(&core) {
                return true;
            }
            suspect.under_way.retain(|inside| *inside != core);
            if self.owners.allows(suspect.place, suspect.memory, suspect.rights) {
                return false;
            }
            if suspect.under_way.is_empty() {
                self.convict(suspect);
            }
            !suspect.under_way.is_empty()
        });
        self.suspects = suspects;
    }

    /// Whether as many of its accesses are in progress as a device can have. Without this limit the walkers would fall
    /// behind without bound, and walks that began long ago would cache what has long been invalid.
    fn is_waiting(&self) -> bool {
        self.answered_ps > self.now_ps + BACKLOG_PS
    }

    /// The mapping has just been made: gets its translations cached, and tries what it does not allow.
    fn try_out(&mut self, live: &Live) {
        const PAGES: usize = 4;
        if self.is_waiting() {
            return;
        }
        for page in self.sample(live, PAGES) {
            for rights in [Rights::READ, Rights::WRITE] {
                self.probe(place(live, &page), 0, rights);
            }
            self.try_rest(live, &page);
        }
        for range in &live.ranges {
            for pfn in [range.first_pfn().wrapping_sub(1), range.end_pfn()] {
                let rights = self.any_right();
                self.probe(Place { device: live.device, pfn }, 0, rights);
            }
        }
        self.roam();
    }

    /// The mapping is about to be unmapped: counts how many of its translations the hardware has cached.
    fn leaving(&mut self, slot: Slot, live: &Live) {
        for page in self.sample(live, SAMPLE) {
            let held = self.probe(place(live, &page), 0, live.access.rights());
            self.probes.cached += u64::from(matches!(held, Some(LookupOutcome::Hit | LookupOutcome::Joined)));
        }
        if self.is_by_entry && self.random.random_bool(0.5) {
            self.have_fetched_ahead(live);
        }
        for page in live.pages() {
            self.owners.leaving(place(live, &page), slot);
        }
        self.keep_warm();
    }

    /// Uses the entry before the last one of a mapping, if there is one, so that the hardware fetches the last one
    /// ahead.
    fn have_fetched_ahead(&mut self, live: &Live) {
        let last = live.addressing.segment_iova(&live.segments, live.segments.len() - 1, live.ranges[0]);
        let pfn = last.pfn().wrapping_sub(ENTRY_PAGES);
        for rights in [live.access.rights(), Rights::READ, Rights::WRITE] {
            self.probe(Place { device: live.device, pfn }, 0, rights);
        }
    }

    /// The mapping has been cleared, and its buffer is not yet handed back: keeps using what is cached.
    fn cling(&mut self, slot: Slot, live: &Live) {
        let (pages, rights) = (self.sample(live, SAMPLE), live.access.rights());
        for page in &pages {
            self.probe(place(live, page), 0, rights);
        }
        self.look_into_burst(slot, live);
        let page = pages[self.random.random_range(0..pages.len())];
        let departing = Departing { slot, place: place(live, &page), rights };
        if self.departing.len() < HOSTAGES_MAX {
            self.departing.push(departing);
        } else {
            self.departing[self.random.random_range(0..HOSTAGES_MAX)] = departing;
        }
        self.keep_warm();
    }

    /// The mapping has been cleared: counts the entries of its rings that are within reach although they are no longer
    /// valid.
    fn look_into_burst(&mut self, slot: Slot, live: &Live) {
        if !self.is_by_entry {
            return;
        }
        let rights = live.access.rights();
        for index in 0..live.segments.len() {
            let iova = live.addressing.segment_iova(&live.segments, index, live.ranges[0]);
            let place = Place { device: live.device, pfn: iova.pfn() };
            self.in_burst.push((slot, place, live.segments[index].phys.as_u64(), rights));
        }
        let mut reached: SmallVec<[((usize, u16), u64); 4]> = SmallVec::new();
        for (_, place, memory, rights) in &self.in_burst {
            let iova = Iova::from_pfn(place.pfn);
            let phys = self.vtd.reaches(self.now_ps, self.sources[place.device], iova, *rights);
            if phys.is_some_and(|phys| phys.as_u64() == *memory) {
                let ring = (place.device, RingAddress::of(iova).ring);
                match reached.iter_mut().find(|(of, _)| *of == ring) {
                    Some((_, entries)) => *entries += 1,
                    None => reached.push((ring, 1)),
                }
            }
        }
        self.in_burst_max = reached.iter().map(|(_, entries)| *entries).fold(self.in_burst_max, u64::max);
    }

    /// The buffer has been handed back to its owner.
    fn handed_back(&mut self, slot: Slot, live: &Live) {
        self.back_ps = self.now_ps;
        self.in_burst.retain(|(of, ..)| *of != slot);
        for page in live.pages() {
            self.owners.handed_back(place(live, &page), slot, self.now_ps);
        }
        let gone: Vec<Departing> = self.departing.extract_if(.., |departing| departing.slot == slot).collect();
        for Departing { place, rights, .. } in gone {
            self.probe(place, 0, rights);
        }
        for page in self.sample(live, SAMPLE) {
            self.probe(place(live, &page), 0, live.access.rights());
        }
        self.roam();
        self.breaks_in = self.breaks_in.map(|left| left.saturating_sub(1));
        if self.breaks_in == Some(0) && self.findings.broken_since_ps.is_none() {
            self.vtd.refuse_invalidations(true);
            self.findings.broken_since_ps = Some(self.now_ps);
        }
    }

    /// A batch has been submitted: its buffers are still the device's.
    fn between_halves(&mut self) {
        for index in 0..self.departing.len() {
            let Departing { place, rights, .. } = self.departing[index];
            self.probes.between_halves += u64::from(self.probe(place, 0, rights).is_some());
        }
        self.roam();
    }

    /// Tries a few accesses of every kind.
    fn roam(&mut self) {
        self.keep_warm();
        if self.is_waiting() {
            return;
        }
        for _ in 0..SEEN_PER_STEP {
            let Some(seen) = self.any_seen() else { break };
            let (near, rights) = (self.random.random_range(1..=NEIGHBOURHOOD), self.any_right());
            // With ring entries, half of the distances are whole entries.
            let near = if self.is_by_entry && near % 2 == 0 { near / 2 * ENTRY_PAGES } else { near };
            let pfn =
                if self.random.random_bool(0.5) { seen.pfn.wrapping_add(near) } else { seen.pfn.wrapping_sub(near) };
            let device = self.random.random_range(0..self.sources.len());
            for place in [seen, Place { pfn, ..seen }, Place { device, ..seen }] {
                self.probe(place, 0, rights);
            }
        }
        let device = self.random.random_range(0..self.sources.len());
        let limit = 1 << (u32::from(self.address_bits) - PAGE_SHIFT);
        let below = if self.random.random_bool(0.5) { limit } else { LOW_PFN.min(limit) };
        let (first, pages) = INTERRUPT_RANGE;
        let reserved = if self.random.random_bool(0.5) { 0 } else { first + self.random.random_range(0..pages) };
        for pfn in [self.random.random_range(0..below), reserved] {
            let rights = self.any_right();
            self.probe(Place { device, pfn }, 0, rights);
        }
    }

    /// Tries every address that was ever handed out, from every source id, at time `now_ps`.
    pub(super) fn rake(&mut self, now_ps: u64) {
        self.is_now(now_ps);
        for index in 0..self.owners.seen().len() {
            let seen = self.owners.seen()[index];
            for device in 0..self.sources.len() {
                for rights in [Rights::READ, Rights::WRITE] {
                    self.probe(Place { device, ..seen }, 0, rights);
                }
            }
        }
    }

    /// Uses each of the stale translations once more, and drops those that no longer translate.
    fn keep_warm(&mut self) {
        for index in 0..self.departing.len() {
            let Departing { place, rights, .. } = self.departing[index];
            self.probe(place, 0, rights);
        }
        let mut index = 0;
        while let Some(&place) = self.hostages.get(index) {
            let rights = self.owners.past_rights(place).filter(|_| !self.owners.is_held(place));
            match rights.and_then(|rights| self.probe(place, 0, rights)) {
                Some(_) => index += 1,
                None => drop(self.hostages.swap_remove(index)),
            }
        }
    }

    /// Tries bytes of the page outside the buffer (S8). The IOMMU translates whole pages, so this is no breach.
    fn try_rest(&mut self, live: &Live, page: &LivePage) {
        let (from, to) = (u64::from(page.extent.0), u64::from(page.extent.1));
        // An entry may be wrong by a single byte.
        let behind = if self.is_by_entry { to } else { PAGE_SIZE - 1 };
        let beside = if from > 0 { Some(0) } else { (to < PAGE_SIZE).then_some(behind) };
        let reached = beside.and_then(|offset| self.probe(place(live, page), offset, live.access.rights()));
        self.probes.residual += u64::from(reached.is_some());
    }

    /// Makes one access. Returns how it was translated, if it got through.
    fn probe(&mut self, place: Place, offset: u64, rights: Rights) -> Option<LookupOutcome> {
        self.probes.all += 1;
        let iova = Iova::new((place.pfn << PAGE_SHIFT) | offset);
        let translated = self.vtd.translate(self.now_ps, self.sources[place.device], iova, rights).ok()?;
        self.answered_ps = self.answered_ps.max(translated.ready_ps);
        let memory = self.name(PhysAddr::new(translated.phys.as_u64().wrapping_sub(offset)));
        let breach = self.owners.judge(place, memory, rights).map(|breach| self.findings.as_protected(breach));
        if let Some(breach) = breach {
            let (at_ps, under_way) = (self.now_ps, self.mapping.clone());
            let suspect = Suspect { place, memory, rights, breach, at_ps, under_way };
            if suspect.under_way.is_empty() { self.convict(&suspect) } else { self.suspects.push(suspect) }
        }
        Some(translated.outcome)
    }

    fn convict(&mut self, suspect: &Suspect) {
        let Suspect { place, breach, at_ps, .. } = suspect;
        let exposed = self.owners.reached(*place, suspect.memory, breach, *at_ps);
        self.findings.convict(breach, *at_ps, exposed);
        let stale = breach.back_ps.is_some() && !self.owners.is_held(*place);
        if stale && self.hostages.len() < HOSTAGES_MAX && !self.hostages.contains(place) {
            self.hostages.push(*place);
        }
    }

    /// At most `most` pages of a mapping: all pages, or the first, the last and random others.
    fn sample(&mut self, live: &Live, most: usize) -> SmallVec<[LivePage; SAMPLE]> {
        let all = live.pages();
        let count = all.len();
        if count <= most {
            return all.into_iter().collect();
        }
        let mut chosen: SmallVec<[usize; SAMPLE]> = [0, count - 1].into_iter().collect();
        chosen.extend((2..most).map(|_| self.random.random_range(1..count - 1)));
        chosen.into_iter().map(|index| all[index]).collect()
    }

    fn any_seen(&mut self) -> Option<Place> {
        let seen = self.owners.seen();
        (!seen.is_empty()).then(|| seen[self.random.random_range(0..seen.len())])
    }

    fn any_right(&mut self) -> Rights {
        if self.random.random_bool(0.5) { Rights::READ } else { Rights::WRITE }
    }
}

fn place(live: &Live, page: &LivePage) -> Place {
    Place { device: live.device, pfn: page.iova.pfn() }
}

/// Whether an I/O page must never be handed out (S9).
fn is_reserved(pfn: u64) -> bool {
    let (first, pages) = INTERRUPT_RANGE;
    pfn == 0 || (first..first + pages).contains(&pfn)
}
