//! A log and a trace side by side, at any offset between them.

use super::{JoinError, Joined, LoggedAccess, PersistentPage, Target, unexplained_rate};
use crate::{AccessLog, LogEvent, Trace, TraceMapping, UNKNOWN_DEVICE};
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PhysAddr, SourceId};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// An IOTLB descriptor of the log.
pub(super) struct Descriptor {
    qw0: u64,
    qw1: u64,
    /// How many accesses come before it.
    accesses: usize,
}

/// An access of the log.
struct Access {
    /// Index into [`Sides::pages`].
    page: u32,
    offset: u16,
    entry: EntryValue,
}

/// A page that the log shows, with its mappings in the trace.
struct Page {
    source: SourceId,
    pfn: u64,
    /// The mappings that cover it, in order.
    lives: Vec<Life>,
    /// How many operations precede the unmap of what was mapped here before the trace began.
    gone_at: Option<u32>,
}

/// The lifetime of a mapping, in operations: from just after `map` up to `end`.
struct Life {
    mapping: u32,
    map: u32,
    end: u32,
}

/// The log and the trace, and the mappings of every page in the log.
pub(super) struct Sides<'a> {
    trace: &'a Trace,
    pub(super) descriptors: Vec<Descriptor>,
    accesses: Vec<Access>,
    /// Sorted by source and number.
    pages: Vec<Page>,
}

impl<'a> Sides<'a> {
    pub(super) fn new(trace: &'a Trace, log: &AccessLog) -> Result<Self, JoinError> {
        let mut keys: Vec<_> = log.events.iter().filter_map(|event| page_of(event).map(|(key, _)| key)).collect();
        if u32::try_from(keys.len()).is_err() {
            return Err(JoinError::TooMany);
        }
        keys.sort_unstable();
        keys.dedup();
        let page = |(source, pfn)| Page { source, pfn, lives: Vec::new(), gone_at: None };
        let mut sides = Self {
            trace,
            descriptors: Vec::new(),
            accesses: Vec::new(),
            pages: keys.iter().copied().map(page).collect(),
        };
        for event in &log.events {
            match *event {
                LogEvent::Descriptor { qw0, qw1 } if is_iotlb(qw0) => {
                    sides.descriptors.push(Descriptor { qw0, qw1, accesses: sides.accesses.len() });
                }
                LogEvent::Descriptor { .. } => {}
                LogEvent::Access { entry, .. } => {
                    if let Some((key, offset)) = page_of(event) {
                        let page = keys.partition_point(|&other| other < key) as u32;
                        sides.accesses.push(Access { page, offset, entry });
                    }
                }
            }
        }
        if trace.invalidations.is_empty() {
            return Err(JoinError::NoneTraced);
        }
        if sides.descriptors.is_empty() {
            return Err(JoinError::NoneLogged);
        }
        keys.dedup_by_key(|key| key.0);
        let sources: Vec<_> = keys.iter().map(|key| key.0).collect();
        sides.find_lives(&sources);
        Ok(sides)
    }

    fn find_lives(&mut self, sources: &[SourceId]) {
        for (index, mapping) in self.trace.mappings.iter().enumerate() {
            let device = self.trace.devices[usize::from(mapping.device)];
            for &source in sources.iter().filter(|&&source| device == UNKNOWN_DEVICE || device == source) {
                for page in self.pages_in(source, mapping.iova_pfn, u64::from(mapping.pages)) {
                    let page = &mut self.pages[page];
                    // An earlier mapping of this page without an unmap has ended by now.
                    if let Some(last) = page.lives.last_mut() {
                        last.end = last.end.min(mapping.map_operation);
                    }
                    page.lives.push(Life {
                        mapping: index as u32,
                        map: mapping.map_operation,
                        end: mapping.unmap_operation.map_or(u32::MAX, u32::from),
                    });
                }
            }
        }
        for unmap in &self.trace.unmatched {
            for &source in sources {
                for page in self.pages_in(source, unmap.iova_pfn, unmap.pages) {
                    let page = &mut self.pages[page];
                    let is_first = page.lives.first().is_none_or(|life| unmap.at_operation <= life.map);
                    if is_first && page.gone_at.is_none() {
                        page.gone_at = Some(unmap.at_operation);
                    }
                }
            }
        }
    }

    fn pages_in(&self, source: SourceId, first_pfn: u64, pages: u64) -> Range<usize> {
        let below = |limit: u64| self.pages.partition_point(|page| (page.source, page.pfn) < (source, limit));
        below(first_pfn)..below(first_pfn + pages)
    }

    /// The range of the trace's invalidations that the log has too.
    pub(super) fn common(&self, offset: i64) -> Range<usize> {
        let end =
            (self.descriptors.len() as i64).saturating_sub(offset).clamp(0, self.trace.invalidations.len() as i64);
        offset.saturating_neg().clamp(0, end) as usize..end as usize
    }

    /// Whether the log and the trace show the same invalidations where they overlap.
    pub(super) fn agree(&self, offset: i64) -> bool {
        let common = self.common(offset);
        let mut logged = self.descriptors[(common.start as i64 + offset) as usize..].iter();
        let mut traced = self.trace.invalidations[common].iter();
        traced.all(|traced| logged.next().is_some_and(|it| (it.qw0, it.qw1) == (traced.qw0, traced.qw1)))
    }

    /// The join at `offset`. Returns `None` if its rate of unexplained accesses is not below `limit`.
    pub(super) fn at(&self, offset: i64, limit: f64) -> Result<Option<Joined>, JoinError> {
        let common = self.common(offset);
        if common.is_empty() {
            return Err(JoinError::Apart(offset));
        }
        let traced = &self.trace.invalidations;
        // Interval `k` lies before invalidation `k` of the trace, so there is one more interval than there are
        // invalidations.
        let accesses_of = |interval: usize| {
            let logged = interval as i64 + offset;
            let before = |descriptor: i64| match usize::try_from(descriptor) {
                Ok(descriptor) => self.descriptors.get(descriptor).map_or(self.accesses.len(), |it| it.accesses),
                Err(_) => 0,
            };
            before(logged - 1)..before(logged)
        };
        let inside = accesses_of(common.start).start..accesses_of(common.end).end;
        let inside_count = inside.len() as u64;
        let mut joined = Joined {
            offset,
            invalidations: common.len() as u64,
            accesses: Vec::new(),
            persistent: Vec::new(),
            unexplained: 0,
            outside: self.accesses.len() as u64 - inside_count,
        };
        let mut persistent_index = FxHashMap::default();
        let mut cursor = 0u32;
        for interval in common.start..=common.end {
            let from = interval.checked_sub(1).map_or(0, |before| traced[before].at_operation);
            let to = traced.get(interval).map_or(self.trace.operations.len() as u32, |next| next.at_operation);
            for access in &self.accesses[accesses_of(interval)] {
                cursor = cursor.max(from);
                let page = &self.pages[access.page as usize];
                let placed = match self.mapping_at(page, access, from..to, cursor) {
                    Some(placed) => Some(placed),
                    None => persistent_at(page, access, from).map(|(phys, rights)| {
                        let index = *persistent_index.entry((access.page, phys)).or_insert_with(|| {
                            let (device, iova_pfn) = (page.source, page.pfn);
                            joined.persistent.push(PersistentPage { device, iova_pfn, phys, rights });
                            joined.persistent.len() as u32 - 1
                        });
                        let known = &mut joined.persistent[index as usize].rights;
                        *known = union(*known, rights);
                        let target = Target::Persistent { index, offset: access.offset };
                        LoggedAccess { after_operation: cursor, target, rights }
                    }),
                };
                match placed {
                    Some(placed) => {
                        cursor = cursor.max(placed.after_operation);
                        joined.accesses.push(placed);
                    }
                    None => joined.unexplained += 1,
                }
                if unexplained_rate(joined.unexplained, inside_count) >= limit {
                    return Ok(None);
                }
            }
        }
        Ok((unexplained_rate(joined.unexplained, inside_count) < limit).then_some(joined))
    }

    /// The mapping that is live at the page during these operations, at the physical page that was accessed. `cursor`
    /// is the position that the accesses before this one have reached.
    fn mapping_at(&self, page: &Page, access: &Access, during: Range<u32>, cursor: u32) -> Option<LoggedAccess> {
        let begun = page.lives.partition_point(|life| life.map < during.end);
        let mut found = None;
        for life in page.lives[..begun].iter().rev().take_while(|life| life.end >= during.start) {
            let mapping = &self.trace.mappings[life.mapping as usize];
            let number = page.pfn - mapping.iova_pfn;
            let rights = common_rights(access.entry.rights(), mapping.access.rights());
            let last = life.end.min(during.end);
            if self.phys_of(mapping, number) != Some(phys_at(access.entry, page.pfn)) {
                continue;
            }
            // If there are several, the earliest that has not ended before `cursor`.
            if let Some(rights) = rights.filter(|_| found.is_none() || last >= cursor) {
                let after_operation = cursor.clamp(during.start.max(life.map + 1), last);
                let target = Target::Mapping { mapping: life.mapping, page: number as u32, offset: access.offset };
                found = Some(LoggedAccess { after_operation, target, rights });
            }
        }
        found
    }

    /// The physical address of page `number` of the mapping.
    fn phys_of(&self, mapping: &TraceMapping, number: u64) -> Option<PhysAddr> {
        let mut number = number;
        for segment in self.trace.segments_of(mapping) {
            if number < segment.pages() {
                return Some(PhysAddr::from_pfn(segment.phys.pfn() + number));
            }
            number -= segment.pages();
        }
        None
    }
}

/// The page, if it was mapped before the trace: the trace never maps it, or unmaps it before it maps it.
fn persistent_at(page: &Page, access: &Access, from: u32) -> Option<(PhysAddr, Rights)> {
    let there = match page.gone_at {
        Some(gone_at) => from <= gone_at,
        None => page.lives.is_empty(),
    };
    let rights = common_rights(access.entry.rights(), Rights::READ_WRITE).filter(|_| there)?;
    Some((phys_at(access.entry, page.pfn), rights))
}

/// The device and page that an access goes to, and the byte in the page.
fn page_of(event: &LogEvent) -> Option<((SourceId, u64), u16)> {
    match event {
        LogEvent::Access { source, iova, .. } => Some(((*source, iova.pfn()), byte_of(*iova))),
        LogEvent::Descriptor { .. } => None,
    }
}

fn byte_of(iova: Iova) -> u16 {
    iova.page_offset() as u16
}

/// Type 2 in bits 3:0 (and 0 in bits 11:9) is an IOTLB invalidation.
fn is_iotlb(qw0: u64) -> bool {
    qw0 & 0xe0f == 2
}

/// The physical address of page `pfn` under this entry. A large entry is taken to cover 2 MiB.
fn phys_at(entry: EntryValue, pfn: u64) -> PhysAddr {
    let within = if entry.is_large() { pfn % 512 } else { 0 };
    PhysAddr::from_pfn(entry.phys().pfn() | within)
}

/// The rights that both allow, if any.
fn common_rights(a: Rights, b: Rights) -> Option<Rights> {
    let all = [Rights::READ_WRITE, Rights::READ, Rights::WRITE];
    all.into_iter().find(|&rights| a.allows(rights) && b.allows(rights))
}

fn union(a: Rights, b: Rights) -> Rights {
    if a.allows(b) {
        a
    } else if b.allows(a) {
        b
    } else {
        Rights::READ_WRITE
    }
}
