//! Domains, the devices in them, and the commands of the protection layer: a unit as an [`Iommu`].

use crate::queue::{BURST_MAX, Ticket};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use crate::spec::registers::{large_pages, widths};
use crate::spec::tables::{ContextEntry, TranslationType};
use crate::tables::DeviceTables;
use crate::{Mmio, Unit};
use alloc::collections::BTreeMap;
use portcullis::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use portcullis::riommu::format::{RING_ADDRESS_MASK, RingAddress};
use portcullis::{Iova, PhysAddr, Platform};

/// Under caching mode, what hardware caches of a device without a context entry carries this id (§6.1), so no domain gets it.
const ABSENT: DomainId = DomainId(0);

/// The open domains and the attached devices. The lock is released while an attach, a detach or a close waits for its flush. Until that
/// has completed, the device or domain is marked and other calls refuse it. After a panic the mark stays.
pub(crate) struct Attachments {
    pub(crate) tables: DeviceTables,
    /// Whether the hardware knows the tables. Before that nothing of them is cached, and there is no queue.
    pub(crate) is_shown: bool,
    domains: BTreeMap<DomainId, OpenDomain>,
    devices: BTreeMap<SourceId, Attached>,
    /// Where the search for a free id goes on, so that a closed domain's id rests for as long as there are others.
    next_id: u16,
    last_id: u16,
}

struct OpenDomain {
    translation: Translation,
    /// Its close waits for the hardware: nothing is attached to it.
    is_closing: bool,
}

struct Attached {
    domain: DomainId,
    /// The attach or detach of the device waits for the hardware.
    is_busy: bool,
}

impl Attachments {
    /// Nobody anywhere. Domain ids have `id_bits` bits, at most 16.
    pub(crate) fn new(tables: DeviceTables, id_bits: u8) -> Self {
        let last_id = u16::MAX >> (16 - id_bits);
        let (domains, devices) = (BTreeMap::new(), BTreeMap::new());
        Self { tables, is_shown: false, domains, devices, next_id: 1, last_id }
    }

    fn open(&mut self, translation: Translation) -> Result<DomainId, AttachError> {
        let mut ids = (self.next_id..=self.last_id).chain(1..self.next_id).map(DomainId);
        let id = ids.find(|id| !self.domains.contains_key(id)).ok_or(AttachError::NoDomainId)?;
        self.domains.insert(id, OpenDomain { translation, is_closing: false });
        self.next_id = if id.0 >= self.last_id { 1 } else { id.0 + 1 };
        Ok(id)
    }

    /// The attach or detach of `device` is over, and it is where it was before, or is now.
    fn settle(&mut self, device: SourceId) {
        if let Some(attached) = self.devices.get_mut(&device) {
            attached.is_busy = false;
        }
    }
}

impl<M: Mmio, P: Platform> Unit<M, P> {
    /// Whether a context entry may lead to this.
    fn supports(&self, translation: Translation) -> bool {
        let sagaw = self.capability.sagaw();
        match translation {
            Translation::PassThrough => self.extended.pt(),
            Translation::Tables { levels: 3, root } => sagaw & widths::LEVELS_3 != 0 && root.page_offset() == 0,
            Translation::Tables { levels: 4, root } => sagaw & widths::LEVELS_4 != 0 && root.page_offset() == 0,
            Translation::Tables { .. } => false,
            Translation::Rings { device } => self.extended.rings() && device.page_offset() == 0,
        }
    }

    /// The context entry that leads to it. Requests that a device claims to have translated are faults under either type.
    fn context(&self, domain: DomainId, translation: Translation) -> ContextEntry {
        // The deepest that there is (§9.3); bit n of SAGAW stands for n + 2 levels, and bring-up saw one set.
        let deepest = || self.capability.sagaw().ilog2() as u8 + 2;
        let (translation_type, table, levels) = match translation {
            Translation::Tables { root, levels } => (TranslationType::Untranslated, root, levels),
            Translation::PassThrough => (TranslationType::PassThrough, PhysAddr::new(0), deepest()),
            Translation::Rings { device } => (TranslationType::Rings, device, deepest()),
        };
        ContextEntry { faults_disabled: false, translation_type, table, levels, domain }
    }

    /// Makes the hardware see that `device`, absent until now, is in `domain`.
    fn announce(&self, domain: DomainId, device: SourceId) -> Result<(), QueueError> {
        if self.capability.cm() {
            let scope = ContextScope::Device { domain: ABSENT, source: device, function_mask: 0 };
            self.invalidate(&[InvalidationDescriptor::ContextCache(scope), self.iotlb(IotlbScope::Domain(domain))])
        } else if self.capability.rwbf() {
            // For the write buffer, which any invalidation flushes (§6.8). The command for that alone is one of a register that has no lock.
            self.invalidate(&[self.iotlb(IotlbScope::Domain(domain))])
        } else {
            Ok(())
        }
    }

    /// Invalidates what hardware may have cached: nothing, where it does not know the tables.
    fn flush(&self, is_shown: bool, descriptors: &[InvalidationDescriptor]) -> Result<(), QueueError> {
        if is_shown { self.invalidate(descriptors) } else { Ok(()) }
    }

    /// The descriptor of a command; what the unit cannot do page by page it does to the whole domain, at all levels.
    #[inline]
    fn descriptor(&self, command: &Invalidation) -> InvalidationDescriptor {
        self.iotlb(match *command {
            Invalidation::Pages { domain, first, mask, leaf_only } if self.selects(first, mask) => {
                IotlbScope::Pages { domain, first, mask, leaf_only: leaf_only && self.leaf_only_hint }
            }
            Invalidation::Pages { domain, .. } | Invalidation::Domain(domain) => IotlbScope::Domain(domain),
            Invalidation::Global => IotlbScope::Global,
        })
    }

    #[inline]
    fn selects(&self, first: Iova, mask: u8) -> bool {
        let is_ring = mask == RING_ADDRESS_MASK && RingAddress::of(first).ring != 0 && self.extended.rings();
        self.capability.psi() && (mask <= self.capability.mamv() || is_ring)
    }
}

/// Whether a page-selective command names a run that is aligned to its size; hardware would invalidate another one.
#[inline]
fn is_aligned(command: &Invalidation) -> bool {
    match *command {
        Invalidation::Pages { first, mask, .. } => {
            first.page_offset() == 0 && first.pfn().trailing_zeros() >= u32::from(mask)
        }
        Invalidation::Domain(_) | Invalidation::Global => true,
    }
}

/// Whether commands may share a submission.
#[inline]
fn fits_a_ride(commands: &[Invalidation]) -> bool {
    commands.len() <= BURST_MAX && commands.iter().all(is_aligned)
}

// SAFETY: the unit translates from bring-up on, and is not turned off before it is given up. A device has a context entry while it is
// attached, and an entry leads to the tables of its domain. What goes is flushed, and waited for, before it is noted as gone.
unsafe impl<M: Mmio, P: Platform> Iommu for Unit<M, P> {
    type Ticket = Ticket;

    fn capabilities(&self) -> Capabilities {
        let capability = self.capability;
        Capabilities {
            three_level: capability.sagaw() & widths::LEVELS_3 != 0,
            four_level: capability.sagaw() & widths::LEVELS_4 != 0,
            leaf_2m: capability.sllps() & large_pages::SIZE_2M != 0,
            leaf_1g: capability.sllps() & large_pages::SIZE_1G != 0,
            address_mask_max: capability.psi().then_some(capability.mamv()),
            coherent: self.extended.coherent(),
            // A write buffer hides new entries just as caching mode does, and an invalidation flushes it too (§6.8).
            caches_absent: capability.cm() || capability.rwbf(),
            pass_through: self.extended.pt(),
            rings: self.extended.rings(),
            address_bits: self.address_bits(),
            physical_bits: self.physical_bits,
        }
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        if !self.supports(translation) {
            return Err(AttachError::Unsupported);
        }
        self.attachments.with(|attachments| attachments.open(translation))?
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        let is_shown = self.attachments.with(|attachments| {
            let Attachments { tables, is_shown, domains, devices, .. } = attachments;
            let open = domains.get_mut(&domain).filter(|open| !open.is_closing);
            let open = open.ok_or(AttachError::NoSuchDomain(domain))?;
            let of_domain = || devices.iter().filter(|(_, attached)| attached.domain == domain);
            if let Some((device, _)) = of_domain().find(|(_, attached)| attached.is_busy) {
                return Err(AttachError::Busy(*device));
            }
            of_domain().for_each(|(device, _)| tables.remove(&self.hardware.platform, *device));
            open.is_closing = true;
            Ok::<bool, AttachError>(*is_shown)
        })??;
        let contexts = InvalidationDescriptor::ContextCache(ContextScope::Domain(domain));
        let flushed = self.flush(is_shown, &[contexts, self.iotlb(IotlbScope::Domain(domain))]);
        self.attachments.with(|attachments| {
            if flushed.is_ok() {
                attachments.devices.retain(|_, attached| attached.domain != domain);
                attachments.domains.remove(&domain);
            } else if let Some(open) = attachments.domains.get_mut(&domain) {
                open.is_closing = false;
            }
        })?;
        Ok(flushed?)
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        let platform = &self.hardware.platform;
        let is_shown = self.attachments.with(|attachments| {
            let open = attachments.domains.get(&domain).filter(|open| !open.is_closing);
            let translation = open.ok_or(AttachError::NoSuchDomain(domain))?.translation;
            if let Some(attached) = attachments.devices.get(&device) {
                let is_leaving =
                    attached.is_busy || attachments.domains.get(&attached.domain).is_some_and(|of| of.is_closing);
                return Err(if is_leaving { AttachError::Busy(device) } else { AttachError::Attached(device) });
            }
            attachments.tables.insert(platform, device, self.context(domain, translation))?;
            // Recorded before it is announced: should that fail, hardware may use the entry all the same, and only a detach
            // or a close, which flush, may forget it.
            attachments.devices.insert(device, Attached { domain, is_busy: true });
            Ok(attachments.is_shown)
        })??;
        let announced = if is_shown { self.announce(domain, device) } else { Ok(()) };
        self.attachments.with(|attachments| {
            if announced.is_err() {
                attachments.tables.remove(platform, device);
            }
            attachments.settle(device);
        })?;
        Ok(announced?)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        let is_shown = self.attachments.with(|attachments| {
            let Attachments { tables, is_shown, domains, devices, .. } = attachments;
            let attached = devices.get_mut(&device).filter(|attached| attached.domain == domain);
            let attached = attached.ok_or(AttachError::NotAttached(device))?;
            if attached.is_busy || domains.get(&domain).is_some_and(|open| open.is_closing) {
                return Err(AttachError::Busy(device));
            }
            tables.remove(&self.hardware.platform, device);
            attached.is_busy = true;
            Ok::<bool, AttachError>(*is_shown)
        })??;
        let context = ContextScope::Device { domain, source: device, function_mask: 0 };
        let contexts = InvalidationDescriptor::ContextCache(context);
        let flushed = self.flush(is_shown, &[contexts, self.iotlb(IotlbScope::Domain(domain))]);
        self.attachments.with(|attachments| match flushed {
            Ok(()) => _ = attachments.devices.remove(&device),
            Err(_) => attachments.settle(device),
        })?;
        Ok(flushed?)
    }

    /// More commands than 64 go in several submissions, and all but the last are waited for: a submission's wait
    /// tells of every descriptor ahead of it, but a refused descriptor fails only the submission that it is in.
    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        if !commands.iter().all(is_aligned) {
            return Err(QueueError::Unsupported);
        }
        let mut rest = commands;
        while rest.len() > BURST_MAX {
            let (burst, others) = rest.split_at(BURST_MAX);
            let ticket = self.queue.submit(&self.hardware, burst.iter().map(|command| self.descriptor(command)))?;
            self.queue.wait_for(&self.hardware, ticket)?;
            rest = others;
        }
        self.queue.submit(&self.hardware, rest.iter().map(|command| self.descriptor(command)))
    }

    /// More commands than 64 go alone.
    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        // A command that is refused here fails nobody else.
        if !fits_a_ride(commands) {
            return self.submit(commands);
        }
        self.queue.submit_shared(&self.hardware, commands.iter().map(|command| self.descriptor(command)))
    }

    #[inline]
    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<Ticket>, QueueError> {
        // What is refused, or waited for in between, is left to `submit_shared`.
        if !fits_a_ride(commands) {
            return Ok(None);
        }
        self.queue.try_submit_shared(&self.hardware, commands.iter().map(|command| self.descriptor(command)))
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        self.queue.is_done(&self.hardware, ticket)
    }
}
