//! Where a figure of the laboratory asks for its runs.
//!
//! A figure is one function. It is called twice: first with no results, to learn which runs it asks for, and then with
//! the results of these. So a plan cannot differ from what the figure needs.

use super::served::{Length, Numbers, ServedRun};
use portcullis::Protection;

/// The seed of all runs.
const SEED: u64 = 1;
/// The machine of the ConnectX-3, which is that of most figures.
pub(super) const CX3: &str = "r210-cx3";
/// The machine of the BCM57810.
pub(super) const BCM: &str = "r210-bcm57810";
pub(super) const STREAM: &str = "netperf-stream";
pub(super) const RR: &str = "netperf-rr";
pub(super) const APACHE_1M: &str = "apache-1m";
pub(super) const APACHE_1K: &str = "apache-1k";
pub(super) const MEMCACHED: &str = "memcached";

/// The five applications of both papers.
pub(super) const APPLICATIONS: [&str; 5] = [STREAM, RR, APACHE_1M, APACHE_1K, MEMCACHED];

/// A design and a protection, under the name that the papers give them.
#[derive(Clone, Copy)]
pub(super) struct Bar {
    pub(super) name: &'static str,
    pub(super) design: &'static str,
    pub(super) protection: Protection,
}

pub(super) const fn bar(name: &'static str, design: &'static str, protection: Protection) -> Bar {
    Bar { name, design, protection }
}

pub(super) const STRICT: Bar = bar("strict", "stock", Protection::Strict);
pub(super) const STRICT_PLUS: Bar = bar("strict+", "eiovar", Protection::Strict);
pub(super) const DEFER: Bar = bar("defer", "stock", Protection::Deferred);
pub(super) const DEFER_PLUS: Bar = bar("defer+", "eiovar", Protection::Deferred);
pub(super) const NONE: Bar = bar("none", "none", Protection::None);
/// The design of rIOMMU.
pub(super) const RINGS: &str = "riommu";
/// In the order of the papers.
pub(super) const BARS: [Bar; 4] = [STRICT, STRICT_PLUS, DEFER, DEFER_PLUS];

/// The runs that a figure asks for, and their results.
pub(super) struct Lab<'r> {
    pub(super) length: Length,
    numbers: &'r dyn Fn(&ServedRun) -> Numbers,
}

impl<'r> Lab<'r> {
    pub(super) fn new(length: Length, numbers: &'r dyn Fn(&ServedRun) -> Numbers) -> Self {
        Self { length, numbers }
    }

    /// The same, whose runs are short.
    pub(super) fn short(&self) -> Self {
        Self { length: Length::Short, ..*self }
    }

    /// The numbers of a run.
    pub(super) fn of(&self, run: &ServedRun) -> Numbers {
        (self.numbers)(run)
    }

    /// A run on one core. Without protection, and in rings, no order of addresses exists that earlier runs could
    /// disturb, so there are none.
    pub(super) fn run(&self, machine: &str, workload: &str, flows: u32, bar: Bar) -> ServedRun {
        let has_order = ![NONE.design, RINGS].contains(&bar.design);
        ServedRun {
            machine: machine.to_owned(),
            workload: workload.to_owned(),
            design: bar.design.to_owned(),
            protection: bar.protection.name().to_owned(),
            coherent: None,
            cores: 1,
            flows,
            ring: None,
            batch: None,
            seed: SEED,
            earlier_runs: (!has_order).then_some(0),
            length: self.length,
            no_hint: false,
            linux_wait: false,
            halves: false,
            merge_min: None,
            zero_costs: false,
            set: Vec::new(),
        }
    }

    /// A stream on the machine of the ConnectX-3.
    pub(super) fn stream(&self, bar: Bar) -> ServedRun {
        self.run(CX3, STREAM, 1, bar)
    }
}
