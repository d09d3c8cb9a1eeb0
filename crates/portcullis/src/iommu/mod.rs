//! What the hardware must offer: domains, invalidation commands, and a way to see them done.

#[cfg(any(feature = "fake", test))]
pub mod fake;

mod covering;

pub(crate) use covering::covering;

use crate::address::{Iova, PhysAddr};
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use thiserror::Error;

/// Commands that come one by one at most ([`Iommu::submit_each`]).
pub const COMMANDS_MAX: usize = 64;

/// A domain of translation: the tag of everything that the IOMMU caches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DomainId(pub u16);

/// A PCI requester (bus 15:8, device 7:3, function 2:0): who is behind a DMA.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourceId(pub u16);

/// What has become of commands that were to be handed in without waiting: the ticket of their submission, or none where that would have
/// needed it.
pub type HandedIn<T> = Result<Option<T>, QueueError>;

/// What a domain's devices see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// Physical addresses, untranslated and unprotected.
    PassThrough,
    /// The second-level table at `root`.
    Tables {
        /// The table page nearest the root.
        root: PhysAddr,
        /// Levels of table: 3 (39-bit addresses) or 4 (48-bit).
        levels: u8,
    },
    /// The rings of [`riommu`](crate::riommu).
    Rings {
        /// The table of rings, in pages side by side.
        device: PhysAddr,
    },
}

/// What this IOMMU can do. Constant for its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Whether tables of 3 levels (39-bit addresses) are understood.
    pub three_level: bool,
    /// Whether tables of 4 levels (48-bit addresses) are understood.
    pub four_level: bool,
    /// Whether a 2 MiB leaf is understood.
    pub leaf_2m: bool,
    /// Whether a 1 GiB leaf is understood.
    pub leaf_1g: bool,
    /// Largest address mask of a page-selective invalidation: it covers `2^mask` pages. `None`: only whole domains.
    pub address_mask_max: Option<u8>,
    /// Whether the walker snoops the CPU's caches. If not, entries must be flushed before it can see them.
    pub coherent: bool,
    /// Whether absent entries may be cached, so that a map must invalidate too (VT-d caching mode).
    pub caches_absent: bool,
    /// Whether devices can be passed through untranslated.
    pub pass_through: bool,
    /// Whether devices can go through the rings of [`riommu`](crate::riommu), whose addresses have 64 bits. No real IOMMU has them.
    pub rings: bool,
    /// Width of the widest address that devices can use, in bits. It may be less than what a table resolves.
    pub address_bits: u8,
    /// Width of a physical address, in bits.
    pub physical_bits: u8,
}

/// One invalidation command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// Page-selective (PSI): the `2^mask` pages from `first` on; `first` is aligned to them.
    Pages {
        /// Whose translations.
        domain: DomainId,
        /// The first page.
        first: Iova,
        /// log2 of the number of pages, at most [`Capabilities::address_mask_max`]. 36 for all addresses of a ring, also where that
        /// maximum is less.
        mask: u8,
        /// The invalidation hint: no table page went, so cached table pointers may stay. Without it all those on the way to
        /// these pages go, of every level, whatever else they lead to.
        leaf_only: bool,
    },
    /// Domain-selective (DSI), all levels.
    Domain(DomainId),
    /// Every domain, all levels.
    Global,
}

/// The invalidation queue failed. No buffer may be returned on it (S11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The hardware refused a descriptor.
    #[error("the IOMMU refused an invalidation descriptor")]
    Descriptor,
    /// A device did not answer an invalidation of its own translations.
    #[error("a device did not answer an invalidation")]
    Device,
    /// The wait was not answered within the time limit.
    #[error("the invalidation did not complete within {0} µs")]
    Timeout(u64),
    /// A page-selective command that this IOMMU cannot express.
    #[error("the IOMMU has no such invalidation")]
    Unsupported,
    /// A design that said that it was strict did not wait for an invalidation.
    #[error("the design has no proof that the device has lost the buffer")]
    Unproven,
    /// The driver halted the invalidation queue, for a suspend or a reboot, before this invalidation was done.
    #[error("the IOMMU's invalidation queue is halted")]
    Halted,
    /// The invalidation was not asked for: a panic has left half changed what would have been needed for it.
    #[error("an earlier panic has left the bookkeeping half changed")]
    Panicked,
}

/// Why a domain or a device could not be attached or detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// All domain ids are in use.
    #[error("the IOMMU has no domain id left")]
    NoDomainId,
    /// The domain id is not open.
    #[error("domain {} is not open", .0.0)]
    NoSuchDomain(DomainId),
    /// The device is attached already.
    #[error("device {:04x} is attached already", .0.0)]
    Attached(SourceId),
    /// The device is still in a domain of the previous owner of the IOMMU. It has to be reset and released first.
    #[error("device {:04x} still has the translations of a previous owner", .0.0)]
    Inherited(SourceId),
    /// The device is not attached to this domain.
    #[error("device {:04x} is not attached to this domain", .0.0)]
    NotAttached(SourceId),
    /// Another call attaches or detaches the device, or closes its domain, and waits for the hardware.
    #[error("device {:04x} is being attached or detached", .0.0)]
    Busy(SourceId),
    /// The IOMMU cannot translate in that way.
    #[error("the IOMMU has no such translation")]
    Unsupported,
    /// No memory for a context table, or for what is noted of domains and devices. Nothing has changed.
    #[error(transparent)]
    NoMemory(#[from] crate::platform::NoMemory),
    /// The flush that must go with it failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// All that the hardware must offer.
///
/// Implementations may be called from several CPUs and from interrupts at once. Every table entry that the caller has made
/// visible through [`Platform::table_barrier`](crate::Platform::table_barrier) before [`submit`](Iommu::submit) is seen by
/// the commands submitted.
///
/// # Safety
/// Memory goes back to its owners on its word. Implementations promise that
/// * a device reaches memory only through the domain that it is attached to, and nothing where it is attached to none;
/// * [`open_domain`](Iommu::open_domain) hands out an id that is in use nowhere else, until [`close_domain`](Iommu::close_domain)
///   has returned without error; then nothing of the domain is cached, and its tables are not read any more;
/// * after [`detach`](Iommu::detach) has returned without error, the device reaches nothing;
/// * [`is_done`](Iommu::is_done) says yes only where all commands of the submission have taken effect, and what a device had begun
///   by the translations that they took away is over;
/// * [`capabilities`](Iommu::capabilities) are those of the hardware, and never change.
///
/// These hold after a panic in any of them, too.
pub unsafe trait Iommu: Send + Sync {
    /// What [`submit`](Iommu::submit) hands out to be asked about later.
    type Ticket: Copy + Send;

    /// What this IOMMU can do.
    fn capabilities(&self) -> Capabilities;

    /// Opens a domain over `translation`, with no device in it. Its id is in no cache.
    ///
    /// # Errors
    /// [`AttachError::NoDomainId`], [`AttachError::Unsupported`], [`AttachError::NoMemory`].
    ///
    /// # Safety
    /// At any time, the tables lead only to memory that is meant for the devices of the domain. No other domain has the same tables,
    /// for an invalidation names one id. They stay allocated until [`close_domain`](Iommu::close_domain) has returned without error.
    /// Under [`Translation::PassThrough`] all memory is meant for every device that is attached.
    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError>;

    /// Detaches every device of the domain, flushes what the IOMMU has cached of it, and frees its id, in that order
    /// (S10). Blocks until done.
    ///
    /// # Errors
    /// After [`AttachError::Queue`] and [`AttachError::Busy`] the id stays in use and the caller must keep the tables.
    ///
    /// # Safety
    /// The caller has [opened](Iommu::open_domain) the domain, and not closed it since: the id may be another's by now.
    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError>;

    /// Lets `device` reach memory through the domain.
    ///
    /// # Errors
    /// [`AttachError::Attached`] where it has a domain already, [`AttachError::Busy`] where it is about to have one or to lose it,
    /// [`AttachError::Inherited`] where that is one of a previous owner.
    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError>;

    /// Takes `device` out of the domain; when this returns, it reaches nothing. Blocks until done.
    ///
    /// # Errors
    /// After [`AttachError::Queue`] and [`AttachError::Busy`] the device must be assumed to reach memory still.
    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError>;

    /// Hands commands to the hardware and returns without waiting. May spin for room in the queue, for a bounded time.
    ///
    /// # Errors
    /// A [`QueueError`]; some of the commands may have been executed.
    fn submit(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError>;

    /// Hands commands to the hardware as [`submit`](Iommu::submit) does, or has them ride with those of other callers behind
    /// one wait, perhaps a little later.
    ///
    /// Polling [`is_done`](Iommu::is_done) drives progress: the caller polls until it is told. A caller that stops polling delays
    /// no other. It may be called from interrupts that nest in any other call. A time limit counts from this call.
    /// A ride may fail for another rider's sake: then nothing is known of the caller's own commands, which may be handed in
    /// again by `submit`, where only their own errors hit them.
    ///
    /// # Errors
    /// Those of [`submit`](Iommu::submit).
    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        self.submit(commands)
    }

    /// Submits the commands as [`submit_shared`](Iommu::submit_shared) does if that needs no waiting, and returns `None` if it does; then the
    /// caller submits them by that. It must not wait, for it is called inside a [walk](crate::Platform::walk) of software. The default
    /// returns `None`: each unmap then submits after its walk, and needs a second one. Override it for speed.
    ///
    /// # Errors
    /// Those of [`submit`](Iommu::submit).
    #[inline]
    fn try_submit_shared(&self, _commands: &[Invalidation]) -> HandedIn<Self::Ticket> {
        Ok(None)
    }

    /// Submits a command as [`try_submit_shared`](Iommu::try_submit_shared) does, and asks at once whether it [is done](Iommu::is_done).
    /// Override it where the two are faster as one.
    ///
    /// # Errors
    /// What `try_submit_shared` has returned, where the command is not known to be done.
    #[inline(always)]
    fn try_invalidate(&self, command: Invalidation) -> Result<(), HandedIn<Self::Ticket>> {
        let handed_in = self.try_submit_shared(&[command]);
        match handed_in {
            Ok(Some(ticket)) if matches!(self.is_done(ticket), Ok(true)) => Ok(()),
            _ => Err(handed_in),
        }
    }

    /// Hands in commands, at most [`COMMANDS_MAX`], as [`submit_shared`](Iommu::submit_shared) does where `shares`, and otherwise as
    /// [`submit`](Iommu::submit) does. They come one by one, and are made anew for each attempt, so that the caller needs no list of them:
    /// that would take a kilobyte of stack, and the default does have one. Override it where the stack is small, as it is in kernels.
    ///
    /// # Errors
    /// Those of [`submit`](Iommu::submit).
    ///
    /// # Panics
    /// If there are more.
    #[inline(never)]
    fn submit_each<C: ExactSizeIterator<Item = Invalidation>>(
        &self,
        commands: &impl Fn() -> C,
        shares: bool,
    ) -> Result<Self::Ticket, QueueError> {
        // Filled in place: collecting would move a kilobyte.
        let mut list = ArrayVec::<Invalidation, COMMANDS_MAX>::new_const();
        list.extend(commands());
        if shares { self.submit_shared(&list) } else { self.submit(&list) }
    }

    /// Whether everything submitted under `ticket` has taken effect, in-flight DMA drained.
    ///
    /// Tickets may be asked about in any order, late, or never. One that is asked about late may be told of a failure that was
    /// another's, but never of a completion that was.
    ///
    /// # Errors
    /// A [`QueueError`] where it never will.
    fn is_done(&self, ticket: Self::Ticket) -> Result<bool, QueueError>;
}

macro_rules! forward {
    ($($handle:ty),*) => {$(
        // SAFETY: forwards to an IOMMU that keeps the promises.
        unsafe impl<T: Iommu> Iommu for $handle {
    type Ticket = T::Ticket;

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).open_domain(translation) }
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).close_domain(domain) }
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        (**self).attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        (**self).detach(domain, device)
    }

    #[inline]
    fn submit(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        (**self).submit(commands)
    }

    #[inline]
    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        (**self).submit_shared(commands)
    }

    #[inline]
    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<Self::Ticket>, QueueError> {
        (**self).try_submit_shared(commands)
    }

    #[inline(always)]
    fn try_invalidate(&self, command: Invalidation) -> Result<(), HandedIn<Self::Ticket>> {
        (**self).try_invalidate(command)
    }

    #[inline]
    fn submit_each<C: ExactSizeIterator<Item = Invalidation>>(
        &self,
        commands: &impl Fn() -> C,
        shares: bool,
    ) -> Result<Self::Ticket, QueueError> {
        (**self).submit_each(commands, shares)
    }

    #[inline]
    fn is_done(&self, ticket: Self::Ticket) -> Result<bool, QueueError> {
        (**self).is_done(ticket)
    }
        }
    )*};
}

forward!(&T, Arc<T>);
