//! Any design over a unit with one flaw.

use portcullis::iommu::{AttachError, Translation};
use portcullis::mapper::{Design, DesignInfo, DomainSetup, Info};
use portcullis::{Capabilities, DomainId, Invalidation, Iommu, NewDomainError, Platform, QueueError, SourceId};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// The flaws are numbers, because they are part of a type.
pub(crate) const NONE: u8 = 0;
/// Commands are dropped and reported as done.
pub(crate) const LOSES_COMMANDS: u8 = 1;
/// Every command is executed as if it said that no table page goes.
pub(crate) const LEAVES_POINTERS: u8 = 2;
/// Only the first of several commands is waited for.
pub(crate) const WAITS_FOR_THE_FIRST: u8 = 3;
/// No command is waited for.
pub(crate) const NEVER_WAITS: u8 = 4;
/// A device is attached to the domain that was opened before its own.
pub(crate) const MIXES_UP_DOMAINS: u8 = 5;
/// A shared commit is reported as done when the one before it is.
pub(crate) const RETURNS_EARLY: u8 = 6;
/// The first of several commands is dropped.
pub(crate) const LOSES_THE_FIRST: u8 = 7;

/// Design `B` over a unit with flaw number `FLAW`.
pub(crate) struct OnUnit<B, const FLAW: u8>(PhantomData<B>);

impl<B: DesignInfo, const FLAW: u8> DesignInfo for OnUnit<B, FLAW> {
    const INFO: Info = B::INFO;
}

// SAFETY: its parts are sound, except for the planted flaw. Only a test's own memory is behind it.
unsafe impl<P: Platform, I: Iommu, B: Design<P, FlawedUnit<I, FLAW>>, const FLAW: u8> Design<P, I> for OnUnit<B, FLAW> {
    type Mapper = B::Mapper;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let setup = DomainSetup {
            iommu: FlawedUnit { unit: setup.iommu, latest: Mutex::new(None) },
            platform: setup.platform,
            protection: setup.protection,
            width: setup.width,
            reserved: setup.reserved,
            memory: setup.memory,
            options: setup.options,
            sub_page: setup.sub_page,
        };
        // SAFETY: the caller's promise, passed on.
        unsafe { B::build_in(to, setup) }
    }
}

pub(crate) struct FlawedUnit<I: Iommu, const FLAW: u8> {
    unit: I,
    /// The latest shared commit.
    latest: Mutex<Option<I::Ticket>>,
}

impl<I: Iommu, const FLAW: u8> FlawedUnit<I, FLAW> {
    fn submit_flawed(&self, commands: &[Invalidation]) -> Result<I::Ticket, QueueError> {
        match FLAW {
            LOSES_COMMANDS => self.unit.submit(&[]),
            LEAVES_POINTERS => {
                let leaf_only = |command: &Invalidation| match *command {
                    Invalidation::Pages { domain, first, mask, .. } => {
                        Invalidation::Pages { domain, first, mask, leaf_only: true }
                    }
                    other => other,
                };
                self.unit.submit(&commands.iter().map(leaf_only).collect::<Vec<_>>())
            }
            WAITS_FOR_THE_FIRST => {
                let (first, others) = commands.split_at(1);
                let ticket = self.unit.submit(first)?;
                self.unit.submit(others)?;
                Ok(ticket)
            }
            LOSES_THE_FIRST if commands.len() > 1 => self.unit.submit(&commands[1..]),
            _ => self.unit.submit(commands),
        }
    }
}

// SAFETY: it is flawed on purpose, but the devices behind it reach only the model's memory.
unsafe impl<I: Iommu, const FLAW: u8> Iommu for FlawedUnit<I, FLAW> {
    /// Its own ticket and, with [`RETURNS_EARLY`], that of the commit before it.
    type Ticket = (I::Ticket, Option<I::Ticket>);

    fn capabilities(&self) -> Capabilities {
        self.unit.capabilities()
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.unit.open_domain(translation) }
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.unit.close_domain(domain) }
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        if FLAW == MIXES_UP_DOMAINS && self.unit.attach(DomainId(domain.0 - 1), device).is_ok() {
            return Ok(());
        }
        self.unit.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.unit.detach(domain, device)
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        self.submit_flawed(commands).map(|ticket| (ticket, None))
    }

    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        let ticket = self.unit.submit_shared(commands)?;
        let before = self.latest.lock().unwrap_or_else(PoisonError::into_inner).replace(ticket);
        Ok((ticket, before.filter(|_| FLAW == RETURNS_EARLY)))
    }

    fn is_done(&self, (ticket, before): Self::Ticket) -> Result<bool, QueueError> {
        if FLAW == NEVER_WAITS {
            return Ok(true);
        }
        Ok(self.unit.is_done(ticket)? || before.map_or(Ok(false), |before| self.unit.is_done(before))?)
    }
}
