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

/// Who is where. Its lock is held while attaching and detaching wait for their flush: both are rare, both are bounded, and
/// nobody must find the tables between two states.
pub(crate) struct Attachments {
    pub(crate) tables: DeviceTables,
    domains: BTreeMap<DomainId, Translation>,
    devices: BTreeMap<SourceId, DomainId>,
    /// Where the search for a free id goes on, so that a closed domain's id rests for as long as there are others.
    next_id: u16,
    last_id: u16,
}

impl Attachments {
    /// Nobody anywhere. Domain ids have `id_bits` bits, at most 16.
    pub(crate) fn new(tables: DeviceTables, id_bits: u8) -> Self {
        let last_id = u16::MAX >> (16 - id_bits);
        Self { tables, domains: BTreeMap::new(), devices: BTreeMap::new(), next_id: 1, last_id }
    }

    fn open(&mut self, translation: Translation) -> Result<DomainId, AttachError> {
        let mut ids = (self.next_id..=self.last_id).chain(1..self.next_id).map(DomainId);
        let id = ids.find(|id| !self.domains.contains_key(id)).ok_or(AttachError::NoDomainId)?;
        self.domains.insert(id, translation);
        self.next_id = if id.0 >= self.last_id { 1 } else { id.0 + 1 };
        Ok(id)
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
            // An invalidation would flush the write buffer as well; here nothing absent was cached, so there is none (§6.8).
            self.hardware.flush_write_buffer().map_err(|timeout| QueueError::Timeout(timeout.limit_us))
        } else {
            Ok(())
        }
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
        self.attachments.with(|attachments| {
            if !attachments.domains.contains_key(&domain) {
                return Err(AttachError::NoSuchDomain(domain));
            }
            for (device, _) in attachments.devices.iter().filter(|(_, of)| **of == domain) {
                attachments.tables.remove(&self.hardware.platform, *device);
            }
            let contexts = InvalidationDescriptor::ContextCache(ContextScope::Domain(domain));
            self.invalidate(&[contexts, self.iotlb(IotlbScope::Domain(domain))])?;
            attachments.devices.retain(|_, of| *of != domain);
            attachments.domains.remove(&domain);
            Ok(())
        })?
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.attachments.with(|attachments| {
            let translation = *attachments.domains.get(&domain).ok_or(AttachError::NoSuchDomain(domain))?;
            if attachments.devices.contains_key(&device) {
                return Err(AttachError::Attached(device));
            }
            let platform = &self.hardware.platform;
            attachments.tables.insert(platform, device, self.context(domain, translation))?;
            // Recorded before it is announced: should that fail, hardware may use the entry all the same, and only a detach
            // or a close, which flush, may forget it.
            attachments.devices.insert(device, domain);
            self.announce(domain, device).map_err(|error| {
                attachments.tables.remove(platform, device);
                AttachError::Queue(error)
            })
        })?
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.attachments.with(|attachments| {
            if attachments.devices.get(&device) != Some(&domain) {
                return Err(AttachError::NotAttached(device));
            }
            attachments.tables.remove(&self.hardware.platform, device);
            let scope = ContextScope::Device { domain, source: device, function_mask: 0 };
            self.invalidate(&[InvalidationDescriptor::ContextCache(scope), self.iotlb(IotlbScope::Domain(domain))])?;
            attachments.devices.remove(&device);
            Ok(())
        })?
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
        if commands.len() > BURST_MAX || !commands.iter().all(is_aligned) {
            return self.submit(commands);
        }
        self.queue.submit_shared(&self.hardware, commands.iter().map(|command| self.descriptor(command)))
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        self.queue.is_done(&self.hardware, ticket)
    }
}
