//! A software walk, as a value.

use super::Platform;
use core::marker::PhantomData;

/// Shows that the caller is within a [walk](Platform::walk). A page that walks can find is freed only after the walks
/// of the domain's host, so what is found by this value stays allocated for `'w`, and cannot leave the walk.
///
/// All walks of a domain are on its host. The value belongs to the CPU that walks, so it is not `Send`.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'w>(PhantomData<(&'w (), *const ())>);

impl Walk<'_> {
    /// Runs `walk` within a walk on `platform`.
    #[inline(always)]
    pub(crate) fn on<P: Platform, R>(platform: &P, walk: impl for<'w> FnOnce(Walk<'w>) -> R) -> R {
        platform.walk(
            // Inlined, as the walk of an unmap is.
            #[inline(always)]
            || walk(Walk(PhantomData)),
        )
    }
}
