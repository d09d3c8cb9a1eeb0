//! Work that is not timed here: so much of it that something outside can count what it takes.

use super::BenchError;
use super::case::{fill, typed_worker};
use super::host::Native;
use super::iommu::{Empty, Queued};
use super::meter::Meter;
use super::work::{Batches, Singles, Worker};
use super::workload::Workload;
use portcullis::design::Design;
use portcullis::designs::{Choice, Visitor};
use portcullis::{Domain, DomainConfig, Iommu, Protection};

/// Maps and unmaps `pairs` times as `workload` does, on the calling thread.
///
/// What comes before and after the pairs does not depend on how many there are: two runs differ in the work of the pairs alone.
///
/// # Errors
/// A [`BenchError`].
///
/// # Panics
/// If the workload is one of several threads or rings, or of hardware that does not snoop.
pub fn repeat(choice: Choice, protection: Protection, workload: Workload, pairs: u64) -> Result<(), BenchError> {
    let mut config = DomainConfig::new(protection);
    config.options = choice.options;
    match workload {
        Workload::Page1Queued => {
            let iommu = Queued::new(&Native::coherent());
            choice.design.visit(Repeat { config, workload, pairs, iommu: &iommu })
        }
        _ => choice.design.visit(Repeat { config, workload, pairs, iommu: &Empty::new(true) }),
    }
}

struct Repeat<'r, I> {
    config: DomainConfig<'r>,
    workload: Workload,
    pairs: u64,
    iommu: &'r I,
}

impl<'r, I: Iommu> Visitor<Native<true>, &'r I> for Repeat<'r, I> {
    type Output = Result<(), BenchError>;

    fn visit<D: Design<Native<true>, &'r I>>(self) -> Self::Output {
        let domain = Domain::<D, _, _>::with_config(self.iommu, Native::coherent(), &self.config)?;
        let mut worker: Box<dyn Worker + '_> = match self.workload {
            Workload::Page1 | Workload::Page1Queued | Workload::Descriptor64 => {
                Box::new(Singles::new(&domain, fill(&domain, self.workload, 0)?))
            }
            Workload::Page1Batch64 => Box::new(Batches::new(&domain, fill(&domain, self.workload, 0)?)),
            Workload::Page1Typed | Workload::Page1Batch64Typed => Box::new(typed_worker(&domain, self.workload, 0)?),
            other => panic!("{} is not of one ring on one thread", other.id()),
        };
        worker.run(self.pairs, &mut Meter::new())?;
        worker.drain()
    }
}
