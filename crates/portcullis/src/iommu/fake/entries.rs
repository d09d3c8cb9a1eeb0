//! Ring entries that were read at some time. Each stays cached until it is invalidated, together with the entry after
//! it.

use super::super::DomainId;
use crate::address::{Iova, PAGE_SHIFT, PAGE_SIZE, PhysAddr};
use crate::entry::Rights;
use crate::iommu::rings::{DeviceHeader, ENTRY_PAGES, RingAddress, RingEntry, RingPointer, SLOT_BYTES};
use crate::platform::fake::FakeHost;
use core::ops::RangeInclusive;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Cached entries by domain and first page of the entry's addresses. `None` for an entry that was found absent.
#[derive(Debug, Default)]
pub(super) struct Entries(BTreeMap<(DomainId, u64), Option<RingEntry>>);

impl Entries {
    /// The entry that serves `iova`. It stays cached from now on. An absent entry is cached only if `caches_absent` is
    /// true.
    pub(super) fn get(
        &mut self,
        hardware: Hardware<'_>,
        (domain, device): (DomainId, PhysAddr),
        iova: Iova,
        caches_absent: bool,
    ) -> Option<RingEntry> {
        let RingAddress { ring, entry, .. } = RingAddress::of(iova);
        let key = |entry| (domain, RingAddress { ring, entry, offset: 0 }.iova().pfn());
        if let Some(cached) = self.0.get(&key(entry)) {
            return *cached;
        }
        let (pointer, found) = ring_of(hardware, device, ring)
            .map_or((None, None), |pointer| (Some(pointer), entry_of(hardware, pointer, entry)));
        if found.is_some() || caches_absent {
            self.0.insert(key(entry), found);
        }
        if let (Some(pointer), Some(_)) = (pointer, found) {
            let next = (entry + 1) % pointer.size;
            if let Some(ahead) = entry_of(hardware, pointer, next) {
                self.0.entry(key(next)).or_insert(Some(ahead));
            }
        }
        found
    }

    pub(super) fn is_cached(&self, domain: DomainId, pfn: u64) -> bool {
        self.0.get(&(domain, pfn & !(ENTRY_PAGES - 1))).is_some_and(Option::is_some)
    }

    /// The cached entries of `domain`, each with the first page of its addresses.
    pub(super) fn of_domain(&self, domain: DomainId) -> impl Iterator<Item = (u64, RingEntry)> {
        self.0.iter().filter(move |((of, _), _)| *of == domain).filter_map(|((_, pfn), entry)| Some((*pfn, (*entry)?)))
    }

    pub(super) fn forget(&mut self, domain: DomainId, pfns: RangeInclusive<u64>) {
        let touched = |pfn: u64| pfn <= *pfns.end() && pfn + (ENTRY_PAGES - 1) >= *pfns.start();
        self.0.retain(|(of, pfn), _| *of != domain || !touched(*pfn));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The memory that hardware reads, and whether it snoops.
#[derive(Clone, Copy)]
pub(super) struct Hardware<'h> {
    pub(super) host: &'h FakeHost,
    pub(super) snoops: bool,
}

/// Reads a slot as hardware does, 128 bits at once: reads again if the half with the valid bit changed in between.
fn slot(hardware: Hardware<'_>, table: PhysAddr, index: u64) -> [u64; 2] {
    let at = table.as_u64() + index * SLOT_BYTES;
    let read = |at| {
        hardware
            .host
            .hardware_read(PhysAddr::new(at), hardware.snoops)
            .expect("the walk reached a ring that was freed (S4)")
    };
    let mut high = read(at + 8);
    loop {
        let low = read(at);
        match read(at + 8) {
            same if same == high => return [low, high],
            changed => high = changed,
        }
    }
}

fn ring_of(hardware: Hardware<'_>, device: PhysAddr, ring: u16) -> Option<RingPointer> {
    let header = DeviceHeader::decode(slot(hardware, device, 0)[0]);
    if ring == 0 || ring > header.rings {
        return None;
    }
    RingPointer::decode(slot(hardware, device, ring.into()))
}

fn entry_of(hardware: Hardware<'_>, ring: RingPointer, entry: u32) -> Option<RingEntry> {
    if entry < ring.size { RingEntry::decode(slot(hardware, ring.table, entry.into())) } else { None }
}

/// Every valid entry in the tables, with the first page of its addresses.
pub(super) fn in_tables(hardware: Hardware<'_>, device: PhysAddr) -> Vec<(u64, RingEntry)> {
    let header = DeviceHeader::decode(slot(hardware, device, 0)[0]);
    let mut found = Vec::new();
    for (ring, words) in (0..=header.rings).zip(slots(hardware, device)).skip(1) {
        let Some(RingPointer { table, size }) = RingPointer::decode(words) else { continue };
        for (entry, words) in (0..size).zip(slots(hardware, table)) {
            let first = RingAddress { ring, entry, offset: 0 }.iova().pfn();
            found.extend(RingEntry::decode(words).map(|entry| (first, entry)));
        }
    }
    found
}

/// The slots of a table, read page by page.
fn slots(hardware: Hardware<'_>, table: PhysAddr) -> impl Iterator<Item = [u64; 2]> {
    let pages = (0..).map_while(move |page| {
        hardware.host.hardware_page(PhysAddr::new(table.as_u64() + page * PAGE_SIZE), hardware.snoops)
    });
    pages.flat_map(|words| words.as_chunks().0.to_vec())
}

/// The pages of addresses through which an entry leads somewhere, each with a page of memory that it leads to.
pub(super) fn pages((first, entry): (u64, RingEntry), rights: Rights) -> impl Iterator<Item = (u64, u64)> {
    let size = if entry.rights.allows(rights) { u64::from(entry.size) } else { 0 };
    let phys = entry.phys.as_u64();
    (0..size.div_ceil(PAGE_SIZE)).flat_map(move |page| {
        let last = (size - 1).min(page * PAGE_SIZE + (PAGE_SIZE - 1));
        let touched = (phys + page * PAGE_SIZE) >> PAGE_SHIFT..=(phys + last) >> PAGE_SHIFT;
        touched.map(move |memory| (first + page, memory))
    })
}
