//! Work that is not timed here, in a given amount, so that an external tool can count its cost.

use super::BenchError;
use super::case::{bursts_worker, fill, halves_worker, typed_worker};
use super::driven::Driven;
use super::host::Native;
use super::iommu::{Empty, Queued};
use super::meter::Meter;
use super::work::{Batches, Singles, Worker};
use super::workload::Workload;
use portcullis::mapper::{Design, Visitor};
use portcullis::{DomainConfig, Iommu, Open, Platform, Protection};
use portcullis_designs::Choice;

/// Maps and unmaps `pairs` times like `workload`, on the calling thread.
///
/// The work before and after the pairs does not depend on their number, so two runs differ only in the work of the
/// pairs.
///
/// # Errors
/// Returns a [`BenchError`] if the work fails.
///
/// # Panics
/// Panics if the workload needs several threads or rings.
pub fn repeat(choice: Choice, protection: Protection, workload: Workload, pairs: u64) -> Result<(), BenchError> {
    let mut config = DomainConfig::new(protection);
    config.options = choice.options;
    match workload {
        Workload::Page1Queued => {
            let platform = Native::coherent();
            let iommu = Queued::new(&platform);
            choice.design.visit(Repeat { config, workload, pairs, platform, iommu: &iommu })
        }
        Workload::Page1Driven => {
            let platform = Native::coherent();
            let iommu = Driven::new(&platform)?;
            choice.design.visit(Repeat { config, workload, pairs, platform, iommu: &iommu })
        }
        Workload::Page1NonCoherent | Workload::Page1Batch64NonCoherent => {
            let platform = Native::not_coherent().ok_or(BenchError::NoFlush)?;
            choice.design.visit(Repeat { config, workload, pairs, platform, iommu: &Empty::new(false) })
        }
        _ => {
            let platform = Native::coherent();
            choice.design.visit(Repeat { config, workload, pairs, platform, iommu: &Empty::new(true) })
        }
    }
}

struct Repeat<'r, P, I> {
    config: DomainConfig<'r>,
    workload: Workload,
    pairs: u64,
    platform: P,
    iommu: &'r I,
}

impl<'r, P: Platform, I: Iommu> Visitor<P, &'r I> for Repeat<'r, P, I> {
    type Output = Result<(), BenchError>;

    fn visit<D: Design<P, &'r I>>(self) -> Self::Output {
        let domain = D::open_with(self.iommu, self.platform, &self.config)?;
        let mut worker: Box<dyn Worker + '_> = match self.workload {
            Workload::Page1
            | Workload::Page1Queued
            | Workload::Page1Driven
            | Workload::Page1NonCoherent
            | Workload::Descriptor64 => Box::new(Singles::new(&domain, fill(&domain, self.workload, 0)?)),
            Workload::Page1Batch64 | Workload::Page1Batch64NonCoherent => {
                Box::new(Batches::new(&domain, fill(&domain, self.workload, 0)?))
            }
            Workload::Page1Typed => Box::new(typed_worker(&domain, self.workload, 0)?),
            Workload::Page1Batch64Typed | Workload::Ring256 => Box::new(bursts_worker(&domain, self.workload, 0)?),
            Workload::Ring256Halves => Box::new(halves_worker(&domain, self.workload, 0)?),
            other => panic!("{} is not of one ring on one thread", other.id()),
        };
        worker.run(self.pairs, &mut Meter::new())?;
        worker.drain()
    }
}
