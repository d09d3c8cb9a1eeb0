//! What the hardware must offer: domains, invalidation commands, and a way to see that they have completed.

#[cfg(any(feature = "fake", test))]
pub mod fake;

mod covering;
pub mod rings;

pub(crate) use covering::covering;

use crate::address::{Iova, PhysAddr};
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use core::fmt;
use thiserror::Error;

/// The largest number of commands of one [`Iommu::submit_each`].
pub const COMMANDS_MAX: usize = 64;

/// The id of a domain: the tag of everything that the IOMMU caches for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DomainId(pub u16);

/// A PCI function, the source of a DMA: its segment, and the requester id (bus 15:8, device 7:3, function 2:0) by
/// which the hardware knows it within the segment. The hardware of an IOMMU serves one segment and reads only the
/// requester id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(u32);

impl SourceId {
    /// A function of segment 0.
    ///
    /// # Panics
    /// If `device` is more than 31, or `function` more than 7. The functions of a device with alternative routing ids
    /// (ARI) are made [from their requester ids](Self::from_requester).
    pub const fn new(bus: u8, device: u8, function: u8) -> Self {
        assert!(device < 32 && function < 8, "a bus has 32 devices of 8 functions");
        Self::from_requester((bus as u16) << 8 | (device as u16) << 3 | function as u16)
    }

    /// The function with a requester id, in segment 0.
    pub const fn from_requester(id: u16) -> Self {
        Self(id as u32)
    }

    /// The function with the same requester id in `segment`.
    #[must_use]
    pub const fn in_segment(self, segment: u16) -> Self {
        Self((segment as u32) << 16 | self.requester() as u32)
    }

    /// The segment.
    pub const fn segment(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The requester id.
    pub const fn requester(self) -> u16 {
        self.0 as u16
    }
}

/// As in `/sys/bus/pci/devices`: `0000:00:1f.3`.
impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.requester();
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.segment(), id >> 8, id >> 3 & 0x1f, id & 7)
    }
}

impl fmt::Debug for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceId({self})")
    }
}

/// The result of submitting commands without waiting: the ticket of their submission, or `None` if the submission
/// would have had to wait.
pub type TrySubmit<T> = Result<Option<T>, QueueError>;

/// What a domain's devices see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// Not at all: devices use physical addresses and are not restricted.
    PassThrough,
    /// By the second-level table at `root`.
    Tables {
        /// The root table page.
        root: PhysAddr,
        /// The number of table levels: 3 (39-bit addresses) or 4 (48-bit).
        levels: u8,
    },
    /// By the rings of [`rings`](mod@rings).
    Rings {
        /// The table of rings, in contiguous pages.
        device: PhysAddr,
    },
}

/// What this IOMMU can do. It never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Whether tables of 3 levels (39-bit addresses) are supported.
    pub three_level: bool,
    /// Whether tables of 4 levels (48-bit addresses) are supported.
    pub four_level: bool,
    /// Whether 2 MiB leaves are supported.
    pub leaf_2m: bool,
    /// Whether 1 GiB leaves are supported.
    pub leaf_1g: bool,
    /// The largest address mask of a page-selective invalidation, which covers `2^mask` pages. `None` if only whole
    /// domains can be invalidated.
    pub address_mask_max: Option<u8>,
    /// Whether the walker snoops the CPU caches. If not, entries must be flushed before it can see them.
    pub coherent: bool,
    /// Whether absent entries may be cached, so that a map must invalidate too (VT-d caching mode).
    pub caches_absent: bool,
    /// Whether devices can be passed through untranslated.
    pub pass_through: bool,
    /// Whether devices can use the rings of [`rings`](mod@rings), which have 64-bit addresses. No real IOMMU
    /// supports them.
    pub rings: bool,
    /// The width of the addresses that devices can use, in bits. It may be less than what a table can translate.
    pub address_bits: u8,
    /// The width of a physical address, in bits.
    pub physical_bits: u8,
}

impl Capabilities {
    /// Everything that the library can use, and nothing that takes it more work.
    pub const COMPLETE: Self = Self {
        three_level: true,
        four_level: true,
        leaf_2m: true,
        leaf_1g: true,
        address_mask_max: Some(18),
        coherent: true,
        caches_absent: false,
        pass_through: true,
        rings: true,
        address_bits: 48,
        physical_bits: 52,
    };
}

/// One invalidation command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// Page-selective (PSI): the `2^mask` pages from `first` on. `first` is a multiple of that size.
    Pages {
        /// The domain whose translations are dropped.
        domain: DomainId,
        /// The first page.
        first: Iova,
        /// log2 of the number of pages, at most [`Capabilities::address_mask_max`]. 36 stands for all addresses of a
        /// ring, even if that maximum is less.
        mask: u8,
        /// The invalidation hint: no table page was removed, so cached table pointers may stay. Without the hint the
        /// IOMMU drops all cached pointers on the path to these pages, at every level, even though they serve other
        /// pages as well.
        leaf_only: bool,
    },
    /// Domain-selective (DSI), all levels.
    Domain(DomainId),
    /// Every domain, all levels.
    Global,
}

/// A failure of the invalidation queue. No buffer may be returned after it (S11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The hardware refused a descriptor.
    #[error("the IOMMU refused an invalidation descriptor")]
    Descriptor,
    /// A device did not answer an invalidation of its own cached translations.
    #[error("a device did not answer an invalidation")]
    Device,
    /// The invalidation did not complete within the time limit.
    #[error("the invalidation did not complete within {0} µs")]
    Timeout(u64),
    /// The registers of the IOMMU read all ones: it, or the way to it, is gone. Nothing was waited for.
    #[error("the IOMMU, or the way to it, is gone")]
    Gone,
    /// An earlier invalidation did not complete within the time limit, so this one was not waited for.
    #[error("the IOMMU has not answered an earlier invalidation in time")]
    Unresponsive,
    /// This IOMMU does not support the page-selective command.
    #[error("the IOMMU does not support this invalidation")]
    Unsupported,
    /// A design that declares strict protection did not wait for an invalidation.
    #[error("the design has no proof that the device has lost the buffer")]
    Unproven,
    /// The driver halted the invalidation queue, for a suspend or a reboot, before this invalidation was done.
    #[error("the IOMMU's invalidation queue is halted")]
    Halted,
    /// The invalidation was not submitted: an earlier panic has left the state that it needs half changed.
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
    /// The device is on another PCI segment than those that the IOMMU serves.
    #[error("device {0} is not on the PCI segment of this IOMMU")]
    OtherSegment(SourceId),
    /// The device is already attached.
    #[error("device {0} is already attached")]
    Attached(SourceId),
    /// The device is still in a domain of the previous owner of the IOMMU. It has to be reset and released first.
    #[error("device {0} still has the translations of a previous owner")]
    Inherited(SourceId),
    /// The device is not attached to this domain.
    #[error("device {0} is not attached to this domain")]
    NotAttached(SourceId),
    /// Another call is attaching or detaching the device, or closing its domain, and waits for the hardware.
    #[error("device {0} is being attached or detached")]
    Busy(SourceId),
    /// The IOMMU does not support that kind of translation.
    #[error("the IOMMU does not support this kind of translation")]
    Unsupported,
    /// No memory for a context table, or for the records of domains and devices. Nothing has changed.
    #[error(transparent)]
    NoMemory(#[from] crate::platform::NoMemory),
    /// The flush that the change needs failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Attaches each of `devices`; if one is refused, detaches those before it.
pub(crate) fn all_or_none(
    devices: &[SourceId],
    attach: impl Fn(SourceId) -> Result<(), AttachError>,
    detach: impl Fn(SourceId) -> Result<(), AttachError>,
) -> Result<(), AttachError> {
    for (number, device) in devices.iter().enumerate() {
        if let Err(error) = attach(*device) {
            devices[..number].iter().try_for_each(|attached| detach(*attached))?;
            return Err(error);
        }
    }
    Ok(())
}

/// The operations of the hardware.
///
/// Implementations may be called from several CPUs and from interrupts at once. If the caller has made a table entry
/// visible through [`Platform::table_barrier`](crate::Platform::table_barrier) before [`submit`](Iommu::submit), the
/// submitted commands take it into account.
///
/// # Safety
/// Memory is given back to its owners because an implementation says so. An implementation promises that
/// * a device reaches memory only through the domain that it is attached to, and nothing if it is attached to none;
/// * [`open_domain`](Iommu::open_domain) returns an id that nothing else uses until
///   [`close_domain`](Iommu::close_domain) has returned without error; from then on nothing of the domain is cached,
///   and its tables are not read any more;
/// * after [`detach`](Iommu::detach) has returned without error, the device reaches nothing;
/// * [`is_done`](Iommu::is_done) returns true only if all commands of the submission have taken effect, and all DMA
///   that used the dropped translations is complete;
/// * [`capabilities`](Iommu::capabilities) are those of the hardware, and never change.
///
/// These promises also hold after a panic in any of the methods.
pub unsafe trait Iommu: Send + Sync {
    /// Identifies a submission in later calls.
    type Ticket: Copy + Send;

    /// What this IOMMU can do.
    fn capabilities(&self) -> Capabilities;

    /// Opens a domain with the given `translation` and no devices. No cache holds anything for its id.
    ///
    /// # Errors
    /// [`AttachError::NoDomainId`], [`AttachError::Unsupported`], [`AttachError::NoMemory`].
    ///
    /// # Safety
    /// At any time, the tables lead only to memory that is intended for the devices of the domain. No other domain
    /// uses the same tables, because an invalidation names one id. The tables stay allocated until
    /// [`close_domain`](Iommu::close_domain) has returned without error. Under [`Translation::PassThrough`] all memory
    /// is intended for every device that is attached.
    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError>;

    /// Detaches every device of the domain, flushes everything cached for it, and frees its id, in that order (S10).
    /// Blocks until done.
    ///
    /// # Errors
    /// After [`AttachError::Queue`] and [`AttachError::Busy`] the id stays in use, and the caller must keep the
    /// tables.
    ///
    /// # Safety
    /// The caller has [opened](Iommu::open_domain) the domain and not closed it since: after a close, the id may
    /// belong to another domain.
    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError>;

    /// Lets `device` reach memory through the domain.
    ///
    /// # Errors
    /// [`AttachError::Attached`] if the device is in a domain already; [`AttachError::OtherSegment`] if the IOMMU does
    /// not serve it; [`AttachError::Busy`] if another call is attaching or detaching it; [`AttachError::Inherited`] if
    /// it is still in a domain of a previous owner of the IOMMU; [`AttachError::NoMemory`]; [`AttachError::Queue`] if
    /// the hardware does not confirm it.
    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError>;

    /// Removes `device` from the domain. When this returns, the device reaches nothing. Blocks until done.
    ///
    /// # Errors
    /// After [`AttachError::Queue`] and [`AttachError::Busy`] the device must be assumed to still reach memory.
    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError>;

    /// Lets all of `devices` reach memory through the domain, or none of those that did not before.
    ///
    /// # Errors
    /// That of [`attach`](Iommu::attach) for the first device that was refused. If those before it cannot be detached
    /// again, that of [`detach`](Iommu::detach), and they must be assumed to still reach memory.
    fn attach_all(&self, domain: DomainId, devices: &[SourceId]) -> Result<(), AttachError> {
        all_or_none(devices, |device| self.attach(domain, device), |device| self.detach(domain, device))
    }

    /// Submits commands to the hardware and returns without waiting for them. May spin for room in the queue, for a
    /// bounded time.
    ///
    /// # Errors
    /// A [`QueueError`]; some of the commands may have been executed.
    fn submit(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError>;

    /// Submits commands as [`submit`](Iommu::submit) does, or combines them with the commands of other callers behind
    /// one wait descriptor, perhaps a little later.
    ///
    /// Polling [`is_done`](Iommu::is_done) drives progress: the caller polls until it gets an answer. A caller that
    /// stops polling delays no other caller. This may be called from interrupts that nest inside any other call. A
    /// time limit counts from this call. A shared submission can fail because of another caller's commands. The state
    /// of the caller's own commands is then unknown. The caller may submit them again with `submit`, where only their
    /// own errors affect them.
    ///
    /// # Errors
    /// Those of [`submit`](Iommu::submit).
    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        self.submit(commands)
    }

    /// Submits the commands as [`submit_shared`](Iommu::submit_shared) does, if that needs no waiting. Otherwise
    /// returns `None`, and the caller calls `submit_shared`. This must not wait, because it is called inside a
    /// software [walk](crate::Platform::walk). The default returns `None`: each unmap then submits after its walk, and
    /// needs a second walk. Override it for speed.
    ///
    /// # Errors
    /// Those of [`submit`](Iommu::submit).
    #[inline]
    fn try_submit_shared(&self, _commands: &[Invalidation]) -> TrySubmit<Self::Ticket> {
        Ok(None)
    }

    /// Submits a command as [`try_submit_shared`](Iommu::try_submit_shared) does, and asks at once whether it [is
    /// done](Iommu::is_done). Override it if one call can do both faster.
    ///
    /// # Errors
    /// The result of `try_submit_shared`, if the command is not known to be done.
    #[inline(always)]
    fn try_invalidate(&self, command: Invalidation) -> Result<(), TrySubmit<Self::Ticket>> {
        let submitted = self.try_submit_shared(&[command]);
        match submitted {
            Ok(Some(ticket)) if matches!(self.is_done(ticket), Ok(true)) => Ok(()),
            _ => Err(submitted),
        }
    }

    /// Submits commands, at most [`COMMANDS_MAX`]: as [`submit_shared`](Iommu::submit_shared) does if `shares` is set,
    /// otherwise as [`submit`](Iommu::submit) does. `commands` makes them one by one, again for each attempt, so the
    /// caller needs no list of them. Such a list takes a kilobyte of stack, and the default has one. Override it if
    /// the stack is small, as in kernels.
    ///
    /// # Errors
    /// Those of [`submit`](Iommu::submit).
    ///
    /// # Panics
    /// If there are more than [`COMMANDS_MAX`] commands.
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

    /// Whether everything submitted under `ticket` has taken effect and in-flight DMA has drained.
    ///
    /// A caller may ask about tickets in any order, late, or never. A late question may return the failure of another
    /// submission, but never the completion of another submission.
    ///
    /// # Errors
    /// A [`QueueError`] if it never will.
    fn is_done(&self, ticket: Self::Ticket) -> Result<bool, QueueError>;

    /// A caller has waited for this submission for the whole time limit, and gives it up. Until the hardware moves on,
    /// an implementation may refuse further submissions with [`QueueError::Unresponsive`], so that the domains of an
    /// IOMMU that is gone do not wait one after the other. The default does nothing.
    fn gave_up(&self, _ticket: Self::Ticket) {}
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

    fn attach_all(&self, domain: DomainId, devices: &[SourceId]) -> Result<(), AttachError> {
        (**self).attach_all(domain, devices)
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
    fn try_invalidate(&self, command: Invalidation) -> Result<(), TrySubmit<Self::Ticket>> {
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

    fn gave_up(&self, ticket: Self::Ticket) {
        (**self).gave_up(ticket);
    }
        }
    )*};
}

forward!(&T, Arc<T>);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_source_is_named_as_the_bus_names_it() {
        let sound = SourceId::new(0, 0x1f, 3);
        assert_eq!((sound.to_string().as_str(), sound.requester(), sound.segment()), ("0000:00:1f.3", 0xfb, 0));
        let far = SourceId::from_requester(0xff20).in_segment(0x10e5);
        assert_eq!((far.to_string().as_str(), far.requester(), far.segment()), ("10e5:ff:04.0", 0xff20, 0x10e5));
        assert_eq!(far.in_segment(0), SourceId::new(0xff, 4, 0));
        assert_ne!(far, far.in_segment(0), "the same requester id in two segments is two devices");
    }

    #[test]
    #[should_panic(expected = "a bus has 32 devices of 8 functions")]
    fn no_bus_has_a_device_32() {
        let _ = SourceId::new(0, 32, 0);
    }
}
