//! Work that is not timed here: so much of it that something outside can count what it takes.

use super::BenchError;
use super::case::{fill, typed_worker};
use super::host::Native;
use super::iommu::Empty;
use super::meter::Meter;
use super::work::{Batches, Singles, Worker};
use super::workload::Workload;
use portcullis::design::Design;
use portcullis::designs::{Choice, Visitor};
use portcullis::{Domain, DomainConfig, Protection};

/// Maps and unmaps `pairs` times as `workload` does, on the calling thread.
///
/// What comes before and after the pairs does not depend on how many there are: two runs differ in the work of the pairs alone.
///
/// # Errors
/// A [`BenchError`].
///
/// # Panics
/// If the workload is one of several threads or rings, or of other hardware.
pub fn repeat(choice: Choice, protection: Protection, workload: Workload, pairs: u64) -> Result<(), BenchError> {
    let mut config = DomainConfig::new(protection);
    config.options = choice.options;
    let iommu = Empty::new(true);
    choice.design.visit(Repeat { config, workload, pairs, iommu: &iommu })
}

struct Repeat<'r> {
    config: DomainConfig<'r>,
    workload: Workload,
    pairs: u64,
    iommu: &'r Empty,
}

impl<'r> Visitor<Native<true>, &'r Empty> for Repeat<'r> {
    type Output = Result<(), BenchError>;

    fn visit<D: Design<Native<true>, &'r Empty>>(self) -> Self::Output {
        let domain = Domain::<D, _, _>::with_config(self.iommu, Native::coherent(), &self.config)?;
        let mut worker: Box<dyn Worker + '_> = match self.workload {
            Workload::Page1 | Workload::Descriptor64 => {
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
