//! No hardware at all: what is left is the cost of addresses and tables.

use portcullis::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use portcullis_coherence::work;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts commands, which cost a cycle, and does nothing else with them.
#[derive(Default)]
pub(crate) struct Absent(AtomicU64);

impl Absent {
    pub(crate) fn commands(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
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
        self.0.fetch_add(commands.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<()>, QueueError> {
        self.submit(commands).map(Some)
    }

    fn is_done(&self, (): ()) -> Result<bool, QueueError> {
        Ok(true)
    }
}
