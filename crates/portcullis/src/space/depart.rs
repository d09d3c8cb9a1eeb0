//! Submissions that are not waited for, or not even for room.

use super::AddressSpace;
use crate::iommu::{COMMANDS_MAX, Invalidation, Iommu, QueueError, TrySubmit};
use crate::platform::Platform;
use crate::proof::Proof;
use arrayvec::ArrayVec;

impl<P: Platform, I: Iommu> AddressSpace<P, I> {
    /// Submits a command without waiting for it. `None` if there is no room and the caller does not wait for any.
    ///
    /// # Errors
    /// A [`QueueError`]. The domain is not poisoned: the commands may be submitted again.
    #[inline(always)]
    pub(crate) fn depart(&self, command: Invalidation, shares: bool, waits_for_room: bool) -> TrySubmit<I::Ticket> {
        match (waits_for_room, shares) {
            (false, _) => self.iommu.try_submit_shared(&[command]),
            (true, true) => self.iommu.submit_shared(&[command]).map(Some),
            (true, false) => self.iommu.submit(&[command]).map(Some),
        }
    }

    /// Does the same with commands that are made one by one.
    ///
    /// # Errors
    /// Those of [`depart`](Self::depart).
    pub(crate) fn depart_each<C: ExactSizeIterator<Item = Invalidation>>(
        &self,
        commands: &impl Fn() -> C,
        shares: bool,
        waits_for_room: bool,
    ) -> TrySubmit<I::Ticket> {
        match waits_for_room {
            false => self.try_depart_each(&mut commands()),
            true => self.iommu.submit_each(commands, shares).map(Some),
        }
    }

    // A function of its own, because its list is large.
    #[inline(never)]
    fn try_depart_each(&self, commands: &mut dyn ExactSizeIterator<Item = Invalidation>) -> TrySubmit<I::Ticket> {
        let mut list = ArrayVec::<Invalidation, COMMANDS_MAX>::new_const();
        list.extend(commands);
        self.iommu.try_submit_shared(&list)
    }

    /// Whether what was submitted is done. The domain is not poisoned by an error.
    ///
    /// # Errors
    /// Those of [`Iommu::is_done`].
    #[inline(always)]
    pub(crate) fn ask(&self, ticket: I::Ticket) -> Result<Option<Proof>, QueueError> {
        Proof::ask(&self.iommu, ticket)
    }
}
