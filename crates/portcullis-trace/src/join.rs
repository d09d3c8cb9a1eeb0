//! Finds the mapping behind each logged access.
//!
//! The log has no times, but both sides show the same invalidation descriptors in the same order. The log starts with
//! the machine and the trace starts later, and either may stop first. An *offset* says which descriptor of the log is
//! the first one of the trace. Accesses between two descriptors of the log happened between the same two descriptors
//! of the trace. An offset is possible if all descriptors that both sides have are equal. Of the possible offsets, the
//! right one leaves the fewest accesses unexplained. An access is explained if its page is mapped at that time, to the
//! physical page that the log shows.

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
    /// The trace has no `intel_iommu:qi_submit` event of an IOTLB invalidation.
    #[error("the trace has no IOTLB invalidation; record intel_iommu:qi_submit too")]
    NoneTraced,
    /// The log has no IOTLB descriptor.
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
    /// The log and the trace do not overlap at this offset.
    #[error("at offset {0} the access log and the trace have no invalidation in common")]
    Apart(i64),
    /// The log has more accesses than can be counted.
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
    /// How many operations of the trace come before the access. After these operations, its mapping is mapped.
    pub after_operation: u32,
    /// What was accessed.
    pub target: Target,
    /// The rights that bound the access: the log does not distinguish reads from writes.
    pub rights: Rights,
}

/// A page that the device accessed and that was mapped before the trace began. It belongs to a descriptor ring, or to
/// a buffer whose unmap is in the trace but whose map is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PersistentPage {
    /// The device that accessed it.
    pub device: SourceId,
    /// Its page number in the device's address space.
    pub iova_pfn: u64,
    /// Its physical address.
    pub phys: PhysAddr,
    /// The union of the rights that the log shows.
    pub rights: Rights,
}

/// A log, expressed in terms of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The index of the log's IOTLB descriptor that is the first of the trace. Negative if the log starts later than
    /// the trace.
    pub offset: i64,
    /// How many descriptors both sides have. If this is only a small part, the two may come from different runs.
    pub invalidations: u64,
    /// The accesses, sorted by [`LoggedAccess::after_operation`]. Equal ones are in the order of the log.
    pub accesses: Vec<LoggedAccess>,
    /// The pages mapped before the trace, in the order of their first access.
    pub persistent: Vec<PersistentPage>,
    /// Accesses during the trace to pages that were not mapped then.
    pub unexplained: u64,
    /// Accesses before the trace's first invalidation interval or after its last.
    pub outside: u64,
}

/// Joins the two at the offset that explains most accesses.
///
/// # Errors
/// Returns a [`JoinError`] if no offset is possible.
pub fn join(trace: &Trace, log: &AccessLog) -> Result<Joined, JoinError> {
    let sides = Sides::new(trace, log)?;
    let (traced, logged) = (trace.invalidations.len(), sides.descriptors.len());
    let mut offsets: Vec<_> = (1 - traced as i64..logged as i64).filter(|&offset| sides.agree(offset)).collect();
    // The longest overlap is tried first: it is the most likely, and a good first result lets the others give up
    // early.
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

/// Joins the two at this offset, even if their descriptors differ.
///
/// # Errors
/// Returns [`JoinError::Apart`] if the two have no invalidation in common at this offset.
pub fn join_at(trace: &Trace, log: &AccessLog, offset: i64) -> Result<Joined, JoinError> {
    let mut joined = Sides::new(trace, log)?.at(offset, f64::INFINITY)?.ok_or(JoinError::Apart(offset))?;
    joined.accesses.sort_by_key(|access| access.after_operation);
    Ok(joined)
}

impl Joined {
    /// The probability that an access is unexplained, by the rule of succession: a short overlap is weak evidence.
    fn unexplained_rate(&self) -> f64 {
        unexplained_rate(self.unexplained, self.accesses.len() as u64 + self.unexplained)
    }
}

fn unexplained_rate(unexplained: u64, inside: u64) -> f64 {
    (unexplained + 1) as f64 / (inside + 2) as f64
}
