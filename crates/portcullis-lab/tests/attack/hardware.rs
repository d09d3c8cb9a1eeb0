//! Any design over a unit with one flaw.

use portcullis::design::{Described, Design, Info, Setup};
use portcullis::iommu::{AttachError, Translation};
use portcullis::{Capabilities, DomainId, Invalidation, Iommu, NewDomainError, Platform, QueueError, SourceId};
use std::marker::PhantomData;

/// The flaws by number, for they are part of a type.
pub(crate) const NONE: u8 = 0;
/// Commands are dropped and reported done.
pub(crate) const LOSES_COMMANDS: u8 = 1;
/// Every command says that no table page went.
pub(crate) const LEAVES_POINTERS: u8 = 2;
/// Of several commands only the first is waited for.
pub(crate) const WAITS_FOR_THE_FIRST: u8 = 3;
/// Nothing is waited for.
pub(crate) const NEVER_WAITS: u8 = 4;
/// Devices get into the domain that was opened before theirs.
pub(crate) const MIXES_UP_DOMAINS: u8 = 5;

/// Design `B` over a unit with flaw number `FLAW`.
pub(crate) struct OnUnit<B, const FLAW: u8>(PhantomData<B>);

impl<B: Described, const FLAW: u8> Described for OnUnit<B, FLAW> {
    const INFO: Info = B::INFO;
}

impl<P: Platform, I: Iommu, B: Design<P, FlawedUnit<I, FLAW>>, const FLAW: u8> Design<P, I> for OnUnit<B, FLAW> {
    type Mapper = B::Mapper;

    fn build(setup: Setup<'_, P, I>) -> Result<Self::Mapper, NewDomainError> {
        B::build(Setup {
            iommu: FlawedUnit(setup.iommu),
            platform: setup.platform,
            protection: setup.protection,
            width: setup.width,
            reserved: setup.reserved,
            memory: setup.memory,
            options: setup.options,
        })
    }
}

pub(crate) struct FlawedUnit<I, const FLAW: u8>(I);

impl<I: Iommu, const FLAW: u8> Iommu for FlawedUnit<I, FLAW> {
    type Ticket = I::Ticket;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        self.0.open_domain(translation)
    }

    fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        self.0.close_domain(domain)
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        if FLAW == MIXES_UP_DOMAINS && self.0.attach(DomainId(domain.0 - 1), device).is_ok() {
            return Ok(());
        }
        self.0.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.0.detach(domain, device)
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<I::Ticket, QueueError> {
        match FLAW {
            LOSES_COMMANDS => self.0.submit(&[]),
            LEAVES_POINTERS => {
                let leaf_only = |command: &Invalidation| match *command {
                    Invalidation::Pages { domain, first, mask, .. } => {
                        Invalidation::Pages { domain, first, mask, leaf_only: true }
                    }
                    other => other,
                };
                self.0.submit(&commands.iter().map(leaf_only).collect::<Vec<_>>())
            }
            WAITS_FOR_THE_FIRST => {
                let (first, others) = commands.split_at(1);
                let ticket = self.0.submit(first)?;
                self.0.submit(others)?;
                Ok(ticket)
            }
            _ => self.0.submit(commands),
        }
    }

    fn is_done(&self, ticket: I::Ticket) -> Result<bool, QueueError> {
        if FLAW == NEVER_WAITS { Ok(true) } else { self.0.is_done(ticket) }
    }
}
