//! A unit under the driver, with domains. These checks test the driver and the protection layer.

use super::dma::{self, DMA_BYTES, Faults, Seen, Target, write_refused};
use super::raw::PHYS;
use super::rig::{A, DATA_BASE, MEMORY_END, Rig};
use super::wiring::{Wired, WiredUnit, Wiring};
use super::{Checked, Stage, Trouble};
use portcullis::domain::DomainConfig;
use portcullis::iommu::{Iommu, SourceId, Translation};
use portcullis::mapper::Design;
use portcullis::{
    Access, DomainOf, Iova, IovaRange, Open, PAGE_SIZE, PhysAddr, Protection, RawMapError, Request, Segment,
};
use portcullis_vtd::spec::descriptors::InvalidationDescriptor;
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::{BringUpError, Discipline, Interrupts, TakeOver, Unit, UnitConfig};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The memory to which devices write what they have read.
const WINDOW: PhysAddr = PhysAddr::new(MEMORY_END - PAGE_SIZE);
/// The memory in which data may lie.
pub(super) const MEMORY: Segment = Segment { phys: PhysAddr::new(DATA_BASE), len: MEMORY_END - DATA_BASE };

const CONFIG: UnitConfig = UnitConfig {
    physical_bits: 48,
    wait_us_max: 100_000,
    leaf_only_hint: true,
    merge_min: None,
    segment: 0,
    discipline: Discipline::Combining,
    flushes_writes: false,
    interrupts: Interrupts::Unused,
};

/// Page `index` of the memory that checks map.
pub(super) const fn page(index: u64) -> PhysAddr {
    PhysAddr::new(PHYS + index * PAGE_SIZE)
}

/// The address `bytes` after `iova`.
pub(super) const fn plus(iova: Iova, bytes: u64) -> Iova {
    Iova::new(iova.as_u64() + bytes)
}

/// The outcome if device [`A`] writes to an address where nothing is mapped.
pub(super) fn gone(iova: Iova) -> Seen {
    write_refused(A, iova.as_u64(), FaultReason::NoWrite)
}

/// A unit that was brought up.
pub(super) struct Driven {
    pub(super) wired: Wired,
    pub(super) unit: Arc<Unit<Wired, Wired>>,
    pub(super) iommu: WiredUnit,
}

impl Stage {
    /// Brings the unit up.
    pub(super) fn bring_up(&self) -> Result<(Wired, Unit<Wired, Wired>), BringUpError> {
        let wired = Wired::new(self.rig.clone(), self.wiring.clone());
        let unit = Unit::bring_up(wired.clone(), wired.clone(), CONFIG)?;
        Ok((wired, unit))
    }

    /// Brings the unit up with device [`A`] passed through from the start.
    pub(super) fn bring_up_with_a(&self) -> Result<Driven, BringUpError> {
        let wired = Wired::new(self.rig.clone(), self.wiring.clone());
        let unit = Unit::bring_up_with(wired.clone(), wired.clone(), CONFIG, |unit| {
            // SAFETY: the memory of a rig holds no Rust objects.
            unit.attach(unsafe { unit.open_domain(Translation::PassThrough) }?, A)
        })?;
        Ok(Driven::new(wired, unit, &self.wiring))
    }

    /// Takes the unit over from its previous owner.
    pub(super) fn take_over(&self) -> Result<Driven, BringUpError> {
        let wired = Wired::new(self.rig.clone(), self.wiring.clone());
        // SAFETY: a check does not drive a unit by hand after taking it over.
        let unit = unsafe { Unit::take_over(wired.clone(), wired.clone(), CONFIG, TakeOver::Always, |_| Ok(())) }?;
        Ok(Driven::new(wired, unit, &self.wiring))
    }

    /// The driver on a unit with no device attached.
    pub(super) fn driven(&self) -> Result<Driven, Trouble> {
        let (wired, unit) = self.bring_up()?;
        Ok(Driven::new(wired, unit, &self.wiring))
    }
}

impl Driven {
    fn new(wired: Wired, unit: Unit<Wired, Wired>, wiring: &Arc<dyn Wiring>) -> Self {
        let unit = Arc::new(unit);
        let iommu = WiredUnit { unit: unit.clone(), wiring: wiring.clone() };
        Self { wired, unit, iommu }
    }

    /// A domain with no device in it.
    pub(super) fn open<D: Design<Wired, WiredUnit>>(&self, protection: Protection) -> Result<Space<'_, D>, Trouble> {
        self.open_with(&DomainConfig { memory: &[MEMORY], ..DomainConfig::new(protection) })
    }

    /// A domain with no device in it, opened with `config`.
    pub(super) fn open_with<D: Design<Wired, WiredUnit>>(
        &self,
        config: &DomainConfig<'_>,
    ) -> Result<Space<'_, D>, Trouble> {
        // SAFETY: the memory of a rig holds no Rust objects.
        let domain = unsafe { D::open_unprotected(self.iommu.clone(), self.wired.clone(), config) }?;
        // SAFETY: as above.
        let window = unsafe { domain.map_raw(WINDOW, PAGE_SIZE, Access::DeviceWrites) }?;
        // Drops the descriptors that this has handed to the queue, because the check did not cause them.
        self.commands();
        Ok(Space { driven: self, domain, window })
    }

    /// A strict domain with device [`A`] in it.
    pub(super) fn strict<D: Design<Wired, WiredUnit>>(&self) -> Result<Space<'_, D>, Trouble> {
        let space = self.open(Protection::Strict)?;
        space.domain.attach(A)?;
        Ok(space)
    }

    /// The descriptors handed to the queue since the last call, without waits.
    pub(super) fn commands(&self) -> Vec<InvalidationDescriptor> {
        self.wired.tap.commands()
    }

    /// How often the driver has written the tail.
    pub(super) fn tails(&self) -> u64 {
        self.wired.tap.tails.load(Ordering::Relaxed)
    }

    /// Sets whether new tails are kept from the unit.
    pub(super) fn stall(&self, stalled: bool) {
        self.wired.tap.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Makes the unit refuse the next IOTLB descriptor.
    pub(super) fn spoil_next(&self) {
        self.wired.tap.spoils_next.store(true, Ordering::Relaxed);
    }

    /// Advances the clock of the protection layer.
    pub(super) fn pass_us(&self, us: u64) {
        self.wired.tap.skipped_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The rig.
    pub(super) fn rig(&self) -> &dyn Rig {
        &*self.wired.rig
    }

    /// The faults that the driver reports.
    pub(super) fn faults(&self) -> Faults {
        let mut faults = Faults::default();
        let lost = self.unit.faults(&mut |record| faults.records.push(record));
        faults.lost = lost.unwrap_or(true);
        faults
    }

    /// Makes a device write at `iova`, which should lead to `phys`.
    pub(super) fn write(&self, device: SourceId, iova: Iova, phys: PhysAddr) -> Result<Seen, Trouble> {
        self.write_len(device, iova, phys, DMA_BYTES)
    }

    /// Makes a device write `len` bytes at `iova`, which should lead to `phys`.
    pub(super) fn write_len(&self, device: SourceId, iova: Iova, phys: PhysAddr, len: usize) -> Result<Seen, Trouble> {
        dma::write(self.rig(), Target { device, iova, phys, len }, &mut || self.faults())
    }

    /// Makes a device write at `iova`, wherever that leads. Its faults stay in their registers.
    pub(super) fn attempt(&self, device: SourceId, iova: Iova) -> Checked {
        self.rig().device_writes(device, iova, 0, DMA_BYTES)
    }
}

/// A domain, with a page to which its devices write what they have read.
pub(super) struct Space<'d, D: Design<Wired, WiredUnit>> {
    driven: &'d Driven,
    pub(super) domain: DomainOf<D, Wired, WiredUnit>,
    window: Iova,
}

impl<D: Design<Wired, WiredUnit>> Space<'_, D> {
    /// Maps memory.
    pub(super) fn map(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, Trouble> {
        Ok(self.try_map(phys, len, self.driven.wired.wiring.access(access))?)
    }

    /// Maps memory, and returns the result of the domain.
    pub(super) fn try_map(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, RawMapError> {
        // SAFETY: the memory of a rig holds no Rust objects.
        unsafe { self.domain.map_raw(phys, len, access) }
    }

    /// Maps the segments of a request.
    pub(super) fn map_request(&self, request: &Request<'_>) -> Result<IovaRange, Trouble> {
        // SAFETY: as above.
        Ok(unsafe { self.domain.map_request(request) }?)
    }

    /// Makes a device read at `iova`, which should lead to `phys`.
    pub(super) fn read(&self, device: SourceId, iova: Iova, phys: PhysAddr) -> Result<Seen, Trouble> {
        let from = Target { device, iova, phys, len: DMA_BYTES };
        dma::read(self.driven.rig(), from, (self.window, WINDOW), &mut || self.driven.faults())
    }
}
