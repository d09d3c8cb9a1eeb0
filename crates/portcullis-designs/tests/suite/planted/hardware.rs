//! Hardware with one flaw.

use portcullis::iommu::fake::{FakeIommu, Ticket};
use portcullis::iommu::{AttachError, Translation};
use portcullis::{Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId};
use std::sync::Mutex;

/// The flaw.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HardwareFlaw {
    None,
    /// Commands are dropped and reported as done.
    LosesCommands,
    /// Commands are reported as done, and executed with the next ones.
    CompletesEarly,
    /// Refused commands are reported as done.
    HidesErrors,
    /// Every command is executed as if it said that no table page goes.
    LeavesPointers,
    /// Absent entries are cached, but the capabilities do not report that.
    HidesCachingMode,
    /// The page walker does not snoop, but the capabilities report that it does.
    HidesItsCoherence,
    /// A closed domain keeps translating.
    NeverCloses,
}

/// The fake, with a flaw.
pub(crate) struct PlantedIommu<'h> {
    fake: &'h FakeIommu<'h>,
    flaw: HardwareFlaw,
    /// The commands that [`HardwareFlaw::CompletesEarly`] has yet to execute.
    late: Mutex<Vec<Invalidation>>,
}

impl<'h> PlantedIommu<'h> {
    pub(crate) fn new(fake: &'h FakeIommu<'h>, flaw: HardwareFlaw) -> Self {
        Self { fake, flaw, late: Mutex::default() }
    }
}

// SAFETY: no memory is behind it.
unsafe impl Iommu for PlantedIommu<'_> {
    /// `None` for commands that are reported as done.
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
