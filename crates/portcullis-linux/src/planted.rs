//! What tests plant: a flaw, which a test has to find, and a delay, which the module has to stand.

use crate::host::Host;
use portcullis::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, Translation};
use portcullis::{Platform, SourceId};

const DELAY_US: u64 = 3_000_000;

/// Delays the return of the unmap after which nothing is mapped any more. From then on protection may end.
#[cfg_attr(not(feature = "planted-slow-unmap"), expect(dead_code))]
pub(crate) fn delay(live_ranges: usize) {
    let begun = Host.now_us();
    while live_ranges == 0 && Host.now_us() - begun < DELAY_US {
        core::hint::spin_loop();
    }
}

/// A unit that ignores all invalidations: unmaps are reported as done although the hardware was not told of them.
#[cfg_attr(not(feature = "planted-no-invalidation"), expect(dead_code))]
pub(crate) struct Deaf<U>(pub(crate) U);

// SAFETY: it breaks S2, which is its purpose.
unsafe impl<U: Iommu> Iommu for Deaf<U> {
    type Ticket = ();

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.open_domain(translation) }
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: as above.
        unsafe { self.0.close_domain(domain) }
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.0.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.0.detach(domain, device)
    }

    fn submit(&self, _: &[Invalidation]) -> Result<(), QueueError> {
        Ok(())
    }

    fn is_done(&self, (): ()) -> Result<bool, QueueError> {
        Ok(true)
    }
}
