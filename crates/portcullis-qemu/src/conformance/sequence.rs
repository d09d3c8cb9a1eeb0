//! Runs the same steps on two rigs and compares the outcomes, step by step.
//!
//! The steps contain only what QEMU and the specification define alike:
//! * Pages of one region are never equal, modulo 256, to pages of another region, because QEMU 7.2 compares only 8
//!   bits of page numbers.
//! * A domain has one device at a time, because QEMU also tags cached entries by device.
//! * Contexts are invalidated together with the pages behind them, because QEMU looks up the IOTLB before the
//!   context.
//!
//! One documented difference is predicted: the model records a refusal by an IOTLB hit, and QEMU does not.

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

/// The number of domains that steps can name.
pub const DOMAINS: usize = 3;
/// The number of 2 MiB regions that steps can name.
pub const REGIONS: usize = 3;
/// The number of pages of a region that steps can name.
pub const PAGES: u8 = 32;
/// The largest mask that stays within these pages.
pub const MASK_MAX: u8 = 5;
/// The number of physical places to which leaves of each size can lead.
pub const PLACES: u8 = 4;

/// The contents of an entry that can be a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// No leaf.
    Absent,
    /// A leaf with some rights that leads to one of [`PLACES`].
    To(u8, Rights),
    /// A leaf with a reserved bit set.
    Reserved,
}

/// The target of a DMA or an invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A page of a region, one of [`PAGES`].
    Page(usize, u8),
    /// A page, one of [`PAGES`], of the 1 GiB that only a 1 GiB leaf can map.
    Huge(u8),
}

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SequenceStep {
    /// Writes the 4 KiB entry of a page. It takes effect while the region has its table.
    Page {
        /// The domain.
        domain: usize,
        /// The region.
        region: usize,
        /// The page.
        page: u8,
        /// The new contents.
        leaf: Leaf,
    },
    /// Replaces the table of a region by one leaf of 2 MiB; `None` restores the table.
    Region {
        /// The domain.
        domain: usize,
        /// The region.
        region: usize,
        /// The new contents.
        leaf: Option<Leaf>,
    },
    /// Writes the entry of 1 GiB.
    Huge {
        /// The domain.
        domain: usize,
        /// The new contents.
        leaf: Leaf,
    },
    /// Makes a device write.
    Write {
        /// Index of the device in [`DEVICES`].
        device: usize,
        /// The target.
        place: Place,
    },
    /// Makes a device read.
    Read {
        /// Index of the device in [`DEVICES`].
        device: usize,
        /// The target.
        place: Place,
    },
    /// Invalidates 2^mask pages around a place.
    Pages {
        /// The domain.
        domain: usize,
        /// The place.
        place: Place,
        /// log2 of the number of pages, at most [`MASK_MAX`].
        mask: u8,
        /// The invalidation hint.
        leaf_only: bool,
    },
    /// Invalidates a domain.
    Domain(usize),
    /// Invalidates all pages of all domains, but not the contexts.
    Global,
    /// Invalidates all contexts and all pages.
    Contexts,
    /// Moves a device into a domain without other devices, or into none, and invalidates.
    Move {
        /// Index of the device in [`DEVICES`].
        device: usize,
        /// The new domain.
        to: Option<usize>,
    },
    /// Moves a device without the invalidation, so that what is cached under its old context still counts.
    Slip {
        /// Index of the device in [`DEVICES`].
        device: usize,
        /// The new domain.
        to: Option<usize>,
    },
}

/// The outcome of a step that is a DMA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observed {
    /// The outcome of the DMA.
    pub seen: Seen,
    /// The place in memory that it reached, among the places to which a leaf may lead.
    pub at: Option<PhysAddr>,
    /// Whether the IOTLB served it, if the rig can tell.
    pub hit: Option<bool>,
}

/// Whether `model` and `qemu` have the same outcome.
pub fn same(model: &Option<Observed>, qemu: &Option<Observed>) -> bool {
    let (Some(model), Some(qemu)) = (model, qemu) else { return model == qemu };
    let refused_by_rights = matches!(
        &model.seen,
        Seen::Refused(fault) if matches!(fault.reason, FaultReason::NoWrite | FaultReason::NoRead)
    );
    // A refusal by a cached entry: QEMU does not record it, but records one that it walks for.
    let seen = if model.hit == Some(true) && refused_by_rights { &Seen::Silent } else { &model.seen };
    *seen == qemu.seen && model.at == qemu.at
}

/// A rig on which steps are run.
struct Player<'s> {
    raw: Raw<'s>,
    tables: [Table; DOMAINS],
    /// The leaf tables of each domain's regions.
    pages: [[PhysAddr; REGIONS]; DOMAINS],
    /// For each device, the domains whose translations it may use: those that may still be cached, and last the one
    /// of its entry.
    held: [Vec<Option<usize>>; DEVICES.len()],
    tamper: fn(InvalidationDescriptor) -> InvalidationDescriptor,
}

/// Runs the steps on a fresh rig and returns the outcome of each; `None` for a step that is not a DMA. `tamper` can
/// change each descriptor.
///
/// # Errors
/// A [`Trouble`] if the rig does not follow its commands.
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
            // Allocated together with the table, so that every step finds it at the same address.
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

/// The address of a place. The pages of regions and of the 1 GiB lie in ranges of 32 pages that never meet, modulo
/// 256.
fn address(place: Place) -> u64 {
    match place {
        Place::Page(region, page) => region_base(region) + (0x40 + 0x20 * region as u64 + u64::from(page)) * PAGE_SIZE,
        Place::Huge(page) => GIB + (1 << 30) + PHYS + (0xa0 + u64::from(page)) * PAGE_SIZE,
    }
}

/// Where leaves of 4 KiB lead.
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
                // Each device may now use only the domain of its entry.
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

    /// Makes the device read or write, and finds out which place it reached.
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
        // Before a read, each place holds different contents. Before a write, no place holds the bytes of a device.
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
