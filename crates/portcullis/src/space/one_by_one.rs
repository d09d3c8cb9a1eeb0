//! Commands that are made one by one: a list of them would take a kilobyte of stack.

use super::AddressSpace;
use crate::iommu::{Invalidation, Iommu, QueueError};
use crate::platform::Platform;
use crate::proof::Proof;
use crate::submission::Submission;

impl<P: Platform, I: Iommu> AddressSpace<P, I> {
    /// Invalidates as [`invalidate`](AddressSpace::invalidate) does, with commands that are made one by one. If
    /// `shares` is true, they share a submission with those of others; if that fails, they are submitted again by
    /// themselves.
    ///
    /// # Errors
    /// A [`QueueError`]; the domain is then poisoned (S11).
    pub fn invalidate_each<C: ExactSizeIterator<Item = Invalidation>>(
        &self,
        commands: &impl Fn() -> C,
        shares: bool,
    ) -> Result<Proof, QueueError> {
        if shares {
            let ticket = self.iommu.submit_each(commands, true);
            if let Ok(Some(proof)) = ticket.and_then(|ticket| Proof::ask(&self.iommu, ticket)) {
                // The hardware was done before the clock was read.
                return Ok(proof);
            }
            if let Some(awaited) = self.await_shared(ticket) {
                return awaited;
            }
        }
        self.wait(self.submit_each(commands)?)
    }

    /// Submits commands without waiting. They are made one by one.
    ///
    /// # Errors
    /// A [`QueueError`]; the domain is then poisoned (S11).
    pub fn submit_each<C: ExactSizeIterator<Item = Invalidation>>(
        &self,
        commands: &impl Fn() -> C,
    ) -> Result<Submission<I::Ticket>, QueueError> {
        self.submission(self.iommu.submit_each(commands, false)).inspect_err(|_| self.poison())
    }
}
