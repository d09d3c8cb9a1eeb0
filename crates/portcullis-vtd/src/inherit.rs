//! The devices of the previous owner of a unit that is taken over while it translates. Their context entries are
//! copied into our tables, so that hardware finds the same domain ids and the same second-level tables. The tables of
//! the previous owner are read and never changed, and all of them are read before the unit is touched.

use crate::attachments::{Attachments, with_spares};
use crate::hardware::Hardware;
use crate::sorted::try_defaults;
use crate::spec::registers::{Capability, ExtendedCapability, RTADDR, root_table};
use crate::spec::tables::{ContextEntry, RootEntry, TABLE_ENTRIES, TranslationType};
use crate::{BringUpError, Mmio, Unit};
use alloc::boxed::Box;
use portcullis::iommu::{AttachError, SourceId};
use portcullis::table::Walker;
use portcullis::{NoMemory, PhysAddr, Platform};
use thiserror::Error;

/// Why a unit that translates was not taken over: this driver cannot continue with what its previous owner left. The
/// unit was not touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InheritanceError {
    /// The root table does not have the format of legacy mode.
    #[error("the VT-d unit does not translate in legacy mode: its root table register reads {0:#x}")]
    Mode(u64),
    /// The host [cannot read](Platform::read_foreign) a table.
    #[error("the host cannot read the table of the VT-d unit's previous owner at {0}")]
    Unreadable(PhysAddr),
    /// A root entry has reserved bits set.
    #[error("the inherited root entry for bus {bus:#04x} is malformed: {high:#018x}:{low:#018x}")]
    Root {
        /// The bus.
        bus: u8,
        /// The low quadword.
        low: u64,
        /// The high quadword.
        high: u64,
    },
    /// A context entry has reserved bits set, or uses a feature that the hardware lacks.
    #[error("the inherited context entry for device {device} is malformed or not supported: {high:#018x}:{low:#018x}")]
    Context {
        /// The device.
        device: SourceId,
        /// The low quadword.
        low: u64,
        /// The high quadword.
        high: u64,
    },
}

/// Copies the context entries of a unit that translates. After an error only `attachments` has changed.
pub(crate) fn inherit<M: Mmio, P: Platform>(
    hardware: &Hardware<M, P>,
    capability: Capability,
    extended: ExtendedCapability,
    segment: u16,
    attachments: &mut Attachments,
) -> Result<(), BringUpError> {
    let platform = &hardware.platform;
    let walker = Walker::new(platform, extended.coherent());
    let register = hardware.read64(RTADDR);
    if register == u64::MAX {
        return Err(BringUpError::Gone);
    }
    if register & root_table::MODE != 0 {
        return Err(InheritanceError::Mode(register).into());
    }
    let (mut root, mut contexts) = (Table::new(platform)?, Table::new(platform)?);
    root.read(platform, PhysAddr::new(register & root_table::ADDRESS))?;
    for (bus, [low, high]) in (0..=u8::MAX).zip(root.entries()) {
        let malformed = InheritanceError::Root { bus, low, high };
        let Some(entry) = RootEntry::decode([low, high]).map_err(|_| malformed)? else { continue };
        contexts.read(platform, entry.context_table)?;
        for (function, [low, high]) in (0..=u8::MAX).zip(contexts.entries()) {
            let device = SourceId::from_requester(u16::from_be_bytes([bus, function])).in_segment(segment);
            let malformed = InheritanceError::Context { device, low, high };
            let Some(entry) = ContextEntry::decode([low, high]).map_err(|_| malformed)? else { continue };
            if !is_understood(capability, extended, &entry) || entry.domain > attachments.last_id() {
                return Err(malformed.into());
            }
            with_spares::<_, _, NoMemory>(walker, |spares| Ok(attachments.inherit(walker, device, entry, spares)?))?;
        }
    }
    Ok(())
}

/// Whether the hardware translates by such an entry. An entry that the hardware refuses is corrupted, or has a format
/// that this driver does not know.
fn is_understood(capability: Capability, extended: ExtendedCapability, entry: &ContextEntry) -> bool {
    let has_type = match entry.translation_type {
        TranslationType::Untranslated => true,
        TranslationType::WithDeviceTlb => extended.dt(),
        TranslationType::PassThrough => extended.pt(),
        TranslationType::Rings => extended.rings(),
    };
    // Bit n of SAGAW stands for n + 2 levels.
    has_type && u32::from(capability.sagaw()) >> (entry.levels - 2) & 1 != 0
}

/// A copy of a table whose entries have two quadwords. It is on the heap, because kernel stacks are small.
struct Table(Box<[u64]>);

impl Table {
    fn new<P: Platform>(platform: &P) -> Result<Self, NoMemory> {
        Ok(Self(try_defaults(platform, TABLE_ENTRIES * 2)?))
    }

    fn read<P: Platform>(&mut self, platform: &P, at: PhysAddr) -> Result<(), InheritanceError> {
        platform.read_foreign(at, &mut self.0).map_err(|_| InheritanceError::Unreadable(at))
    }

    fn entries(&self) -> impl Iterator<Item = [u64; 2]> {
        self.0.as_chunks().0.iter().copied()
    }
}

impl<M: Mmio, P: Platform> Unit<M, P> {
    /// The devices that a take-over found attached and that were not released since, in the order of their source
    /// ids. They still reach what the previous owner mapped for them. Takes a lock for each device, and does not hold
    /// it in between. After a panic with the lock held, the list is empty.
    pub fn inherited_devices(&self) -> impl Iterator<Item = SourceId> {
        let mut last = None;
        core::iter::from_fn(move || {
            let next = self.attachments.with(|attachments| attachments.inherited_after(last)).ok()??;
            last = Some(next);
            last
        })
    }

    /// Shuts an inherited device out: it no longer reaches what the previous owner mapped for it. Call it once the
    /// device has been reset; otherwise DMA that the device still does for that owner is refused. Afterwards the
    /// device may be attached to a domain. Blocks until the hardware has dropped the device's entry and all
    /// translations of its old domain. Other inherited devices of that domain keep their entries.
    ///
    /// # Errors
    /// [`AttachError::NotAttached`] if the device is not inherited or was already released. [`AttachError::Busy`]
    /// while another call releases it. After [`AttachError::Queue`] the caller must assume that the device still
    /// reaches memory, and can release it again.
    pub fn release_inherited(&self, device: SourceId) -> Result<(), AttachError> {
        let (is_shown, domain) = self.attachments.with(|attachments| {
            let domain = attachments.begin_release(self.walker(), device)?;
            Ok::<_, AttachError>((attachments.is_shown, domain))
        })??;
        self.end_detach(is_shown, domain, device)
    }
}
