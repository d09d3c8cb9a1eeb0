//! Several units joined into one, for domains whose devices sit behind more than one of them.

use arrayvec::ArrayVec;
use portcullis::Platform;
use portcullis::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use portcullis::platform::{Lock, LockClass, Wait};
use thiserror::Error;

use crate::hardware::spin;
use crate::queue::BURST_MAX;
use crate::sorted::{Room, Short, SortedMap};

/// The most units that one [`Units`] joins.
pub const UNITS_MAX: usize = 8;

/// A [`Units`] was to join no unit, or more than [`UNITS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{0} units cannot be joined: one to {UNITS_MAX} can")]
pub struct UnitCount(pub usize);

/// The tickets of one submission, one per unit.
#[derive(Clone, Copy, Debug)]
pub struct UnitsTicket<T>([Option<T>; UNITS_MAX]);

/// The id of a domain on each unit; `None` if it is already closed there.
type Ids = [Option<DomainId>; UNITS_MAX];

/// Several units joined into one [`Iommu`]. A domain exists on all of them. Only what every unit can do is offered.
///
/// Domain ids of a `Units` are its own; the ids on the units may differ. While they are joined, the units must not be
/// used directly, except to read faults and to release [inherited](crate::Unit::take_over) devices.
pub struct Units<'a, U, P: Platform, F> {
    units: &'a [U],
    platform: P,
    unit_of: F,
    wait_us_max: u64,
    domains: P::Lock<SortedMap<DomainId, Ids>>,
}

impl<'a, U: Iommu, P: Platform, F: Fn(SourceId) -> Option<usize> + Send + Sync> Units<'a, U, P, F> {
    /// Joins `units`. `unit_of` returns the index in `units` of the unit that a device is behind, or `None` if it is
    /// behind none of them. `wait_us_max` limits how long a submission of more than 64 commands waits for each of its
    /// parts, in microseconds.
    ///
    /// # Errors
    /// [`UnitCount`].
    pub fn new(units: &'a [U], platform: P, unit_of: F, wait_us_max: u64) -> Result<Self, UnitCount> {
        if units.is_empty() || units.len() > UNITS_MAX {
            return Err(UnitCount(units.len()));
        }
        let domains = platform.lock(LockClass::Attachment, SortedMap::new());
        Ok(Self { units, platform, unit_of, wait_us_max, domains })
    }

    /// The unit of a device, and the id of the domain there. The lock is released before a unit takes its own lock,
    /// which is of the same class.
    fn place(&self, domain: DomainId, device: SourceId) -> Result<Option<(&'a U, DomainId)>, AttachError> {
        let ids = self.domains.with(|domains| domains.get(domain).copied()).ok_or(AttachError::NoSuchDomain(domain))?;
        Ok((self.unit_of)(device).and_then(|index| Some((self.units.get(index)?, ids[index]?))))
    }

    /// Submits at most [`BURST_MAX`] commands to every unit by `submit`. Returns the tickets.
    fn submit_burst<T: Copy>(
        &self,
        commands: &[Invalidation],
        submit: impl Fn(&U, &[Invalidation]) -> Result<T, QueueError>,
    ) -> Result<[Option<T>; UNITS_MAX], QueueError> {
        let mut tickets = [None; UNITS_MAX];
        for (index, unit) in self.units.iter().enumerate() {
            let translated: Result<ArrayVec<_, BURST_MAX>, QueueError> = self.domains.with(|domains| {
                commands.iter().filter_map(|command| translate(domains, index, command).transpose()).collect()
            });
            tickets[index] = Some(submit(unit, &translated?)?);
        }
        Ok(tickets)
    }

    /// Gives a new id to a domain that has these ids on the units. Allocates with the lock released, and then looks
    /// for an id again.
    fn note(&self, ids: Ids) -> Result<DomainId, AttachError> {
        let mut room = Room::default();
        loop {
            let noted = self.domains.with(|domains| {
                let id = (1..=u16::MAX).map(DomainId).find(|id| !domains.contains(*id));
                let id = id.ok_or(AttachError::NoDomainId)?;
                Ok(domains.slot(&mut room).map(|slot| {
                    slot.fill(id, ids);
                    id
                }))
            });
            match noted {
                Ok(Ok(id)) => return Ok(id),
                Ok(Err(Short)) => room.obtain(&self.platform)?,
                Err(error) => return Err(error),
            }
        }
    }

    fn wait_for(&self, ticket: UnitsTicket<U::Ticket>) -> Result<(), QueueError> {
        let finished = spin(&self.platform, Wait::Invalidation, self.wait_us_max, || match self.is_done(ticket) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        });
        finished.unwrap_or(Err(QueueError::Timeout(self.wait_us_max)))
    }
}

/// The command with the domain's id on unit `index`; `None` if the domain is closed there, so that nothing of it is
/// cached.
fn translate(
    domains: &SortedMap<DomainId, Ids>,
    index: usize,
    command: &Invalidation,
) -> Result<Option<Invalidation>, QueueError> {
    let local = |domain| domains.get(domain).map(|ids| ids[index]).ok_or(QueueError::Unsupported);
    Ok(match *command {
        Invalidation::Pages { domain, first, mask, leaf_only } => {
            local(domain)?.map(|domain| Invalidation::Pages { domain, first, mask, leaf_only })
        }
        Invalidation::Domain(domain) => local(domain)?.map(Invalidation::Domain),
        Invalidation::Global => Some(Invalidation::Global),
    })
}

/// What both units can do.
fn common(one: Capabilities, other: Capabilities) -> Capabilities {
    Capabilities {
        three_level: one.three_level && other.three_level,
        four_level: one.four_level && other.four_level,
        leaf_2m: one.leaf_2m && other.leaf_2m,
        leaf_1g: one.leaf_1g && other.leaf_1g,
        address_mask_max: one.address_mask_max.zip(other.address_mask_max).map(|(one, other)| one.min(other)),
        coherent: one.coherent && other.coherent,
        caches_absent: one.caches_absent || other.caches_absent,
        rings: one.rings && other.rings,
        pass_through: one.pass_through && other.pass_through,
        address_bits: one.address_bits.min(other.address_bits),
        physical_bits: one.physical_bits.min(other.physical_bits),
    }
}

// SAFETY: each unit keeps the promises for the devices behind it, and every invalidation goes to all of them. A
// device that `unit_of` assigns to the wrong unit gets an entry in the tables of that unit only, and its own unit
// still shuts it out.
unsafe impl<U: Iommu, P: Platform, F: Fn(SourceId) -> Option<usize> + Send + Sync> Iommu for Units<'_, U, P, F> {
    type Ticket = UnitsTicket<U::Ticket>;

    fn capabilities(&self) -> Capabilities {
        let first = self.units[0].capabilities();
        self.units[1..].iter().map(Iommu::capabilities).fold(first, common)
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        let mut ids = Ids::default();
        let mut opened = Ok(());
        for (unit, id) in self.units.iter().zip(&mut ids) {
            // SAFETY: the caller's promise, passed on. The domain has one id on each unit, and each unit gets every
            // invalidation.
            match unsafe { unit.open_domain(translation) } {
                Ok(local) => *id = Some(local),
                Err(error) => {
                    opened = Err(error);
                    break;
                }
            }
        }
        let id = opened.and_then(|()| self.note(ids));
        if id.is_err() {
            for (unit, local) in self.units.iter().zip(ids) {
                // The domain was never used. If its flush fails, the id stays taken on that unit, which does no harm.
                // SAFETY: opened above.
                let _ = local.map(|local| unsafe { unit.close_domain(local) });
            }
        }
        id
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        for (index, unit) in self.units.iter().enumerate() {
            let with_id = |set: Option<DomainId>| -> Result<Option<DomainId>, AttachError> {
                self.domains.with(|domains| {
                    let ids = domains.get_mut(domain).ok_or(AttachError::NoSuchDomain(domain))?;
                    Ok(core::mem::replace(&mut ids[index], set))
                })
            };
            // The id is removed before the domain is closed, because the unit may give the id to another domain at
            // once.
            if let Some(local) = with_id(None)?
                // SAFETY: `open_domain` opened it, and its id was removed above, so it is closed once.
                && let Err(error) = unsafe { unit.close_domain(local) }
            {
                with_id(Some(local))?;
                return Err(error);
            }
        }
        self.domains.with(|domains| domains.remove(domain));
        Ok(())
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        let (unit, id) = self.place(domain, device)?.ok_or(AttachError::Unsupported)?;
        unit.attach(id, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        let (unit, id) = self.place(domain, device)?.ok_or(AttachError::NotAttached(device))?;
        unit.detach(id, device)
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        let mut rest = commands;
        while rest.len() > BURST_MAX {
            let (burst, others) = rest.split_at(BURST_MAX);
            self.wait_for(UnitsTicket(self.submit_burst(burst, U::submit)?))?;
            rest = others;
        }
        self.submit_burst(rest, U::submit).map(UnitsTicket)
    }

    /// More than 64 commands are not shared.
    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        if commands.len() > BURST_MAX {
            return self.submit(commands);
        }
        self.submit_burst(commands, U::submit_shared).map(UnitsTicket)
    }

    /// May return `None` after some of the units took the submission.
    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<Self::Ticket>, QueueError> {
        if commands.len() > BURST_MAX {
            return Ok(None);
        }
        let tickets = self.submit_burst(commands, U::try_submit_shared)?;
        // The caller submits again, also to the units that had room. Repeating an invalidation is harmless.
        let have_all_room = tickets.iter().flatten().all(Option::is_some);
        Ok(have_all_room.then(|| UnitsTicket(tickets.map(Option::flatten))))
    }

    fn is_done(&self, ticket: Self::Ticket) -> Result<bool, QueueError> {
        let mut all = true;
        for (unit, ticket) in self.units.iter().zip(ticket.0) {
            if let Some(ticket) = ticket {
                all &= unit.is_done(ticket)?;
            }
        }
        Ok(all)
    }

    fn gave_up(&self, ticket: Self::Ticket) {
        for (unit, ticket) in self.units.iter().zip(ticket.0) {
            // A unit that is done with its part refuses nothing.
            ticket.into_iter().for_each(|ticket| unit.gave_up(ticket));
        }
    }
}
