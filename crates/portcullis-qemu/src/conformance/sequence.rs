//! The same steps on two rigs: what must come to the same is compared, step by step.
//!
//! Only what QEMU and the specification define alike is among the steps:
//! * Pages of one region are never equal, modulo 256, to those of another, for QEMU 7.2 compares only 8 bits of page numbers.
//! * A domain has one device at a time, for QEMU tags what it caches by device too.
//! * Contexts are invalidated together with the pages behind them, for QEMU looks at the IOTLB before the context.
//!
//! And one documented difference is predicted: a refusal by an IOTLB hit is recorded by the model, and not by QEMU.

use super::dma::{DMA_BYTES, Seen};
use super::raw::{GIB, PHYS, Raw, Table, WINDOW, device_context, domain, global_flush, iotlb, through};
use super::rig::{DEVICES, FETCHED, Rig, pattern};
use super::wiring::Straight;
use super::{Stage, Trouble};
use portcullis::iommu::DomainId;
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_vtd::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use portcullis_vtd::spec::faults::FaultReason;
use std::sync::Arc;

/// Domains that steps can name.
pub const DOMAINS: usize = 3;
/// Ranges of 2 MiB that steps can name.
pub const REGIONS: usize = 3;
/// Pages of a region that steps can name.
pub const PAGES: u8 = 32;
/// The largest mask that stays among them.
pub const MASK_MAX: u8 = 5;
/// Physical places that leaves of each size can lead to.
pub const PLACES: u8 = 4;

/// What an entry that can be a leaf holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// Nothing.
    Absent,
    /// A leaf with some rights to one of [`PLACES`].
    To(u8, Rights),
    /// A leaf with a reserved bit.
    Reserved,
}

/// Where a device points, or an invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A page, of [`PAGES`], of a region.
    Page(usize, u8),
    /// A page, of [`PAGES`], of the 1 GiB that only a leaf of that size can serve.
    Huge(u8),
}

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SequenceStep {
    /// Writes an entry of 4 KiB of a region; it counts while the region has its table.
    Page {
        /// Which domain.
        domain: usize,
        /// Which region.
        region: usize,
        /// Which page.
        page: u8,
        /// What.
        leaf: Leaf,
    },
    /// Makes a region one leaf of 2 MiB; `None` gives it its table back.
    Region {
        /// Which domain.
        domain: usize,
        /// Which region.
        region: usize,
        /// What.
        leaf: Option<Leaf>,
    },
    /// Writes the entry of 1 GiB.
    Huge {
        /// Which domain.
        domain: usize,
        /// What.
        leaf: Leaf,
    },
    /// A device writes.
    Write {
        /// Which, of [`DEVICES`].
        device: usize,
        /// Where.
        place: Place,
    },
    /// A device reads.
    Read {
        /// Which, of [`DEVICES`].
        device: usize,
        /// Where.
        place: Place,
    },
    /// Invalidates 2^mask pages around a place.
    Pages {
        /// Of which domain.
        domain: usize,
        /// Where.
        place: Place,
        /// How many, at most [`MASK_MAX`].
        mask: u8,
        /// The hint.
        leaf_only: bool,
    },
    /// Invalidates a domain.
    Domain(usize),
    /// Invalidates everything but contexts.
    Global,
    /// Invalidates all contexts, and everything else.
    Contexts,
    /// Puts a device into a domain that no other device has, or into none, and invalidates.
    Move {
        /// Which, of [`DEVICES`].
        device: usize,
        /// Where to.
        to: Option<usize>,
    },
    /// The same without the invalidation: what is cached of its old context still counts.
    Slip {
        /// Which, of [`DEVICES`].
        device: usize,
        /// Where to.
        to: Option<usize>,
    },
}

/// What came of a step that is a DMA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observed {
    /// What was seen.
    pub seen: Seen,
    /// Where in memory it went, of the places to which a leaf may lead.
    pub at: Option<PhysAddr>,
    /// Whether the IOTLB served it, where the rig can tell.
    pub hit: Option<bool>,
}

/// Whether `model` and `qemu` saw the same.
pub fn same(model: &Option<Observed>, qemu: &Option<Observed>) -> bool {
    let (Some(model), Some(qemu)) = (model, qemu) else { return model == qemu };
    let refused_by_rights = matches!(
        &model.seen,
        Seen::Refused(fault) if matches!(fault.reason, FaultReason::NoWrite | FaultReason::NoRead)
    );
    // A cached refusal: QEMU records none, and what QEMU walks for it records.
    let seen = if model.hit == Some(true) && refused_by_rights { &Seen::Silent } else { &model.seen };
    *seen == qemu.seen && model.at == qemu.at
}

/// A rig on which steps are made.
struct Player<'s> {
    raw: Raw<'s>,
    tables: [Table; DOMAINS],
    /// The leaf tables of each domain's regions.
    pages: [[PhysAddr; REGIONS]; DOMAINS],
    /// The domains whose translations each device may use: those that may be cached, and last that of its entry.
    held: [Vec<Option<usize>>; DEVICES.len()],
    tamper: fn(InvalidationDescriptor) -> InvalidationDescriptor,
}

/// Makes the steps on a fresh rig, and says what came of each; `None` for a step that is no DMA. Each descriptor is what
/// `tamper` makes of it.
///
/// # Errors
/// A [`Trouble`], where the rig does not do as told.
pub fn play(
    rig: Arc<dyn Rig>,
    steps: &[SequenceStep],
    tamper: fn(InvalidationDescriptor) -> InvalidationDescriptor,
) -> Result<Vec<Option<Observed>>, Trouble> {
    let stage = Stage { rig, wiring: Arc::new(Straight) };
    let raw = stage.raw()?;
    let tables = [raw.table(1, 4)?, raw.table(2, 3)?, raw.table(0x102, 4)?];
    let mut pages = [[PhysAddr::new(0); REGIONS]; DOMAINS];
    for (table, pages) in tables.iter().zip(&mut pages) {
        for (region, page) in pages.iter_mut().enumerate() {
            // Made with the table, so that every step finds it at the same address.
            let first = raw.entry(*table, region_base(region), 1)?;
            *page = PhysAddr::from_pfn(first.pfn());
        }
    }
    let mut player = Player { raw, tables, pages, held: DEVICES.map(|_| vec![None]), tamper };
    steps.iter().map(|step| player.step(*step)).collect()
}

fn region_base(region: usize) -> u64 {
    GIB + ((region as u64) << 21)
}

/// The address of a place. The pages of regions and of the 1 GiB lie in ranges of 32 that never meet, modulo 256.
fn address(place: Place) -> u64 {
    match place {
        Place::Page(region, page) => region_base(region) + (0x40 + 0x20 * region as u64 + u64::from(page)) * PAGE_SIZE,
        Place::Huge(page) => GIB + (1 << 30) + PHYS + (0xa0 + u64::from(page)) * PAGE_SIZE,
    }
}

/// Where leaves of 4 KiB and 2 MiB lead.
fn small(place: u8) -> u64 {
    PHYS + (64 << 20) + u64::from(place) * PAGE_SIZE
}

fn large(place: u8) -> u64 {
    PHYS + (u64::from(place) << 21)
}

fn entry(leaf: Leaf, phys: impl Fn(u8) -> u64, is_large: bool) -> u64 {
    const SNOOP: u64 = 1 << 11;
    match leaf {
        Leaf::Absent => 0,
        Leaf::To(place, rights) => EntryValue::leaf(PhysAddr::new(phys(place)), rights, is_large).bits(),
        Leaf::Reserved => EntryValue::leaf(PhysAddr::new(phys(0)), Rights::READ_WRITE, is_large).bits() | SNOOP,
    }
}

impl Player<'_> {
    fn step(&mut self, step: SequenceStep) -> Result<Option<Observed>, Trouble> {
        match step {
            SequenceStep::Page { domain, region, page, leaf } => {
                let slot = address(Place::Page(region, page)) >> 12 & 511;
                let at = PhysAddr::new(self.pages[domain][region].as_u64() + 8 * slot);
                self.raw.poke(at, entry(leaf, small, false));
            }
            SequenceStep::Region { domain, region, leaf } => {
                let table = EntryValue::table(self.pages[domain][region]).bits();
                let at = self.raw.entry(self.tables[domain], region_base(region), 2)?;
                self.raw.poke(at, leaf.map_or(table, |leaf| entry(leaf, large, true)));
            }
            SequenceStep::Huge { domain, leaf } => {
                let at = self.raw.entry(self.tables[domain], address(Place::Huge(0)), 3)?;
                self.raw.poke(at, entry(leaf, |_| 0, true));
            }
            SequenceStep::Write { device, place } => return self.dma(device, place, false).map(Some),
            SequenceStep::Read { device, place } => return self.dma(device, place, true).map(Some),
            SequenceStep::Pages { domain, place, mask, leaf_only } => {
                let (domain, first) = (DomainId(self.tables[domain].id), Iova::new(address(place)));
                self.run(&[iotlb(IotlbScope::Pages { domain, first, mask, leaf_only })])?;
            }
            SequenceStep::Domain(index) => self.run(&[domain(self.tables[index].id)])?,
            SequenceStep::Global => self.run(&[global_flush()])?,
            SequenceStep::Contexts => {
                self.run(&[InvalidationDescriptor::ContextCache(ContextScope::Global), global_flush()])?;
                // Of what a device may use only that of its entry is left.
                self.held.iter_mut().for_each(|held| drop(held.drain(..held.len() - 1)));
            }
            SequenceStep::Move { device, to } if self.is_free(device, to) => {
                self.point(device, to);
                let held = core::mem::replace(&mut self.held[device], vec![to]);
                for index in held.into_iter().flatten() {
                    let id = self.tables[index].id;
                    self.run(&[device_context(id, DEVICES[device], 0), domain(id)])?;
                }
            }
            SequenceStep::Slip { device, to } if self.is_free(device, to) => {
                self.point(device, to);
                self.held[device].push(to);
            }
            SequenceStep::Move { .. } | SequenceStep::Slip { .. } => {}
        }
        Ok(None)
    }

    /// Whether no other device may use the domain's translations.
    fn is_free(&self, device: usize, domain: Option<usize>) -> bool {
        let others = self.held.iter().enumerate().filter(|(other, _)| *other != device);
        domain.is_none() || others.map(|(_, held)| held).all(|held| !held.contains(&domain))
    }

    /// Writes the device's context entry.
    fn point(&self, device: usize, to: Option<usize>) {
        let entry = to.map_or([0, 0], |index| through(self.tables[index]).encode());
        self.raw.context(DEVICES[device], entry);
    }

    fn run(&self, descriptors: &[InvalidationDescriptor]) -> Result<(), Trouble> {
        let descriptors: Vec<_> = descriptors.iter().map(|descriptor| (self.tamper)(*descriptor)).collect();
        self.raw.run(&descriptors)
    }

    /// The device reads or writes, wherever that leads.
    fn dma(&self, device: usize, place: Place, read: bool) -> Result<Observed, Trouble> {
        let (rig, source, iova) = (self.raw.rig, DEVICES[device], Iova::new(address(place)));
        let offset = match place {
            Place::Page(..) => iova.as_u64() & 0x1f_f000,
            Place::Huge(_) => 0,
        };
        let mut candidates: Vec<u64> = (0..PLACES).map(small).collect();
        candidates.extend((0..PLACES).map(|place| large(place) + offset));
        if let Place::Huge(_) = place {
            candidates.push(iova.as_u64() & 0x3fff_ffff);
        }
        // Before a read each place holds something of its own, before a write none holds what a device has.
        let contents = |place: usize| [0x80 | place as u8; DMA_BYTES];
        for (place, at) in candidates.iter().enumerate() {
            rig.store(PhysAddr::new(*at), &contents(place));
        }
        let hits_before = rig.iotlb_hits();
        let load = |at: u64| {
            let mut bytes = [0; DMA_BYTES];
            rig.load(PhysAddr::new(at), &mut bytes);
            bytes
        };
        let (found, hits_after, faults);
        if read {
            rig.device_reads(source, iova, FETCHED, DMA_BYTES)?;
            (hits_after, faults) = (rig.iotlb_hits(), self.raw.faults());
            rig.store(PhysAddr::new(WINDOW), &[0xff; DMA_BYTES]);
            rig.device_writes(source, Iova::new(WINDOW), FETCHED, DMA_BYTES)?;
            self.raw.faults();
            let shown = load(WINDOW);
            found = candidates.iter().enumerate().find(|(place, _)| shown == contents(*place)).map(|(_, at)| *at);
        } else {
            rig.device_writes(source, iova, 0, DMA_BYTES)?;
            (hits_after, faults) = (rig.iotlb_hits(), self.raw.faults());
            let written: [u8; DMA_BYTES] = core::array::from_fn(|index| pattern(source, index));
            found = candidates.iter().copied().find(|at| load(*at) == written);
        }
        let seen = Seen::new(if found.is_some() { DMA_BYTES } else { 0 }, DMA_BYTES, faults);
        let hit = hits_before.zip(hits_after).map(|(before, after)| after > before);
        Ok(Observed { seen, at: found.map(PhysAddr::new), hit })
    }
}
