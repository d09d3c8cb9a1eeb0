//! A unit as an [`Iommu`]: domains, the devices in them, and the invalidation commands of the protection layer.

use crate::attachments::{Attachments, Refusal, Spares, with_spares};
use crate::queue::{BURST_MAX, Ticket, Words};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use crate::spec::registers::{large_pages, widths};
use crate::spec::tables::{ContextEntry, TranslationType};
use crate::{Mmio, Unit};
use portcullis::iommu::rings::{RING_ADDRESS_MASK, RingAddress};
use portcullis::iommu::{
    AttachError, COMMANDS_MAX, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation,
    TrySubmit,
};
use portcullis::table::Walker;
use portcullis::{Iova, PhysAddr, Platform};

/// Under caching mode, hardware tags what it caches for a device without a context entry with this id (§6.1). So no
/// domain gets it.
const ABSENT: DomainId = DomainId(0);

impl<M: Mmio, P: Platform> Unit<M, P> {
    /// The walker for root and context tables. They are as coherent as the tables of domains (ECAP.C).
    pub(crate) const fn walker(&self) -> Walker<'_, P> {
        Walker::new(&self.hardware.platform, self.extended.coherent())
    }

    /// Whether a context entry may lead to `translation`.
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

    /// The context entry that leads to `translation`. Requests that a device marks as already translated fault under
    /// every type.
    fn context(&self, domain: DomainId, translation: Translation) -> ContextEntry {
        // The deepest table that the unit supports (§9.3). Bit n of SAGAW stands for n + 2 levels, and bring-up saw
        // one bit set.
        let deepest = || self.capability.sagaw().ilog2() as u8 + 2;
        let (translation_type, table, levels) = match translation {
            Translation::Tables { root, levels } => (TranslationType::Untranslated, root, levels),
            Translation::PassThrough => (TranslationType::PassThrough, PhysAddr::new(0), deepest()),
            Translation::Rings { device } => (TranslationType::Rings, device, deepest()),
        };
        ContextEntry { faults_disabled: false, translation_type, table, levels, domain }
    }

    /// Makes the hardware see that `device`, which had no entry until now, is in `domain`.
    fn announce(&self, domain: DomainId, device: SourceId) -> Result<(), QueueError> {
        if self.capability.cm() {
            let scope = ContextScope::Device { domain: ABSENT, source: device, function_mask: 0 };
            let context = InvalidationDescriptor::ContextCache(scope);
            self.invalidate(&[context.encode(), self.iotlb(IotlbScope::Domain(domain)).encode()])
        } else if self.capability.rwbf() {
            // Any invalidation flushes the write buffer (§6.8). The command that flushes only the buffer is in a
            // register that has no lock.
            self.invalidate(&[self.iotlb(IotlbScope::Domain(domain)).encode()])
        } else {
            Ok(())
        }
    }

    /// Runs `attempt` with the lock held. The lock is released while missing memory is allocated.
    fn with_spares<R>(
        &self,
        attempt: impl Fn(&mut Attachments, &mut Spares) -> Result<R, Refusal<AttachError>>,
    ) -> Result<R, AttachError> {
        with_spares(self.walker(), |spares| {
            let tried = self.attachments.with(|attachments| attempt(attachments, spares));
            tried.unwrap_or_else(|panicked| Err(AttachError::from(panicked).into()))
        })
    }

    /// Flushes what the hardware may have cached for a device whose entry was cleared, and forgets the device.
    pub(crate) fn end_detach(&self, is_shown: bool, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        let context = ContextScope::Device { domain, source: device, function_mask: 0 };
        let contexts = InvalidationDescriptor::ContextCache(context).encode();
        let flushed = self.flush(is_shown, &[contexts, self.iotlb(IotlbScope::Domain(domain)).encode()]);
        self.attachments.with(|attachments| match flushed {
            Ok(()) => attachments.forget(device),
            Err(_) => attachments.settle(device),
        })?;
        Ok(flushed?)
    }

    /// Submits the invalidations and waits for them. Does nothing if the hardware does not know the tables yet.
    fn flush(&self, is_shown: bool, descriptors: &[Words]) -> Result<(), QueueError> {
        if is_shown { self.invalidate(descriptors) } else { Ok(()) }
    }

    /// Submits commands that more commands follow, and waits for them.
    #[cold]
    #[inline(never)]
    fn submit_and_wait(&self, commands: &[Invalidation]) -> Result<(), QueueError> {
        let ticket = self.submit_burst(commands)?;
        self.queue.wait_for(&self.hardware, ticket)
    }

    #[inline(never)]
    fn submit_each_alone<C: ExactSizeIterator<Item = Invalidation>>(
        &self,
        commands: &impl Fn() -> C,
    ) -> Result<Ticket, QueueError> {
        self.queue.submit(&self.hardware, || self.descriptors(commands()))
    }

    #[inline(never)]
    fn share_each<C: ExactSizeIterator<Item = Invalidation>>(
        &self,
        commands: &impl Fn() -> C,
    ) -> Result<Ticket, QueueError> {
        self.queue.submit_shared(&self.hardware, || self.descriptors(commands()))
    }

    /// The descriptors of `commands`. A command that no page-selective descriptor can express invalidates the whole
    /// domain.
    #[inline]
    fn descriptors(
        &self,
        commands: impl ExactSizeIterator<Item = Invalidation>,
    ) -> impl ExactSizeIterator<Item = Words> {
        commands.map(|command| match command {
            Invalidation::Pages { domain, .. } if !is_aligned(&command) => {
                self.descriptor(&Invalidation::Domain(domain))
            }
            command => self.descriptor(&command),
        })
    }

    #[inline(never)]
    fn share_burst(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        self.queue.submit_shared(&self.hardware, || commands.iter().map(|command| self.descriptor(command)))
    }

    #[inline(never)]
    fn submit_burst(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        self.queue.submit(&self.hardware, || commands.iter().map(|command| self.descriptor(command)))
    }

    /// Submits or posts a command.
    fn share_one(&self, command: &Invalidation) -> TrySubmit<Ticket> {
        self.share_words(self.descriptor(command))
    }

    fn share_words(&self, [low, high]: Words) -> TrySubmit<Ticket> {
        let mut left = Ok(None);
        match self.try_one(low, high, &mut left) {
            true => Ok(Some(Ticket::DONE)),
            false => left,
        }
    }

    /// By values that fit into registers.
    #[inline(never)]
    fn try_one(&self, low: u64, high: u64, left: &mut TrySubmit<Ticket>) -> bool {
        self.queue.try_one(&self.hardware, [low, high], left)
    }

    /// The descriptor of a command; what the unit cannot do page by page it does to the whole domain, at all levels.
    #[inline(always)]
    fn descriptor(&self, command: &Invalidation) -> Words {
        let descriptor = self.iotlb(match *command {
            Invalidation::Pages { domain, first, mask, leaf_only } if self.selects(first, mask) => {
                IotlbScope::Pages { domain, first, mask, leaf_only: leaf_only && self.leaf_only_hint }
            }
            Invalidation::Pages { domain, .. } | Invalidation::Domain(domain) => IotlbScope::Domain(domain),
            Invalidation::Global => IotlbScope::Global,
        });
        descriptor.encode()
    }

    #[inline(always)]
    fn selects(&self, first: Iova, mask: u8) -> bool {
        let is_ring = mask == RING_ADDRESS_MASK && RingAddress::of(first).ring != 0 && self.extended.rings();
        self.capability.psi() && (mask <= self.capability.mamv() || is_ring)
    }
}

/// Whether a page-selective command names a run that is aligned to its size; hardware would invalidate another one.
#[inline(always)]
fn is_aligned(command: &Invalidation) -> bool {
    match *command {
        Invalidation::Pages { first, mask, .. } => {
            first.page_offset() == 0 && first.pfn().trailing_zeros() >= u32::from(mask)
        }
        Invalidation::Domain(_) | Invalidation::Global => true,
    }
}

/// Whether commands may share a submission with others.
#[inline]
fn may_be_shared(commands: &[Invalidation]) -> bool {
    commands.len() <= BURST_MAX && commands.iter().all(is_aligned)
}

// SAFETY: the unit translates from bring-up until it is given up. A device has a context entry while it is attached,
// and that entry leads to the tables of its domain. While it is inherited, its entry leads to what the caller of
// `take_over` has left to it. A removed entry is flushed, and the flush is waited for, before it counts as gone.
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
            // A write buffer hides new entries just as caching mode does, and an invalidation flushes the buffer too
            // (§6.8).
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
        self.with_spares(|attachments, spares| attachments.open(translation, spares))
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        let is_shown = self.attachments.with(|attachments| {
            attachments.begin_close(self.walker(), domain)?;
            Ok::<bool, AttachError>(attachments.is_shown)
        })??;
        let contexts = InvalidationDescriptor::ContextCache(ContextScope::Domain(domain)).encode();
        let flushed = self.flush(is_shown, &[contexts, self.iotlb(IotlbScope::Domain(domain)).encode()]);
        self.attachments.with(|attachments| attachments.end_close(domain, flushed.is_ok()))?;
        Ok(flushed?)
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        // The tables are indexed by requester ids, so the entry would be that of another device.
        if device.segment() != self.segment {
            return Err(AttachError::OtherSegment(device));
        }
        let is_shown = self.with_spares(|attachments, spares| {
            let context = |translation| self.context(domain, translation);
            attachments.begin_attach(self.walker(), domain, device, context, spares)?;
            Ok(attachments.is_shown)
        })?;
        let announced = if is_shown { self.announce(domain, device) } else { Ok(()) };
        self.attachments.with(|attachments| {
            if announced.is_err() {
                attachments.tables.remove(self.walker(), device);
            }
            attachments.settle(device);
        })?;
        Ok(announced?)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        let is_shown = self.attachments.with(|attachments| {
            attachments.begin_detach(self.walker(), domain, device)?;
            Ok::<bool, AttachError>(attachments.is_shown)
        })??;
        self.end_detach(is_shown, domain, device)
    }

    /// More than 64 commands go in several submissions, and all but the last are waited for. The wait of a submission
    /// covers every descriptor ahead of it, but a refused descriptor fails only the submission that contains it.
    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        if !commands.iter().all(is_aligned) {
            return Err(QueueError::Unsupported);
        }
        let mut rest = commands;
        while rest.len() > BURST_MAX {
            let (burst, others) = rest.split_at(BURST_MAX);
            self.submit_and_wait(burst)?;
            rest = others;
        }
        self.submit_burst(rest)
    }

    /// More than 64 commands are not shared.
    #[inline(never)]
    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        // A command that is refused here makes no other caller fail.
        if !may_be_shared(commands) {
            return self.submit(commands);
        }
        if let [command] = commands
            && let Some(ticket) = self.share_one(command)?
        {
            return Ok(ticket);
        }
        self.share_burst(commands)
    }

    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<Ticket>, QueueError> {
        // `submit_shared` handles commands that are refused, or that need waits in between.
        if !may_be_shared(commands) {
            return Ok(None);
        }
        if let [command] = commands {
            return self.share_one(command);
        }
        self.queue.try_submit_shared(&self.hardware, || commands.iter().map(|command| self.descriptor(command)))
    }

    #[inline(always)]
    fn try_invalidate(&self, command: Invalidation) -> Result<(), TrySubmit<Ticket>> {
        // As in `try_submit_shared`.
        if !is_aligned(&command) {
            return Err(Ok(None));
        }
        let [low, high] = match (command, self.one_page) {
            // As most of them are.
            (Invalidation::Pages { domain, first, mask: 0, leaf_only: true }, Some(one_page)) => {
                one_page.at(domain, first)
            }
            _ => self.descriptor(&command),
        };
        let mut left = Ok(None);
        match self.try_one(low, high, &mut left) {
            true => Ok(()),
            false => Err(left),
        }
    }

    fn submit_each<C: ExactSizeIterator<Item = Invalidation>>(
        &self,
        commands: &impl Fn() -> C,
        shares: bool,
    ) -> Result<Ticket, QueueError> {
        debug_assert!(commands().len() <= COMMANDS_MAX, "{} commands at once", commands().len());
        if shares
            && commands().len() == 1
            && let Some(words) = self.descriptors(commands()).next()
            && let Some(ticket) = self.share_words(words)?
        {
            return Ok(ticket);
        }
        // Each call has a separate stack frame, because the descriptors may be large.
        if shares { self.share_each(commands) } else { self.submit_each_alone(commands) }
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        self.queue.is_done(&self.hardware, ticket)
    }

    /// Until the queue moves on, it refuses further submissions.
    fn gave_up(&self, ticket: Ticket) {
        // The caller has an error of its own.
        let _ = self.queue.gave_up(&self.hardware, ticket);
    }
}
