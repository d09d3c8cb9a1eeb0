//! The open domains and the attached devices of a unit, under one lock. Nothing is allocated while the lock is held.

use crate::sorted::{Room, Short, SortedMap};
use crate::spec::tables::ContextEntry;
use crate::tables::{DeviceTables, SpareTable};
use portcullis::iommu::{AttachError, DomainId, SourceId, Translation};
use portcullis::table::Walker;
use portcullis::{NoMemory, Platform};

/// The open domains and the attached devices. The lock is released while an attach, a detach or a close waits for its
/// flush. Until that flush has completed, the device or domain is marked and other calls refuse it. After a panic the
/// mark stays.
pub(crate) struct Attachments {
    pub(crate) tables: DeviceTables,
    /// Whether the hardware knows the tables. Before that it caches nothing of them, and there is no queue.
    pub(crate) is_shown: bool,
    domains: SortedMap<DomainId, Standing>,
    devices: SortedMap<SourceId, Attached>,
    /// Where the search for a free id continues. So the id of a closed domain is reused only after all other free
    /// ids.
    next_id: u16,
    last_id: u16,
}

/// The state of a domain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Open(Translation),
    /// A close waits for the hardware. The devices of the domain have no entries any more.
    Closing(Translation),
    /// The previous owner of the unit opened it. No device can be attached to it, and its id is never free.
    Inherited,
}

struct Attached {
    domain: DomainId,
    /// An attach or a detach of the device waits for the hardware.
    is_busy: bool,
}

/// Memory that a call may need, allocated with no lock held.
#[derive(Default)]
pub(crate) struct Spares {
    domains: Room<DomainId, Standing>,
    devices: Room<SourceId, Attached>,
    table: SpareTable,
}

impl Spares {
    /// Allocates what the last attempt lacked. No lock may be held.
    pub(crate) fn obtain<P: Platform>(&mut self, walker: Walker<'_, P>) -> Result<(), NoMemory> {
        self.domains.obtain(walker.platform())?;
        self.devices.obtain(walker.platform())?;
        self.table.obtain(walker)
    }

    /// Gives back what was not needed. No lock may be held.
    pub(crate) fn release<P: Platform>(self, platform: &P) {
        self.table.release(platform);
    }
}

/// Why an attempt changed nothing.
pub(crate) enum Refusal<E> {
    /// The attempt can be repeated once [`Spares::obtain`] has allocated what was missing.
    Short,
    For(E),
}

impl<E> From<Short> for Refusal<E> {
    fn from(Short: Short) -> Self {
        Self::Short
    }
}

impl From<AttachError> for Refusal<AttachError> {
    fn from(error: AttachError) -> Self {
        Self::For(error)
    }
}

/// Makes an attempt, and repeats it after allocating what it lacked.
pub(crate) fn with_spares<P: Platform, R, E: From<NoMemory>>(
    walker: Walker<'_, P>,
    mut attempt: impl FnMut(&mut Spares) -> Result<R, Refusal<E>>,
) -> Result<R, E> {
    let mut spares = Spares::default();
    let result = loop {
        match attempt(&mut spares) {
            Ok(result) => break Ok(result),
            Err(Refusal::For(error)) => break Err(error),
            Err(Refusal::Short) => {
                if let Err(error) = spares.obtain(walker) {
                    break Err(error.into());
                }
            }
        }
    };
    spares.release(walker.platform());
    result
}

impl Attachments {
    /// No domains and no devices. Domain ids have `id_bits` bits, at most 16.
    pub(crate) fn new(tables: DeviceTables, id_bits: u8) -> Self {
        let last_id = u16::MAX >> (16 - id_bits);
        let (domains, devices) = (SortedMap::new(), SortedMap::new());
        Self { tables, is_shown: false, domains, devices, next_id: 1, last_id }
    }

    /// The largest domain id that the hardware supports.
    pub(crate) fn last_id(&self) -> DomainId {
        DomainId(self.last_id)
    }

    pub(crate) fn open(
        &mut self,
        translation: Translation,
        spares: &mut Spares,
    ) -> Result<DomainId, Refusal<AttachError>> {
        let mut ids = (self.next_id..=self.last_id).chain(1..self.next_id).map(DomainId);
        let id = ids.find(|id| !self.domains.contains(*id)).ok_or(AttachError::NoDomainId)?;
        self.domains.slot(&mut spares.domains)?.fill(id, Standing::Open(translation));
        self.next_id = if id.0 >= self.last_id { 1 } else { id.0 + 1 };
        Ok(id)
    }

    /// Removes the devices of a domain from the tables, and marks the domain as closing.
    pub(crate) fn begin_close<P: Platform>(
        &mut self,
        walker: Walker<'_, P>,
        domain: DomainId,
    ) -> Result<(), AttachError> {
        let Some(Standing::Open(translation)) = self.domains.get(domain).copied() else {
            return Err(AttachError::NoSuchDomain(domain));
        };
        let of_domain = || self.devices.iter().filter(|(_, attached)| attached.domain == domain);
        if let Some((device, _)) = of_domain().find(|(_, attached)| attached.is_busy) {
            return Err(AttachError::Busy(device));
        }
        of_domain().for_each(|(device, _)| self.tables.remove(walker, device));
        self.stand(domain, Standing::Closing(translation));
        Ok(())
    }

    /// Forgets a domain if nothing of it is cached any more; otherwise leaves it open.
    pub(crate) fn end_close(&mut self, domain: DomainId, is_flushed: bool) {
        if is_flushed {
            self.devices.retain(|attached| attached.domain != domain);
            self.domains.remove(domain);
        } else if let Some(Standing::Closing(translation)) = self.domains.get(domain).copied() {
            self.stand(domain, Standing::Open(translation));
        }
    }

    fn stand(&mut self, domain: DomainId, now: Standing) {
        if let Some(standing) = self.domains.get_mut(domain) {
            *standing = now;
        }
    }

    /// Writes the entry of a device, and marks the device until it is [settled](Self::settle).
    pub(crate) fn begin_attach<P: Platform>(
        &mut self,
        walker: Walker<'_, P>,
        domain: DomainId,
        device: SourceId,
        context: impl FnOnce(Translation) -> ContextEntry,
        spares: &mut Spares,
    ) -> Result<(), Refusal<AttachError>> {
        let Some(Standing::Open(translation)) = self.domains.get(domain).copied() else {
            return Err(AttachError::NoSuchDomain(domain).into());
        };
        if let Some(attached) = self.devices.get(device) {
            return Err(self.refusal(device, attached).unwrap_or(AttachError::Attached(device)).into());
        }
        let slot = self.devices.slot(&mut spares.devices)?;
        self.tables.insert(walker, device, context(translation), &mut spares.table)?;
        // The device is recorded before its entry is announced. If that fails, hardware may use the entry anyway, and
        // only a detach or a close, which flush, may forget it.
        slot.fill(device, Attached { domain, is_busy: true });
        Ok(())
    }

    /// Clears the entry of a device of `domain`, and marks the device.
    pub(crate) fn begin_detach<P: Platform>(
        &mut self,
        walker: Walker<'_, P>,
        domain: DomainId,
        device: SourceId,
    ) -> Result<(), AttachError> {
        let attached = self.devices.get(device).filter(|attached| attached.domain == domain);
        let attached = attached.ok_or(AttachError::NotAttached(device))?;
        if let Some(refusal) = self.refusal(device, attached) {
            return Err(refusal);
        }
        if let Some(attached) = self.devices.get_mut(device) {
            attached.is_busy = true;
        }
        self.tables.remove(walker, device);
        Ok(())
    }

    /// Why an attached device cannot be attached or detached now.
    fn refusal(&self, device: SourceId, attached: &Attached) -> Option<AttachError> {
        match self.domains.get(attached.domain) {
            _ if attached.is_busy => Some(AttachError::Busy(device)),
            Some(Standing::Closing(_)) => Some(AttachError::Busy(device)),
            Some(Standing::Inherited) => Some(AttachError::Inherited(device)),
            _ => None,
        }
    }

    /// Forgets a device of which nothing is cached any more.
    pub(crate) fn forget(&mut self, device: SourceId) {
        self.devices.remove(device);
    }

    /// Ends an attach or detach of `device`, which stays recorded in its domain.
    pub(crate) fn settle(&mut self, device: SourceId) {
        if let Some(attached) = self.devices.get_mut(device) {
            attached.is_busy = false;
        }
    }

    /// Takes over a device with the entry that its previous owner gave it.
    pub(crate) fn inherit<P: Platform>(
        &mut self,
        walker: Walker<'_, P>,
        device: SourceId,
        entry: ContextEntry,
        spares: &mut Spares,
    ) -> Result<(), Short> {
        let of_domain = self.domains.slot(&mut spares.domains)?;
        let of_device = self.devices.slot(&mut spares.devices)?;
        self.tables.insert(walker, device, entry, &mut spares.table)?;
        of_domain.fill(entry.domain, Standing::Inherited);
        of_device.fill(device, Attached { domain: entry.domain, is_busy: false });
        Ok(())
    }

    /// Clears the entry of an inherited device, and marks the device. Returns the domain that it was in.
    pub(crate) fn begin_release<P: Platform>(
        &mut self,
        walker: Walker<'_, P>,
        device: SourceId,
    ) -> Result<DomainId, AttachError> {
        let domains = &self.domains;
        let is_inherited = |attached: &&mut Attached| domains.get(attached.domain) == Some(&Standing::Inherited);
        let attached = self.devices.get_mut(device).filter(is_inherited).ok_or(AttachError::NotAttached(device))?;
        if attached.is_busy {
            return Err(AttachError::Busy(device));
        }
        attached.is_busy = true;
        self.tables.remove(walker, device);
        Ok(attached.domain)
    }

    /// The first inherited device after `device`, or the first of all.
    pub(crate) fn inherited_after(&self, device: Option<SourceId>) -> Option<SourceId> {
        let is_inherited = |attached: &Attached| self.domains.get(attached.domain) == Some(&Standing::Inherited);
        self.devices.iter_after(device).find(|(_, attached)| is_inherited(attached)).map(|(device, _)| device)
    }
}
