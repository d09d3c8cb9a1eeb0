//! The parts of an assembled mapper, and how they are put together in place.

use super::{AssembledMapper, DomainSetup, LockFree, Locking};
use crate::error::NewDomainError;
use crate::in_place::{built, in_place};
use crate::invalidation::{Commands, Deferral, DeferredPolicy, Policy, Submissions};
use crate::iommu::Iommu;
use crate::iova::{IovaAllocator, PlacedRanges};
use crate::platform::Platform;
use crate::space::AddressSpace;
use crate::table::TableRule;
use core::mem::MaybeUninit;

/// The parts of a design other than its allocator.
#[derive(Debug)]
pub struct Parts<L, D = Deferral> {
    /// What one command covers under strict protection.
    pub commands: Commands,
    /// Which commits wait together.
    pub submissions: Submissions,
    /// How deferred protection treats unmaps.
    pub deferral: D,
    /// What happens to table pages.
    pub rule: TableRule,
    /// The locks.
    pub locking: L,
}

impl Parts<LockFree> {
    /// The parts as Linux has them: no locks but the allocator's, one command per unmap, and table pages freed by an
    /// unmap that covers them. Where claims walk the table, table pages are kept instead.
    pub fn of_linux<P: Platform, A: IovaAllocator<P>>(deferral: Deferral) -> Self {
        let rule = if A::TABLE_CLAIM_PAGES_MAX > 0 { TableRule::Kept } else { TableRule::FreedWhenCovered };
        Self { commands: Commands::PerUnmap, submissions: Submissions::Alone, deferral, rule, locking: LockFree }
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu> AssembledMapper<A, P, I> {
    /// Combines `allocator` with the parts [of Linux](Parts::of_linux) over a new domain.
    ///
    /// # Errors
    /// Those of [`with_parts`](AssembledMapper::with_parts).
    pub fn new(allocator: A, deferral: Deferral, setup: DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        Self::with_parts(allocator, Parts::of_linux::<P, A>(deferral), setup)
    }

    /// Does what [`new`](AssembledMapper::new) does, in `to`; `allocator` makes the allocator.
    ///
    /// # Errors
    /// Those of [`with_parts`](AssembledMapper::with_parts); `to` then holds nothing.
    pub fn of_linux_in<'t>(
        to: &'t mut MaybeUninit<Self>,
        allocator: impl for<'r> FnOnce(&'r mut MaybeUninit<A>, &DomainSetup<'_, P, I>) -> Result<&'r mut A, NewDomainError>,
        deferral: Deferral,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self, NewDomainError> {
        Self::build_in(to, allocator, Parts::of_linux::<P, A>(deferral), setup)
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking, D: DeferredPolicy<P, I>> AssembledMapper<A, P, I, L, D> {
    /// Combines `allocator` and the other parts over a new domain.
    ///
    /// # Errors
    /// [`NewDomainError::Protection`] for [`Protection::None`](crate::Protection::None),
    /// [`NewDomainError::NoMemory`], and those of [`AddressSpace::new`].
    ///
    /// # Panics
    /// In any of these cases:
    /// * claims are left to a table that does not keep its pages;
    /// * addresses may be used again over such a table while pointers to its pages are cached, as under
    ///   [`Flushes::CoveringRange`](crate::invalidation::Flushes::CoveringRange);
    /// * unmaps leave translations in a table that maps do not overwrite, or the other way round;
    /// * a design takes table pages out, but does not write and clear entries itself, or the other way round.
    pub fn with_parts(
        allocator: A,
        parts: Parts<L, D::Setting>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<Self, NewDomainError> {
        built(|to| Self::build_in(to, |to, _| Ok(to.write(allocator)), parts, setup))
    }

    /// Does what [`with_parts`](AssembledMapper::with_parts) does in `to`, where `allocator` makes the allocator.
    /// Each part is made in its own stack frame, so that the parts are never on the stack together.
    ///
    /// # Errors
    /// Those of [`with_parts`](AssembledMapper::with_parts) and of `allocator`; `to` then holds nothing.
    #[inline(never)]
    pub fn build_in<'t>(
        to: &'t mut MaybeUninit<Self>,
        allocator: impl for<'r> FnOnce(&'r mut MaybeUninit<A>, &DomainSetup<'_, P, I>) -> Result<&'r mut A, NewDomainError>,
        parts: Parts<L, D::Setting>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self, NewDomainError> {
        let Parts { commands, submissions, deferral, rule, locking } = parts;
        assert!(
            A::TABLE_CLAIM_PAGES_MAX == 0 || rule == TableRule::Kept,
            "claims that walk the table need a table that keeps its pages"
        );
        assert!(
            !D::leaves_pointers(deferral) || rule == TableRule::Kept,
            "table pages can be freed only after a completed invalidation of all levels"
        );
        assert_eq!(
            L::TAKES_PAGES_OUT,
            rule == TableRule::FreedByDesign,
            "a design that takes table pages out writes and clears entries itself"
        );
        let sub_page = setup.sub_page;
        Ok(in_place!(to => Self {
            allocator <- |to| allocator(to, &setup),
            policy <- |to| {
                let policy = Policy::new(&setup.platform, setup.protection, commands, submissions, deferral)?;
                assert_eq!(
                    policy.is_left_to_maps(),
                    rule == TableRule::Overwritten,
                    "maps overwrite translations if, and only if, unmaps leave them"
                );
                Ok(to.write(policy))
            },
            placed <- |to| Ok(to.write(PlacedRanges::new(&setup.platform, setup.width, setup.reserved)?)),
            locking: locking,
            // The last, because it opens a domain of the hardware.
            space <- |to| {
                let DomainSetup { iommu, platform, width, .. } = setup;
                let mut space = AddressSpace::new(iommu, platform, width, rule)?;
                if L::IS_HELD {
                    space.take_reserve_first();
                }
                space.set_sub_page(sub_page)?;
                Ok(to.write(space))
            },
        }))
    }
}
