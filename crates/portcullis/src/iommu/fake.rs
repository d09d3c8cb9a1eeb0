//! An IOMMU for tests. It caches as much as any hardware could: every translation and every table pointer that it has
//! ever seen, until it is invalidated. It also invalidates as late as allowed, so that a caller that does not wait is
//! caught. It tells its host about each table page that is freed while a pointer to it may be cached.

mod cached;
mod entries;
mod pointers;

use super::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use crate::address::{Iova, PAGE_SHIFT, PhysAddr};
use crate::entry::{EntryValue, LEVEL_BITS, Rights};
use crate::iommu::rings::{RingAddress, RingEntry};
use crate::platform::Platform;
use crate::platform::fake::{CriticalMutex, FakeHost};
use cached::Cached;
use core::ops::DerefMut;
use entries::{Entries, Hardware};
use pointers::Pointers;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::vec::Vec;

/// How the fake treats submissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Behaviour {
    /// Completes a submission when asked about it or a later one, and when the host's clock advances.
    #[default]
    Prompt,
    /// Completes submissions only when the host's clock advances.
    Slow,
    /// Accepts the commands and never completes them.
    Silent,
    /// Refuses the commands.
    Failing,
}

/// The number of a submission. `None` for one that never completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(Option<u64>);

/// A submission that has not taken effect yet.
#[derive(Debug)]
struct Waiting {
    number: u64,
    /// When it was submitted, on the host's clock.
    submitted_us: u64,
    commands: Vec<Invalidation>,
}

#[derive(Debug, Default)]
struct State {
    domains: BTreeMap<DomainId, (Translation, Vec<SourceId>)>,
    cached: Cached,
    pointers: Pointers,
    entries: Entries,
    commands: Vec<Invalidation>,
    /// In order of submission number.
    waiting: VecDeque<Waiting>,
    /// The number of submissions accepted so far.
    submissions: u64,
    behaviour: Behaviour,
}

impl State {
    /// Drops everything cached for `domain` except table pointers.
    fn forget(&mut self, domain: DomainId) {
        self.cached.forget(domain, 0..=u64::MAX);
        self.entries.forget(domain, 0..=u64::MAX);
    }

    /// Lets submissions take effect, oldest first, while `done` returns true.
    fn complete(&mut self, done: impl Fn(&Waiting) -> bool) {
        while self.waiting.front().is_some_and(&done) {
            let Some(waiting) = self.waiting.pop_front() else { break };
            for command in waiting.commands {
                self.pointers.invalidate(command);
                match command {
                    Invalidation::Pages { domain, first, mask, .. } => {
                        let pfns = first.pfn()..=first.pfn() + ((1 << mask) - 1);
                        self.cached.forget(domain, pfns.clone());
                        self.entries.forget(domain, pfns);
                    }
                    Invalidation::Domain(domain) => self.forget(domain),
                    Invalidation::Global => {
                        self.cached.clear();
                        self.entries.clear();
                    }
                }
            }
        }
    }
}

/// A fake IOMMU over the tables of a [`FakeHost`].
#[derive(Debug)]
pub struct FakeIommu<'h> {
    host: &'h FakeHost,
    capabilities: Capabilities,
    state: Arc<CriticalMutex<State>>,
}

impl<'h> FakeIommu<'h> {
    /// An IOMMU that supports every table format and address masks up to 18.
    pub fn new(host: &'h FakeHost) -> Self {
        Self::with_capabilities(host, Capabilities::COMPLETE)
    }

    /// An IOMMU with these capabilities.
    pub fn with_capabilities(host: &'h FakeHost, capabilities: Capabilities) -> Self {
        let state = Arc::new(CriticalMutex::new(State::default()));
        #[cfg(not(loom))]
        {
            let state = state.clone();
            host.watch_frees(Arc::new(move |frame| {
                let state = state.lock().expect("not poisoned");
                state.pointers.lead_to(frame)
            }));
        }
        Self { host, capabilities, state }
    }

    /// The memory that the fake reads, and whether it snoops.
    fn hardware(&self) -> Hardware<'h> {
        Hardware { host: self.host, snoops: self.capabilities.coherent }
    }

    /// The current state: everything submitted before the clock last advanced has taken effect.
    fn state(&self) -> impl DerefMut<Target = State> {
        let now_us = self.host.now_us();
        let mut state = self.state.lock().expect("not poisoned");
        state.complete(|waiting| waiting.submitted_us < now_us);
        state
    }

    /// Sets how submissions are treated.
    pub fn behave(&self, behaviour: Behaviour) {
        self.state().behaviour = behaviour;
    }

    /// Takes the commands received so far, in order, whether they have taken effect or not.
    pub fn take_commands(&self) -> Vec<Invalidation> {
        core::mem::take(&mut self.state().commands)
    }

    /// Whether the IOMMU would translate page `pfn` without a walk.
    pub fn is_cached(&self, domain: DomainId, pfn: u64) -> bool {
        let state = self.state();
        state.cached.get(domain, pfn).is_some_and(|entry| entry.is_present()) || state.entries.is_cached(domain, pfn)
    }

    /// The physical address that a DMA by `device` to `iova` reaches, if it is allowed. The translation stays cached
    /// until it is invalidated. An absent entry is cached as well if the capabilities allow that.
    pub fn access(&self, device: SourceId, iova: Iova, rights: Rights) -> Option<PhysAddr> {
        let mut state = self.state();
        let found = self.translate(&mut state, device, [iova]).pop().flatten();
        found.filter(|(_, granted)| granted.allows(rights)).map(|(phys, _)| phys)
    }

    /// The page of memory that a DMA by `device` to each of these pages reaches, in order, and what it may do there: as
    /// many calls of [`access`](Self::access) to each page would find, with the same effects.
    pub fn access_pages(&self, device: SourceId, pfns: &[u64]) -> Vec<Option<(u64, Rights)>> {
        let mut state = self.state();
        let found = self.translate(&mut state, device, pfns.iter().copied().map(Iova::from_pfn));
        let reached = |(phys, rights): (PhysAddr, Rights)| {
            (rights.allows(Rights::READ) || rights.allows(Rights::WRITE)).then(|| (phys.pfn(), rights))
        };
        found.into_iter().map(|found| found.and_then(reached)).collect()
    }

    /// Where a DMA by `device` to each address ends, in order, and what it may do there. The rights may be none at all.
    fn translate(
        &self,
        state: &mut State,
        device: SourceId,
        iovas: impl IntoIterator<Item = Iova>,
    ) -> Vec<Option<(PhysAddr, Rights)>> {
        let iovas = iovas.into_iter();
        let of = |(_, (_, devices)): &(_, &(Translation, Vec<SourceId>))| devices.contains(&device);
        let Some((&domain, &(translation, _))) = state.domains.iter().find(of) else {
            return iovas.map(|_| None).collect();
        };
        let caches_absent = self.capabilities.caches_absent;
        let (root, levels) = match translation {
            Translation::PassThrough => {
                return iovas.map(|iova| Some((PhysAddr::new(iova.as_u64()), Rights::READ_WRITE))).collect();
            }
            Translation::Tables { root, levels } => (root, u32::from(levels)),
            Translation::Rings { device } => {
                let mut entry = |iova| state.entries.get(self.hardware(), (domain, device), iova, caches_absent);
                let reach = |(iova, entry): (Iova, RingEntry)| {
                    entry.reach(RingAddress::of(iova).offset).map(|phys| (phys, entry.rights))
                };
                return iovas.map(|iova| reach((iova, entry(iova)?))).collect();
            }
        };
        let State { cached, pointers, .. } = state;
        // Neighbors share a table, so its pointer is kept for the next walk.
        let mut lowest = None;
        let translated = iovas.map(|iova| {
            let entry = cached.get(domain, iova.pfn()).unwrap_or_else(|| {
                let entry = self.walk((root, levels), domain, iova, pointers, &mut lowest);
                let entry = entry.unwrap_or(EntryValue::ABSENT);
                if entry.is_present() || caches_absent {
                    cached.insert(domain, iova.pfn(), entry);
                }
                entry
            });
            Some((PhysAddr::new(entry.phys().as_u64() + iova.page_offset()), entry.rights()))
        });
        translated.collect()
    }

    /// Every page that `device` could reach by some address with the given rights, through the tables in memory or
    /// through cached entries. Each result is (page of the address, page of memory). Empty for a device that is passed
    /// through.
    pub fn reachable(&self, device: SourceId, rights: Rights) -> Vec<(u64, u64)> {
        let state = self.state();
        let of = |(_, devices): &(Translation, Vec<SourceId>)| devices.contains(&device);
        let Some((&domain, &(translation, _))) = state.domains.iter().find(|(_, domain)| of(domain)) else {
            return Vec::new();
        };
        let (root, levels) = match translation {
            Translation::PassThrough => return Vec::new(),
            Translation::Tables { root, levels } => (root, levels),
            Translation::Rings { device } => {
                let cached: Vec<(u64, RingEntry)> = state.entries.of_domain(domain).collect();
                drop(state);
                let all = cached.into_iter().chain(entries::in_tables(self.hardware(), device));
                return all.flat_map(|entry| entries::pages(entry, rights)).collect();
            }
        };
        let mut found: Vec<(u64, EntryValue)> = state.cached.of_domain(domain).collect();
        drop(state);
        self.leaves(root, u32::from(levels), 0, &mut found);
        let reached = found.iter().filter(|(_, entry)| entry.rights().allows(rights));
        reached.map(|(pfn, entry)| (*pfn, entry.phys().pfn())).collect()
    }

    /// Collects the leaves of the table at `table`, whose first entry translates page `first`.
    fn leaves(&self, table: PhysAddr, level: u32, first: u64, found: &mut Vec<(u64, EntryValue)>) {
        let Some(words) = self.host.hardware_page(table, self.capabilities.coherent) else { return };
        for (index, bits) in words.into_iter().enumerate() {
            let entry = EntryValue::from_bits(bits);
            let pfn = first + ((index as u64) << (LEVEL_BITS * (level - 1)));
            if !entry.is_present() {
                continue;
            }
            if level == 1 || entry.is_large() {
                let page = |page| {
                    let phys = PhysAddr::from_pfn(entry.phys().pfn() + page);
                    (pfn + page, EntryValue::leaf(phys, entry.rights(), false))
                };
                found.extend((0..1 << (LEVEL_BITS * (level - 1))).map(page));
            } else {
                self.leaves(entry.phys(), level - 1, pfn, found);
            }
        }
    }

    /// Walks the tables in memory, starting at the lowest table with a cached pointer, and returns a 4 KiB view of the
    /// leaf. `last` is the last leaf table that was walked, with its number.
    fn walk(
        &self,
        (root, levels): (PhysAddr, u32),
        domain: DomainId,
        iova: Iova,
        pointers: &mut Pointers,
        last: &mut Option<(u64, PhysAddr)>,
    ) -> Option<EntryValue> {
        if iova.as_u64() >> (PAGE_SHIFT + LEVEL_BITS * levels) != 0 {
            return None;
        }
        let number = iova.pfn() >> LEVEL_BITS;
        let known = last.filter(|(of, _)| *of == number).map(|(_, table)| (table, 1));
        let known = known.or_else(|| pointers.lowest(domain, iova.pfn(), levels));
        let (mut table, lowest) = known.unwrap_or((root, levels));
        for level in (1..=lowest).rev() {
            if level == 1 {
                *last = Some((number, table));
            }
            let shift = PAGE_SHIFT + LEVEL_BITS * (level - 1);
            let index = (iova.as_u64() >> shift) & 511;
            let word = self.host.hardware_read(PhysAddr::new(table.as_u64() + index * 8), self.capabilities.coherent);
            let bits = word.expect("the walk reached a table page that was freed (S4)");
            let value = EntryValue::from_bits(bits);
            if !value.is_present() {
                return None;
            }
            if level == 1 || value.is_large() {
                let inside = iova.as_u64() & ((1 << shift) - 1) & !0xfff;
                assert_eq!(
                    value.phys().as_u64() & ((1 << shift) - 1),
                    0,
                    "a large leaf has its low address bits reserved"
                );
                return Some(EntryValue::leaf(PhysAddr::new(value.phys().as_u64() + inside), value.rights(), false));
            }
            table = value.phys();
            pointers.insert(domain, iova.pfn(), level - 1, table);
        }
        None
    }
}

// SAFETY: it reaches no memory at all; `access` only reports what a device would reach.
unsafe impl Iommu for FakeIommu<'_> {
    type Ticket = Ticket;

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        let mut state = self.state();
        let id =
            (1..=u16::MAX).map(DomainId).find(|id| !state.domains.contains_key(id)).ok_or(AttachError::NoDomainId)?;
        state.domains.insert(id, (translation, Vec::new()));
        Ok(id)
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        let mut state = self.state();
        if matches!(state.behaviour, Behaviour::Silent | Behaviour::Failing) {
            return Err(AttachError::Queue(QueueError::Timeout(0)));
        }
        // The flush that belongs to this is waited for, and so is everything submitted earlier.
        state.complete(|_| true);
        state.domains.remove(&domain).ok_or(AttachError::NoSuchDomain(domain))?;
        state.forget(domain);
        state.pointers.forget(domain);
        Ok(())
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        let mut state = self.state();
        if state.domains.values().any(|(_, devices)| devices.contains(&device)) {
            return Err(AttachError::Attached(device));
        }
        let (_, devices) = state.domains.get_mut(&domain).ok_or(AttachError::NoSuchDomain(domain))?;
        devices.push(device);
        Ok(())
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        let mut state = self.state();
        let (_, devices) = state.domains.get_mut(&domain).ok_or(AttachError::NoSuchDomain(domain))?;
        let place = devices.iter().position(|d| *d == device).ok_or(AttachError::NotAttached(device))?;
        devices.swap_remove(place);
        Ok(())
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        let submitted_us = self.host.now_us();
        let mut state = self.state();
        match state.behaviour {
            Behaviour::Failing => return Err(QueueError::Descriptor),
            Behaviour::Silent => return Ok(Ticket(None)),
            Behaviour::Prompt | Behaviour::Slow => {}
        }
        for command in commands {
            if let Invalidation::Pages { first, mask, .. } = command {
                assert_eq!(first.pfn() & ((1 << mask) - 1), 0, "a page-selective command is aligned to its size");
            }
        }
        state.commands.extend_from_slice(commands);
        state.submissions += 1;
        let number = state.submissions;
        state.waiting.push_back(Waiting { number, submitted_us, commands: commands.to_vec() });
        Ok(Ticket(Some(number)))
    }

    /// It never has to wait.
    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<Ticket>, QueueError> {
        self.submit(commands).map(Some)
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        let mut state = self.state();
        let Some(number) = ticket.0 else { return Ok(false) };
        if state.behaviour != Behaviour::Slow {
            state.complete(|waiting| waiting.number <= number);
        }
        Ok(state.waiting.front().is_none_or(|oldest| oldest.number > number))
    }
}
