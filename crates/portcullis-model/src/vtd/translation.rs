//! Translating requests: the context cache, the IOTLB, the paging-structure caches, and the walks under way.

use super::caches::Caches;
use super::prefetching::{PrefetchFlaw, Prefetching};
use super::rings::{self, RingFlaw, Rings};
use super::walk::{self, ContextRefusal, Format, Found, Leaf, NO_POINTER, Pointers, is_interrupt, level_shift};
use super::{Counters, LookupOutcome, Translated};
use crate::iotlb_log::IotlbLog;
use crate::parameters::{Parameters, PsiDrops};
use crate::prefetch::{Covered, Page};
use crate::ram::Ram;
use portcullis::iommu::rings::RING_ADDRESS_MASK;
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PAGE_SHIFT, PhysAddr, SourceId};
use portcullis_vtd::spec::descriptors::{ContextScope, IotlbScope};
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::spec::tables::{ContextEntry, TranslationType};
use rustc_hash::FxHashMap;

/// A walk. Its result is known, because the tables are read when the walk is requested, but it is cached only when
/// its time has passed.
struct Walk {
    completes_ps: u64,
    domain: u16,
    iova: Iova,
    leaf: Leaf,
    /// Cleared by an invalidation that would have dropped the leaf from the IOTLB.
    inserts_leaf: bool,
    /// The walk was a prefetch, and the page was not requested since. Its leaf goes into the buffer of the
    /// prefetcher.
    is_prefetch: bool,
    /// The pointers that the walk read, indexed by the level of the table pointed to, less one. An invalidation
    /// removes those that it would have dropped from their caches.
    pointers: Pointers,
}

impl Walk {
    fn serves(&self, domain: u16, iova: Iova) -> bool {
        self.inserts_leaf && self.domain == domain && (self.iova.as_u64() ^ iova.as_u64()) >> self.leaf.shift == 0
    }
}

/// Everything that turns a request into an address.
pub(super) struct Translation {
    parameters: Parameters,
    format: Format,
    contexts: FxHashMap<u16, ContextEntry>,
    /// The context used last, which is also in `contexts`.
    last: Option<(SourceId, ContextEntry)>,
    caches: Caches,
    prefetching: Option<Prefetching>,
    walks: Vec<Walk>,
    /// When the first of them completes; `u64::MAX` if there is none.
    walk_ps: u64,
    rings: Rings,
    /// When each walker becomes free.
    walkers: Box<[u64]>,
    /// The log of requests to the IOTLB, while it is recorded.
    log: Option<IotlbLog>,
}

impl Translation {
    pub(super) fn new(parameters: &Parameters) -> Self {
        Self {
            parameters: parameters.clone(),
            format: Format::new(parameters),
            contexts: FxHashMap::default(),
            last: None,
            caches: Caches::new(parameters),
            prefetching: parameters.prefetcher.as_ref().map(Prefetching::new),
            walks: Vec::new(),
            walk_ps: u64::MAX,
            rings: Rings::new(parameters.iotlb_entries as usize, parameters.memory_read_ps),
            walkers: vec![0; parameters.walkers as usize].into(),
            log: None,
        }
    }

    /// Translates a request at `now_ps`. A refusal tells whether the fault is recorded.
    #[inline]
    pub(super) fn translate(
        &mut self,
        ram: &Ram,
        counters: &mut Counters,
        root: PhysAddr,
        now_ps: u64,
        (source, iova, rights): (SourceId, Iova, Rights),
    ) -> Result<Translated, ContextRefusal> {
        let context = match self.last {
            Some((last, context)) if last == source => context,
            _ => self.context(ram, counters, root, source)?,
        };
        if context.translation_type == TranslationType::Rings {
            let walkers = &mut self.walkers;
            return self.rings.translate(rings::Request {
                ram,
                counters,
                context,
                walkers,
                now_ps,
                source,
                iova,
                rights,
            });
        }
        let recorded = !context.faults_disabled;
        if self.is_beyond_width(&context, iova) {
            return Err((FaultReason::AddressBeyondWidth, recorded));
        }
        if context.translation_type == TranslationType::PassThrough {
            let phys = PhysAddr::new(iova.as_u64());
            return Ok(Translated { phys, ready_ps: now_ps, outcome: LookupOutcome::Hit });
        }
        counters.lookups += 1;
        if let Some(log) = &mut self.log {
            log.asked(Page { domain: context.domain.0, pfn: iova.pfn() });
        }
        if let Some(leaf) = self.caches.iotlb.get(context.domain.0, iova) {
            counters.iotlb_hits += 1;
            let phys = leaf.admit(iova, rights).map_err(|reason| (reason, recorded))?;
            return Ok(Translated { phys, ready_ps: now_ps, outcome: LookupOutcome::Hit });
        }
        self.miss(ram, counters, &context, now_ps, iova, rights).map_err(|reason| (reason, recorded))
    }

    fn miss(
        &mut self,
        ram: &Ram,
        counters: &mut Counters,
        context: &ContextEntry,
        now_ps: u64,
        iova: Iova,
        rights: Rights,
    ) -> Result<Translated, FaultReason> {
        let domain = context.domain.0;
        if let Some(taken) = self.prefetching.as_mut().and_then(|prefetching| prefetching.take(domain, iova, rights)) {
            counters.iotlb_hits += 1;
            let leaf = taken?;
            counters.prefetches_useful += 1;
            self.insert_leaf(domain, iova, leaf);
            self.predict(ram, counters, context, now_ps, iova);
            return Ok(Translated { phys: leaf.phys(iova), ready_ps: now_ps, outcome: LookupOutcome::Hit });
        }
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.serves(domain, iova)) {
            counters.iotlb_hits += 1;
            counters.iotlb_joined += 1;
            let phys = walk.leaf.admit(iova, rights)?;
            let (ready_ps, is_late) = (walk.completes_ps, std::mem::take(&mut walk.is_prefetch));
            if is_late {
                counters.prefetches_late += 1;
                self.predict(ram, counters, context, now_ps, iova);
            }
            return Ok(Translated { phys, ready_ps, outcome: LookupOutcome::Joined });
        }
        counters.iotlb_misses += 1;
        let top = (EntryValue::table(context.table), context.levels);
        let (pointer, level) = self.caches.pointer(domain, iova, context.levels).unwrap_or(top);
        let Found { result, pointers, level: last, into_freed } =
            walk::walk(ram, &self.format, pointer, level, iova, rights);
        let reads = level - last + 1;
        counters.memory_reads += u64::from(reads);
        counters.walks_into_freed += u64::from(into_freed);
        // The tables at these levels were found by reading the pointer to them and not in a paging-structure cache.
        for table in last..level {
            match table {
                1 => counters.ptcache_l3_misses += 1,
                2 => counters.ptcache_l2_misses += 1,
                _ => counters.ptcache_l1_misses += 1,
            }
        }
        let completes_ps = self.walk_for(now_ps, reads);
        let leaf = result?;
        self.begin(Walk { completes_ps, domain, iova, leaf, inserts_leaf: true, is_prefetch: false, pointers });
        self.predict(ram, counters, context, now_ps, iova);
        Ok(Translated { phys: leaf.phys(iova), ready_ps: completes_ps, outcome: LookupOutcome::Miss { reads } })
    }

    fn begin(&mut self, walk: Walk) {
        self.walk_ps = self.walk_ps.min(walk.completes_ps);
        self.walks.push(walk);
    }

    /// Occupies the walker that is free first for `reads` reads. Returns when it is done.
    fn walk_for(&mut self, now_ps: u64, reads: u8) -> u64 {
        let walker = self.walkers.iter_mut().min().expect("there is at least one walker");
        *walker = now_ps.max(*walker) + u64::from(reads) * self.parameters.memory_read_ps;
        *walker
    }

    fn insert_leaf(&mut self, domain: u16, iova: Iova, leaf: Leaf) {
        let evicted = self.caches.iotlb.insert(domain, iova, leaf);
        if let (Some(prefetching), Some(page)) = (&mut self.prefetching, evicted) {
            prefetching.evicted(page);
        }
    }

    /// Walks for the pages that the prefetcher predicts. It is called for an allowed request that was served neither
    /// by the IOTLB nor by the walk of another request.
    fn predict(&mut self, ram: &Ram, counters: &mut Counters, context: &ContextEntry, now_ps: u64, iova: Iova) {
        let missed = Page { domain: context.domain.0, pfn: iova.pfn() };
        let Some(prefetching) = &mut self.prefetching else { return };
        let predicted = prefetching.missed(missed);
        // The context has no tables of other domains.
        for page in predicted.into_iter().filter(|page| page.domain == missed.domain) {
            self.prefetch(ram, counters, context, now_ps, Iova::from_pfn(page.pfn));
        }
    }

    /// Walks for a page that was not requested yet, unless it is cached or under way. If nothing is mapped, nothing
    /// happens and no fault is recorded.
    fn prefetch(&mut self, ram: &Ram, counters: &mut Counters, context: &ContextEntry, now_ps: u64, iova: Iova) {
        let (domain, beyond) = (context.domain.0, self.is_beyond_width(context, iova));
        let Some(prefetching) = &self.prefetching else { return };
        let is_known = self.caches.iotlb.peek(domain, iova).or(prefetching.peek(domain, iova)).is_some();
        if beyond || is_interrupt(iova.as_u64()) || is_known || self.walks.iter().any(|walk| walk.serves(domain, iova))
        {
            return;
        }
        let top = (EntryValue::table(context.table), context.levels);
        let (pointer, level) = self.caches.pointer(domain, iova, context.levels).unwrap_or(top);
        // There is no request and so no rights to check. A request that uses the leaf is checked against the leaf's
        // rights.
        let read = walk::walk(ram, &self.format, pointer, level, iova, Rights::READ);
        let found = match read.result {
            Ok(_) => read,
            Err(_) => walk::walk(ram, &self.format, pointer, level, iova, Rights::WRITE),
        };
        let reads = level - found.level + 1;
        counters.prefetches_issued += 1;
        counters.prefetch_reads += u64::from(reads);
        counters.walks_into_freed += u64::from(found.into_freed);
        let completes_ps = self.walk_for(now_ps, reads);
        match found.result {
            Ok(leaf) => self.begin(Walk {
                completes_ps,
                domain,
                iova,
                leaf,
                inserts_leaf: true,
                is_prefetch: true,
                pointers: found.pointers,
            }),
            Err(_) => counters.prefetches_unmapped += 1,
        }
    }

    /// The driver hints that `source` will request the page at `iova`.
    pub(super) fn hint(
        &mut self,
        ram: &Ram,
        counters: &mut Counters,
        root: PhysAddr,
        now_ps: u64,
        source: SourceId,
        iova: Iova,
    ) {
        if self.prefetching.is_none() {
            return;
        }
        // A hint has no effect if the device may not use tables.
        if let Ok(context) = self.context(ram, counters, root, source)
            && context.translation_type == TranslationType::Untranslated
        {
            self.prefetch(ram, counters, &context, now_ps, iova);
        }
    }

    /// The driver hints that `source` will not request the page at `iova` again. Its entry becomes the next of its
    /// set to be evicted.
    pub(super) fn unmap_hint(
        &mut self,
        ram: &Ram,
        counters: &mut Counters,
        root: PhysAddr,
        source: SourceId,
        iova: Iova,
    ) {
        if let Ok(context) = self.context(ram, counters, root, source) {
            self.caches.iotlb.make_oldest(context.domain.0, iova);
        }
    }

    /// Logs the requests to the IOTLB from now on.
    pub(super) fn record(&mut self) {
        self.log = Some(IotlbLog::default());
    }

    /// The log so far.
    pub(super) fn take_log(&mut self) -> IotlbLog {
        self.log.take().unwrap_or_default()
    }

    /// Plants a flaw in the prefetcher, if there is one.
    pub(super) fn plant(&mut self, flaw: PrefetchFlaw) {
        if let Some(prefetching) = &mut self.prefetching {
            prefetching.flaw = Some(flaw);
        }
    }

    /// Plants a flaw in the handling of rings.
    pub(super) fn plant_in_rings(&mut self, flaw: RingFlaw) {
        self.rings.plant(flaw);
    }

    /// Where a request would lead now. Changes nothing.
    pub(super) fn reaches(
        &self,
        ram: &Ram,
        root: PhysAddr,
        source: SourceId,
        iova: Iova,
        rights: Rights,
    ) -> Option<PhysAddr> {
        let last = self.last.filter(|(last, _)| *last == source).map(|(_, context)| context);
        let context = match last.or_else(|| self.contexts.get(&source.requester()).copied()) {
            Some(context) => context,
            None => walk::context(ram, &self.parameters, root, source, &mut false).ok()?,
        };
        if context.translation_type == TranslationType::Rings {
            return self.rings.reaches(ram, &context, source, iova, rights);
        }
        if self.is_beyond_width(&context, iova) {
            return None;
        }
        if context.translation_type == TranslationType::PassThrough {
            return Some(PhysAddr::new(iova.as_u64()));
        }
        let domain = context.domain.0;
        let buffered = || self.prefetching.as_ref().and_then(|prefetching| prefetching.peek(domain, iova));
        let under_way = || self.walks.iter().find(|walk| walk.serves(domain, iova)).map(|walk| walk.leaf);
        let leaf = match self.caches.iotlb.peek(domain, iova).or_else(buffered).or_else(under_way) {
            Some(leaf) => leaf,
            None => {
                let top = (EntryValue::table(context.table), context.levels);
                let (pointer, level) = self.caches.peek_pointer(domain, iova, context.levels).unwrap_or(top);
                walk::walk(ram, &self.format, pointer, level, iova, rights).result.ok()?
            }
        };
        leaf.admit(iova, rights).ok()
    }

    /// Where the tables in memory lead a request. Context and pages are read from memory, and the caches are ignored.
    pub(super) fn in_tables(&self, ram: &Ram, root: PhysAddr, source: SourceId, iova: Iova) -> Option<PhysAddr> {
        let context = walk::context(ram, &self.parameters, root, source, &mut false).ok()?;
        if context.translation_type == TranslationType::Rings {
            return rings::in_tables(ram, context.table, iova);
        }
        if self.is_beyond_width(&context, iova) {
            return None;
        }
        if context.translation_type == TranslationType::PassThrough {
            return Some(PhysAddr::new(iova.as_u64()));
        }
        self.leaf_in_tables(ram, &context, iova).map(|leaf| leaf.phys(iova))
    }

    fn leaf_in_tables(&self, ram: &Ram, context: &ContextEntry, iova: Iova) -> Option<Leaf> {
        let found = |rights| {
            let top = EntryValue::table(context.table);
            walk::walk(ram, &self.format, top, context.levels, iova, rights).result.ok()
        };
        found(Rights::READ).or_else(|| found(Rights::WRITE))
    }

    /// The number of cached leaves of covered pages that are still mapped, as far as a context is cached.
    fn live_leaves(&self, ram: &Ram, covered: Covered) -> u64 {
        let is_mapped = |page: &Page| {
            // All devices of a domain have the same table.
            let is_its = |context: &&ContextEntry| {
                let through_tables = [TranslationType::Untranslated, TranslationType::WithDeviceTlb];
                context.domain.0 == page.domain && through_tables.contains(&context.translation_type)
            };
            let context = self.contexts.values().find(is_its);
            context.is_some_and(|context| self.leaf_in_tables(ram, context, Iova::from_pfn(page.pfn)).is_some())
        };
        self.caches.iotlb.pages_in(covered).filter(is_mapped).count() as u64
    }

    /// When the next walk or fetch completes; `u64::MAX` if none is under way.
    #[inline]
    pub(super) fn next_ps(&self) -> u64 {
        self.walk_ps.min(self.rings.next_ps())
    }

    /// Completes the walk or fetch that is due first.
    pub(super) fn complete_walk(&mut self, ram: &Ram, counters: &mut Counters) {
        if self.rings.next_ps() < self.walk_ps {
            let contexts = &self.contexts;
            return self
                .rings
                .complete(ram, counters, &mut self.walkers, |source| contexts.get(&source.requester()).copied());
        }
        let first = (0..self.walks.len()).min_by_key(|&at| self.walks[at].completes_ps);
        let Some(first) = first else { return };
        let walk = self.walks.remove(first);
        self.walk_ps = self.walks.iter().map(|walk| walk.completes_ps).min().unwrap_or(u64::MAX);
        match &mut self.prefetching {
            Some(prefetching) if walk.is_prefetch && walk.inserts_leaf => {
                prefetching.fill(counters, walk.domain, walk.iova, walk.leaf);
            }
            Some(_) if walk.is_prefetch => counters.prefetches_useless += 1,
            _ if walk.inserts_leaf => self.insert_leaf(walk.domain, walk.iova, walk.leaf),
            _ => {}
        }
        for (pointer, level) in walk.pointers.into_iter().zip(1..) {
            if pointer != NO_POINTER {
                self.caches.insert_pointer(walk.domain, walk.iova, level, pointer);
            }
        }
    }

    /// Executes an IOTLB invalidation.
    pub(super) fn invalidate(&mut self, ram: &Ram, counters: &mut Counters, scope: IotlbScope) {
        let (domain, pages, leaf_only) = match scope {
            IotlbScope::Global => (None, None, false),
            IotlbScope::Domain(domain) => (Some(domain.0), None, false),
            IotlbScope::Pages { domain, first, mask, leaf_only } => {
                let (first, last) = page_range(first, mask);
                (Some(domain.0), Some((first, last)), leaf_only && self.parameters.honours_hint)
            }
        };
        let covered = Covered { domain, pages };
        // What is dropped of the leaves. All else, the buffer of the prefetcher included, is dropped as `covered` says.
        let leaves = match self.parameters.psi_drops {
            PsiDrops::All if pages.is_some() && !leaf_only => Covered { domain, pages: None },
            _ => covered,
        };
        if pages.is_none_or(|(first, last)| first != last) {
            counters.iotlb_dropped_live += self.live_leaves(ram, covered);
        }
        if let Some(log) = &mut self.log {
            log.invalidated(leaves);
        }
        if let Some(prefetching) = &mut self.prefetching {
            prefetching.invalidated(counters, covered, &mut self.caches.iotlb.pages_in(leaves));
        }
        self.caches.iotlb.invalidate(leaves);
        self.caches.invalidate_pointers(covered, leaf_only);
        let ring = |pfn: u64| (pfn >> RING_ADDRESS_MASK) as u16;
        self.rings.invalidate(domain, pages.map(|(first, last)| (ring(first), ring(last))));
        let lands = self.prefetching.as_ref().and_then(|it| it.flaw) == Some(PrefetchFlaw::LandsAfterInvalidation);
        for walk in &mut self.walks {
            if domain.is_some_and(|domain| domain != walk.domain) {
                continue;
            }
            let pfn = walk.iova.pfn();
            let overlaps = |pages: Option<(u64, u64)>, shift: u32| {
                let covers = shift - PAGE_SHIFT;
                pages.is_none_or(|(first, last)| (first >> covers..=last >> covers).contains(&(pfn >> covers)))
            };
            // The leaf of a prefetch goes into the buffer and not into the IOTLB.
            let dropped = if walk.is_prefetch { pages } else { leaves.pages };
            walk.inserts_leaf &= !overlaps(dropped, walk.leaf.shift) || walk.is_prefetch && lands;
            for (pointer, level) in walk.pointers.iter_mut().zip(1..) {
                if !leaf_only && overlaps(pages, level_shift(level + 1)) {
                    *pointer = NO_POINTER;
                }
            }
        }
    }

    /// Executes a context-cache invalidation.
    pub(super) fn invalidate_contexts(&mut self, scope: ContextScope) {
        self.last = None;
        match scope {
            ContextScope::Global => self.contexts.clear(),
            ContextScope::Domain(domain) => self.contexts.retain(|_, context| context.domain != domain),
            ContextScope::Device { domain, source, function_mask } => {
                // FM masks this many function bits from the top: none, 2, 2:1 or 2:0.
                let ignored = 7 & !(7 >> function_mask);
                self.contexts.retain(|&other, context| {
                    context.domain != domain || other & !ignored != source.requester() & !ignored
                });
            }
        }
    }

    fn context(
        &mut self,
        ram: &Ram,
        counters: &mut Counters,
        root: PhysAddr,
        source: SourceId,
    ) -> Result<ContextEntry, ContextRefusal> {
        let context = match self.contexts.get(&source.requester()) {
            Some(&context) => context,
            None => {
                counters.context_misses += 1;
                let mut into_freed = false;
                let found = walk::context(ram, &self.parameters, root, source, &mut into_freed);
                counters.walks_into_freed += u64::from(into_freed);
                let context = found?;
                self.contexts.insert(source.requester(), context);
                context
            }
        };
        self.last = Some((source, context));
        Ok(context)
    }

    #[inline]
    fn is_beyond_width(&self, context: &ContextEntry, iova: Iova) -> bool {
        let bits = level_shift(context.levels + 1).min(self.parameters.address_bits.into());
        iova.as_u64() >> bits != 0
    }
}

/// The first and the last of the 2^mask aligned pages around `first`. Hardware ignores the bits below.
pub(super) fn page_range(first: Iova, mask: u8) -> (u64, u64) {
    let below = (1u64 << mask) - 1;
    (first.pfn() & !below, first.pfn() | below)
}
