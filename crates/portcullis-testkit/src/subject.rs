//! A design, as the checker takes it.

use crate::checker::{Bench, Machine, Operation, Tally, Violation, check, on_bench};
use portcullis::Protection;
use portcullis::iommu::fake::FakeIommu;
use portcullis::mapper::{Design, Info, Options};
use portcullis::platform::fake::FakeHost;
use portcullis_designs::{DesignId, for_each_design};

/// A design over the fakes, of any type: from this library or from another crate.
#[derive(Clone, Copy)]
pub struct Subject {
    info: &'static Info,
    check: fn(&Bench<'_>, &[Operation]) -> Result<Tally, Violation>,
}

impl Subject {
    /// The design `D`.
    pub const fn of<D: for<'h> Design<&'h FakeHost, &'h FakeIommu<'h>>>() -> Self {
        Self { info: &D::INFO, check: |bench, script| check::<D, _, _>(bench, bench.host, bench.hardware, script) }
    }

    /// Every design of the library, in the order of [`DesignId::ALL`].
    pub fn listed() -> Vec<Self> {
        DesignId::ALL.iter().map(|design| Self::from(*design)).collect()
    }

    /// The design's own description.
    pub const fn info(self) -> &'static Info {
        self.info
    }

    /// Runs `script` on a domain of the design, over fresh fakes.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check(
        self,
        options: Options,
        machine: &Machine,
        protection: Protection,
        script: &[Operation],
    ) -> Result<Tally, Violation> {
        on_bench(machine, protection, |bench| (self.check)(&Bench { options, ..*bench }, script))
    }
}

impl From<DesignId> for Subject {
    fn from(design: DesignId) -> Self {
        macro_rules! by_type {
            ($($name:ident),*) => { match design { $(DesignId::$name => Self::of::<portcullis_designs::$name>(),)* } };
        }
        for_each_design!(by_type)
    }
}
