//! Hardware with one flaw.

use portcullis::iommu::fake::{FakeIommu, Ticket};
use portcullis::iommu::{AttachError, Translation};
use portcullis::{Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId};
use std::sync::Mutex;

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HardwareFlaw {
    None,
    /// Commands are dropped and reported done.
    LosesCommands,
    /// Commands are reported done, and executed with those that follow.
    CompletesEarly,
    /// Refused commands are reported done.
    HidesErrors,
    /// Every command says that no table page went.
    LeavesPointers,
    /// Absent entries are cached, and the capabilities do not say so.
    HidesCachingMode,
    /// The walker does not snoop, and the capabilities say that it does.
    HidesItsCoherence,
    /// A domain that was closed goes on.
    NeverCloses,
}

/// The fake, with a flaw.
pub(crate) struct PlantedIommu<'h> {
    fake: &'h FakeIommu<'h>,
    flaw: HardwareFlaw,
    /// What [`HardwareFlaw::CompletesEarly`] has yet to execute.
    late: Mutex<Vec<Invalidation>>,
}

impl<'h> PlantedIommu<'h> {
    pub(crate) fn new(fake: &'h FakeIommu<'h>, flaw: HardwareFlaw) -> Self {
        Self { fake, flaw, late: Mutex::default() }
    }
}

// SAFETY: nothing is behind it that reaches memory.
unsafe impl Iommu for PlantedIommu<'_> {
    /// `None` for what is said to be done.
    type Ticket = Option<Ticket>;

    fn capabilities(&self) -> Capabilities {
        let truth = self.fake.capabilities();
        Capabilities {
            caches_absent: truth.caches_absent && self.flaw != HardwareFlaw::HidesCachingMode,
            coherent: truth.coherent || self.flaw == HardwareFlaw::HidesItsCoherence,
            ..truth
        }
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.fake.open_domain(translation) }
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        if self.flaw == HardwareFlaw::NeverCloses {
            return Ok(());
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.fake.close_domain(domain) }
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.fake.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.fake.detach(domain, device)
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Option<Ticket>, QueueError> {
        match self.flaw {
            HardwareFlaw::LosesCommands => Ok(None),
            HardwareFlaw::CompletesEarly => {
                let late = std::mem::replace(&mut *self.late.lock().expect("not poisoned"), commands.to_vec());
                self.fake.submit(&late).map(Some)
            }
            HardwareFlaw::LeavesPointers => {
                let leaf_only = |command: &Invalidation| match *command {
                    Invalidation::Pages { domain, first, mask, .. } => {
                        Invalidation::Pages { domain, first, mask, leaf_only: true }
                    }
                    other => other,
                };
                self.fake.submit(&commands.iter().map(leaf_only).collect::<Vec<_>>()).map(Some)
            }
            HardwareFlaw::HidesErrors => Ok(self.fake.submit(commands).ok()),
            _ => self.fake.submit(commands).map(Some),
        }
    }

    fn is_done(&self, ticket: Option<Ticket>) -> Result<bool, QueueError> {
        ticket.map_or(Ok(true), |ticket| self.fake.is_done(ticket))
    }
}
