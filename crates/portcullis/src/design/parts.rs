//! The parts of an assembled mapper, and how they are put together in place.

use super::{AssembledMapper, DomainSetup, LockFree, Locking};
use crate::error::NewDomainError;
use crate::in_place::{Made, part};
use crate::invalidation::{Commands, Deferral, Policy, Submissions};
use crate::iommu::Iommu;
use crate::iova::{IovaAllocator, PlacedRanges};
use crate::platform::Platform;
use crate::space::AddressSpace;
use crate::table::TableRule;
use core::mem::MaybeUninit;

/// Does what [`Made::by`] does, in its own stack frame.
///
/// # Errors
/// Those of `make`.
///
/// # Safety
/// That of [`Made::by`].
#[inline(never)]
unsafe fn apart<'r, T>(
    room: &'r mut MaybeUninit<T>,
    make: impl FnOnce(&mut MaybeUninit<T>) -> Result<(), NewDomainError>,
) -> Result<Made<'r, T>, NewDomainError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { Made::by(room, make) }
}

/// The parts of a design other than its allocator.
#[derive(Debug)]
pub struct Parts<L> {
    /// What one command covers under strict protection.
    pub commands: Commands,
    /// Which commits wait together.
    pub submissions: Submissions,
    /// How deferred protection treats unmaps.
    pub deferral: Deferral,
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
    ///
    /// # Safety
    /// That of [`build_in`](AssembledMapper::build_in).
    pub(crate) unsafe fn of_linux_in(
        to: &mut MaybeUninit<Self>,
        allocator: impl FnOnce(&mut MaybeUninit<A>, &DomainSetup<'_, P, I>) -> Result<(), NewDomainError>,
        deferral: Deferral,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<(), NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Self::build_in(to, allocator, Parts::of_linux::<P, A>(deferral), setup) }
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> AssembledMapper<A, P, I, L> {
    /// Combines `allocator` and the other parts over a new domain.
    ///
    /// # Errors
    /// [`NewDomainError::Protection`] for [`Protection::None`](crate::Protection::None),
    /// [`NewDomainError::NoMemory`], and those of [`AddressSpace::new`].
    ///
    /// # Panics
    /// In any of these cases:
    /// * claims are left to a table that does not keep its pages;
    /// * [`Deferral::Asynchronous`] or [`Flushes::CoveringRange`](crate::invalidation::Flushes::CoveringRange) is
    ///   used over such a table;
    /// * unmaps leave translations in a table that maps do not overwrite, or the other way round;
    /// * a table that frees empty pages has no lock.
    pub fn with_parts(allocator: A, parts: Parts<L>, setup: DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        let mut mapper = MaybeUninit::uninit();
        let moved = |to: &mut MaybeUninit<A>, _: &DomainSetup<'_, P, I>| {
            to.write(allocator);
            Ok(())
        };
        // SAFETY: the closure writes an allocator.
        unsafe { Self::build_in(&mut mapper, moved, parts, setup) }?;
        // SAFETY: made just now.
        Ok(unsafe { mapper.assume_init() })
    }

    /// Does what [`with_parts`](AssembledMapper::with_parts) does in `to`, where `allocator` makes the allocator.
    /// Each part is made in its own stack frame, so that the parts are never on the stack together.
    ///
    /// # Errors
    /// Those of [`with_parts`](AssembledMapper::with_parts) and of `allocator`; `to` then holds nothing.
    ///
    /// # Safety
    /// If `allocator` returns no error, it has made an allocator.
    #[inline(never)]
    pub(crate) unsafe fn build_in(
        to: &mut MaybeUninit<Self>,
        allocator: impl FnOnce(&mut MaybeUninit<A>, &DomainSetup<'_, P, I>) -> Result<(), NewDomainError>,
        parts: Parts<L>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<(), NewDomainError> {
        let Parts { commands, submissions, deferral, rule, locking } = parts;
        assert!(
            A::TABLE_CLAIM_PAGES_MAX == 0 || rule == TableRule::Kept,
            "claims that walk the table need a table that keeps its pages"
        );
        assert!(
            !deferral.leaves_pointers() || rule == TableRule::Kept,
            "table pages can be freed only after a completed invalidation of all levels"
        );
        assert!(
            L::TABLE_EXCLUSIVE || !matches!(rule, TableRule::FreedWhenEmpty { .. }),
            "a table that frees its empty pages needs a lock"
        );
        let at = to.as_mut_ptr();
        // SAFETY: each part of `to` is taken once.
        let (to_allocator, to_policy, to_placed, to_space) = unsafe {
            let (allocator, policy) = (part(&raw mut (*at).allocator), part(&raw mut (*at).policy));
            (allocator, policy, part(&raw mut (*at).placed), part(&raw mut (*at).space))
        };
        // SAFETY: the caller's promise.
        let allocator = unsafe { Made::by(to_allocator, |to| allocator(to, &setup)) }?;
        let make_policy = |to: &mut MaybeUninit<_>| {
            to.write(Policy::new(&setup.platform, setup.protection, commands, submissions, deferral)?);
            Ok(())
        };
        // SAFETY: the closure writes a policy.
        let policy = unsafe { apart(to_policy, make_policy) }?;
        assert_eq!(
            matches!(policy.get(), Policy::AtMap(_)),
            rule == TableRule::Overwritten,
            "maps overwrite translations if, and only if, unmaps leave them"
        );
        let make_placed = |to: &mut MaybeUninit<_>| {
            to.write(PlacedRanges::new(&setup.platform, setup.width, setup.reserved)?);
            Ok(())
        };
        // SAFETY: the closure writes the ranges.
        let placed = unsafe { apart(to_placed, make_placed) }?;
        let DomainSetup { iommu, platform, width, sub_page, .. } = setup;
        let make_space = |to: &mut MaybeUninit<_>| {
            to.write(AddressSpace::new(iommu, platform, width, rule)?);
            Ok(())
        };
        // SAFETY: the closure writes an address space. It comes last, because it opens a domain of the hardware.
        let mut space = unsafe { apart(to_space, make_space) }?;
        if L::IS_HELD {
            space.get_mut().take_reserve_first();
        }
        space.get_mut().set_sub_page(sub_page)?;
        // Names every field: a new field in the mapper breaks the build here.
        let _ = |Self { allocator: _, policy: _, locking: _, space: _, placed: _ }: &Self| {};
        // SAFETY: the field lies within `to`.
        unsafe { (&raw mut (*at).locking).write(locking) };
        allocator.keep();
        policy.keep();
        placed.keep();
        space.keep();
        Ok(())
    }
}
