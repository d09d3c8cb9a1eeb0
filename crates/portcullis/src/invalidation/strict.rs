//! Strict protection: invalidate and wait before anything goes back.

use super::revocation::is_within;
use super::{BATCH_MAX, Commands, Revocation, Revoked, Submissions};
use crate::address::IovaRange;
use crate::error::CommitError;
use crate::iommu::{Capabilities, Invalidation, Iommu, QueueError};
use crate::iova::IovaAllocator;
use crate::platform::{Phase, Platform, Step};
use crate::proof::Proof;
use crate::space::AddressSpace;
use arrayvec::ArrayVec;

/// Submits page-selective commands for the unmaps with one wait behind them all, waits, and frees the addresses and tables.
pub(super) fn commit<P: Platform, I: Iommu>(
    space: &AddressSpace<P, I>,
    allocator: &impl IovaAllocator<P>,
    revocation: &mut Revocation,
    per: Commands,
    submissions: Submissions,
) -> Result<Proof, CommitError> {
    let platform = space.platform();
    platform.probe(Step::Enter(Phase::Invalidate));
    // As drivers mostly unmap: no list is built for that.
    let only = revocation.only_run().map(|run| (run, space.covering(run.range, run.leaf_only)));
    let invalidated = match only {
        Some((Revoked { unmaps: 1, .. }, command)) | Some((_, command @ Invalidation::Pages { .. })) => {
            invalidate(space, &[command], submissions)
        }
        _ => invalidate_all(space, revocation, per, submissions),
    };
    // Where it fails the ranges and tables leak: quarantined for good (S11).
    let proof = invalidated.inspect_err(|_| revocation.forget())?;
    platform.probe(Step::Enter(Phase::IovaFree));
    match only {
        Some((run, _)) => allocator.free(platform, run.range, &proof),
        None => revocation.revoked().for_each(|revoked| allocator.free(platform, revoked.range, &proof)),
    }
    revocation.clear_runs();
    space.release(core::mem::take(&mut revocation.tables), &proof);
    Ok(proof)
}

#[inline(never)]
fn invalidate_all<P: Platform, I: Iommu>(
    space: &AddressSpace<P, I>,
    revocation: &mut Revocation,
    per: Commands,
    submissions: Submissions,
) -> Result<Proof, QueueError> {
    // Filled in place: collecting would move a kilobyte.
    let mut commands = ArrayVec::<Invalidation, BATCH_MAX>::new_const();
    let mut is_complete = true;
    let mut push = |Revoked { range, leaf_only, .. }| {
        is_complete &= commands.try_push(space.covering(range, leaf_only)).is_ok();
    };
    match per {
        Commands::PerUnmap => revocation.revoked().for_each(push),
        Commands::PerRun { within_pages } => {
            let within_pages = within_one_command(within_pages, space.capabilities());
            // Completions come in any order. The order of the batch is of no more use.
            revocation.sort();
            let mut rest = revocation.revoked().flat_map(|run| pieces(run, within_pages));
            let last = rest.next().map(|first| {
                rest.fold(first, |run, next| {
                    join(run, next, within_pages).unwrap_or_else(|| {
                        push(run);
                        next
                    })
                })
            });
            last.into_iter().for_each(push);
        }
    }
    match is_complete {
        true => invalidate(space, &commands, submissions),
        // Hardware whose commands cover next to nothing is told of everything.
        false => invalidate(space, &[Invalidation::Domain(space.id())], submissions),
    }
}

/// A mapping; or what of several side by side one command covers, piece by piece.
fn pieces(run: Revoked, within_pages: u64) -> impl Iterator<Item = Revoked> {
    let (mut first, end) = (run.range.first_pfn(), run.range.end_pfn());
    core::iter::from_fn(move || {
        let piece_end = if run.unmaps == 1 { end } else { end.min((first | (within_pages - 1)) + 1) };
        let range = IovaRange::new(first, piece_end - first)?;
        first = piece_end;
        Some(Revoked { range, ..run })
    })
}

#[inline(always)]
fn invalidate<P: Platform, I: Iommu>(
    space: &AddressSpace<P, I>,
    commands: &[Invalidation],
    submissions: Submissions,
) -> Result<Proof, QueueError> {
    match submissions {
        Submissions::Alone => space.invalidate(commands),
        Submissions::Shared => space.invalidate_shared(commands),
    }
}

/// Pages within which neighbours may share a command: more than one command can cover would take the whole domain.
fn within_one_command(pages: u64, capabilities: &Capabilities) -> u64 {
    capabilities.address_mask_max.map_or(pages, |mask| pages.min(1 << mask))
}

/// The run that `next` makes of `run`, if it goes on where that ends and both lie within an aligned run of `within_pages`.
fn join(run: Revoked, next: Revoked, within_pages: u64) -> Option<Revoked> {
    if run.range.end_pfn() != next.range.first_pfn() {
        return None;
    }
    let range = IovaRange::of(run.range.first_pfn(), run.range.pages() + next.range.pages());
    is_within(range, within_pages).then(|| Revoked {
        range,
        leaf_only: run.leaf_only && next.leaf_only,
        unmaps: run.unmaps + next.unmaps,
        ..run
    })
}

#[cfg(test)]
mod tests {
    use super::super::Due;
    use super::*;
    use alloc::vec::Vec;

    /// Of several mappings each aligned piece; a mapping is one, however long it is.
    #[test]
    fn several_mappings_are_cut_where_a_command_ends() {
        let run = Revoked { unmaps: 3, ..Revoked::one(IovaRange::new(6, 11).unwrap(), Due::Invalidation, true) };
        let cut = |run| pieces(run, 8).map(|piece| (piece.range.first_pfn(), piece.range.pages())).collect::<Vec<_>>();
        assert_eq!(cut(run), [(6, 2), (8, 8), (16, 1)]);
        assert_eq!(cut(Revoked { unmaps: 1, ..run }), [(6, 11)]);
    }

    /// A run whose mappings took a table page with them is invalidated at all levels, whichever of them did.
    #[test]
    fn all_levels_go_if_any_do() {
        let revoked = |first, leaf_only| Revoked::one(IovaRange::new(first, 1).unwrap(), Due::Invalidation, leaf_only);
        for (run, next) in [(true, true), (true, false), (false, true)] {
            let joined = join(revoked(4, run), revoked(5, next), 8).unwrap();
            assert_eq!((joined.range, joined.leaf_only), (IovaRange::new(4, 2).unwrap(), run && next));
        }
    }
}
