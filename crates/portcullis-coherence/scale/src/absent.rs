//! No hardware at all: what is left is the cost of addresses and tables.

use crate::witness::Witness;
use portcullis::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use portcullis_coherence::work;

/// Notes commands, which cost a cycle, and does nothing else with them.
#[derive(Default)]
pub(crate) struct Absent {
    pub(crate) witness: Witness,
}

// SAFETY: it has no devices, so no device reaches any memory.
unsafe impl Iommu for Absent {
    type Ticket = ();

    fn capabilities(&self) -> Capabilities {
        Capabilities::COMPLETE
    }

    unsafe fn open_domain(&self, _: Translation) -> Result<DomainId, AttachError> {
        Ok(DomainId(1))
    }

    unsafe fn close_domain(&self, _: DomainId) -> Result<(), AttachError> {
        Ok(())
    }

    fn attach(&self, _: DomainId, _: SourceId) -> Result<(), AttachError> {
        Err(AttachError::Unsupported)
    }

    fn detach(&self, _: DomainId, device: SourceId) -> Result<(), AttachError> {
        Err(AttachError::NotAttached(device))
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<(), QueueError> {
        work(commands.len() as u64);
        for command in commands {
            if let Invalidation::Pages { first, mask, .. } = *command {
                self.witness.invalidated(first, mask);
            }
        }
        Ok(())
    }

    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<()>, QueueError> {
        self.submit(commands).map(Some)
    }

    fn is_done(&self, (): ()) -> Result<bool, QueueError> {
        Ok(true)
    }
}
