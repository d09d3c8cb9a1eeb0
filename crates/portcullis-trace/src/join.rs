//! Finding the mapping behind each logged access.
//!
//! The log has no times, but both sides show the same invalidation descriptors in the same order. The log starts with the
//! machine and the trace later, and either may stop first, so an *offset* says which descriptor of the log is the first of
//! the trace. What the log shows between two descriptors happened between the same two in the trace. An offset is possible
//! where all descriptors that both sides have are equal; of those, the one that leaves the fewest accesses unexplained is
//! right: an explained access hits a page that is mapped at that time, at the physical page that the log shows.

mod sides;

use super::{AccessLog, Trace};
use portcullis::table::Rights;
use portcullis::{PhysAddr, SourceId};
use sides::Sides;
use std::cmp::Reverse;
use thiserror::Error;

/// Why a log and a trace could not be joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No `intel_iommu:qi_submit` event of an IOTLB invalidation.
    #[error("the trace has no IOTLB invalidation; record intel_iommu:qi_submit too")]
    NoneTraced,
    /// No IOTLB descriptor in the log.
    #[error("the access log has no IOTLB invalidation descriptor")]
    NoneLogged,
    /// The descriptors disagree at every offset.
    #[error(
        "the {logged} IOTLB invalidations of the access log and the {traced} of the trace agree nowhere: \
         they are of different runs, or the capture has lost events"
    )]
    Disagree {
        /// IOTLB descriptors in the log.
        logged: usize,
        /// IOTLB descriptors in the trace.
        traced: usize,
    },
    /// The log does not reach the trace at this offset.
    #[error("at offset {0} the access log and the trace have no invalidation in common")]
    Apart(i64),
    /// More accesses than can be counted here.
    #[error("the access log has more than {} accesses", u32::MAX)]
    TooMany,
}

/// What an access went to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A mapping of the trace.
    Mapping {
        /// Index into [`Trace::mappings`].
        mapping: u32,
        /// Which of its pages.
        page: u32,
        /// Which byte of the page.
        offset: u16,
    },
    /// A page that was mapped before the trace began.
    Persistent {
        /// Index into [`Joined::persistent`].
        index: u32,
        /// Which byte of the page.
        offset: u16,
    },
}

/// An access of the device, placed among the operations of the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedAccess {
    /// How many operations of the trace come before it. Then its mapping is mapped, and not yet unmapped.
    pub after_operation: u32,
    /// What was accessed.
    pub target: Target,
    /// At most what was done: the log does not tell reads from writes.
    pub rights: Rights,
}

/// A page that the device accessed and that was mapped before the trace began: of a descriptor ring, or of a buffer whose
/// unmap the trace shows and whose map it does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PersistentPage {
    /// Whose page.
    pub device: SourceId,
    /// Its number for the device.
    pub iova_pfn: u64,
    /// Where it lies.
    pub phys: PhysAddr,
    /// The union of the rights that the log shows.
    pub rights: Rights,
}

/// A log in terms of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The IOTLB descriptor of the log, counted from 0, that is the first of the trace. Negative where the log starts later.
    pub offset: i64,
    /// How many descriptors both sides have. Where these are few of many, the two may be of different runs.
    pub invalidations: u64,
    /// The accesses, by [`LoggedAccess::after_operation`], and in the order of the log where that is the same.
    pub accesses: Vec<LoggedAccess>,
    /// The pages mapped before the trace, in the order of their first access.
    pub persistent: Vec<PersistentPage>,
    /// Accesses during the trace to pages that were not mapped then.
    pub unexplained: u64,
    /// Accesses before the trace's first invalidation interval or after its last.
    pub outside: u64,
}

/// Joins the two at the offset that explains most.
///
/// # Errors
/// [`JoinError`] where no offset is possible.
pub fn join(trace: &Trace, log: &AccessLog) -> Result<Joined, JoinError> {
    let sides = Sides::new(trace, log)?;
    let (traced, logged) = (trace.invalidations.len(), sides.descriptors.len());
    let mut offsets: Vec<_> = (1 - traced as i64..logged as i64).filter(|&offset| sides.agree(offset)).collect();
    // The longest overlap first: it is the likeliest, and a good first makes the others give up early.
    offsets.sort_by_key(|&offset| Reverse(sides.common(offset).len()));
    let mut best: Option<Joined> = None;
    for offset in offsets {
        let limit = best.as_ref().map_or(f64::INFINITY, Joined::unexplained_rate);
        best = sides.at(offset, limit)?.or(best);
    }
    let mut best = best.ok_or(JoinError::Disagree { logged, traced })?;
    best.accesses.sort_by_key(|access| access.after_operation);
    Ok(best)
}

/// Joins the two at this very offset, whether it is possible or not.
///
/// # Errors
/// [`JoinError::Apart`] where the two have no invalidation in common at this offset.
pub fn join_at(trace: &Trace, log: &AccessLog, offset: i64) -> Result<Joined, JoinError> {
    let mut joined = Sides::new(trace, log)?.at(offset, f64::INFINITY)?.ok_or(JoinError::Apart(offset))?;
    joined.accesses.sort_by_key(|access| access.after_operation);
    Ok(joined)
}

impl Joined {
    /// How likely an access is to be unexplained, by the rule of succession: a short overlap proves little.
    fn unexplained_rate(&self) -> f64 {
        unexplained_rate(self.unexplained, self.accesses.len() as u64 + self.unexplained)
    }
}

fn unexplained_rate(unexplained: u64, inside: u64) -> f64 {
    (unexplained + 1) as f64 / (inside + 2) as f64
}
