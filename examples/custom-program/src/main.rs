//! The program `portcullis` with one more design, which every command takes: the tree of `stock`, with a flush queue
//! for each CPU.

use core::mem::MaybeUninit;
use portcullis::invalidation::Deferral;
use portcullis::iova::TreeAllocator;
use portcullis::mapper::{AssembledMapper, Design, DesignInfo, DomainSetup, Info};
use portcullis::{Iommu, NewDomainError, Platform};
use portcullis_designs::{Magazine, Stock};

#[derive(Debug)]
struct TreePerCpu;

impl DesignInfo for TreePerCpu {
    const INFO: Info = Info {
        id: "tree-per-cpu",
        source: "examples/custom-program",
        invalidation: Magazine::INFO.invalidation,
        breaches: Magazine::INFO.breaches,
        options: &[],
        ..Stock::INFO
    };
}

// SAFETY: a mapper assembled from sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for TreePerCpu {
    type Mapper = AssembledMapper<TreeAllocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let tree = TreeAllocator::new(&setup.platform, setup.width, setup.reserved)?;
        Ok(to.write(AssembledMapper::new(tree, Deferral::PER_CPU, setup)?))
    }
}

fn main() -> std::process::ExitCode {
    portcullis_cli::run(&portcullis_cli::Registry::default().with::<TreePerCpu>())
}
