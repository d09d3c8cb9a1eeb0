//! Fast & Safe (SOSP'24): what strict protection costs a server that receives at 100 Gb/s, and what windows of
//! neighboring addresses save.
//!
//! "Linux" of the paper is `magazine` without the invalidation hint (Linux 6.0 dropped it), one unmap at a time, under
//! a driver that keeps pages mapped. Published numbers were read from the vector drawings. A page there has 3,906 bytes
//! of payload, and one of ours is a packet of 3,948.

mod ablation;
mod applications;
mod both;
mod caches;
mod calls;
mod linux;
mod windows;

use super::lab::{Bar, Lab, bar};
use super::served::{Numbers, ServedRun};
use super::{Figure, Point};
use portcullis::Protection;

/// The figures, in the order of the paper, and one of our own.
pub(super) const FIGURES: [Figure; 11] = [
    linux::FIGURE_2,
    linux::FIGURE_2_ALL,
    linux::FIGURE_3,
    linux::FIGURE_3_ALL,
    windows::FIGURE_7,
    windows::FIGURE_8,
    calls::FIGURE_9,
    both::FIGURE_10,
    applications::FIGURE_11,
    ablation::FIGURE_12,
    caches::FIGURE,
];

/// What each of them has in common.
const FANDS: Figure =
    Figure { id: "", title: "", source: "Fast & Safe (SOSP'24)", group: Some("fands"), ..Figure::OF_LABORATORY };

const MACHINE: &str = "cascadelake-cx5";
const LINUX: Bar = bar("Linux", "magazine", Protection::Strict);
const WINDOWS: Bar = bar("F&S", "fast-and-safe", Protection::Strict);
const CHUNKS: Bar = bar("portcullis", "portcullis", Protection::Strict);
/// Pages of a receive descriptor, which are unmapped together.
const BATCH: usize = 64;
/// The seeds of runs that differ most from seed to seed.
const SEEDS: u64 = 3;
/// Cores that serve where the server only receives.
const CORES: u32 = 5;

/// A row of the paper's plots.
struct Row {
    name: &'static str,
    flows: u32,
    ring: u32,
    /// Regions of 2 MiB over which addresses are spread: an input. With these, the reuse distance of our runs is the
    /// published one. It is published for three rows. Those between them are between them here, in equal ratios.
    regions: u32,
    /// Gb/s without protection, with which the machine is calibrated.
    unprotected: f64,
    /// Packets that the receiver sends for each page.
    acknowledgements: f64,
    /// What was published of Linux and of F&S, unless the row is kept aside.
    published: Option<Published>,
}

/// The published numbers of a row.
struct Published {
    gbps: f64,
    retransmit_percent: f64,
    iotlb: f64,
    /// PTcache-L1, L2 and L3.
    caches: [f64; 3],
    reuse_distance: Option<f64>,
    windows_gbps: f64,
    windows_iotlb: f64,
    windows_l3: f64,
}

/// By flows, with rings of 256.
const FLOWS: [Row; 4] = [
    Row {
        name: "5 flows",
        flows: 5,
        ring: 256,
        regions: 46,
        unprotected: 97.6,
        acknowledgements: 0.0436,
        published: Some(Published {
            gbps: 77.8,
            retransmit_percent: 0.282,
            iotlb: 1.299,
            caches: [0.049, 0.049, 0.360],
            reuse_distance: Some(22.3),
            windows_gbps: 97.6,
            windows_iotlb: 1.254,
            windows_l3: 0.0186,
        }),
    },
    Row {
        name: "10 flows",
        flows: 10,
        ring: 256,
        regions: 67,
        unprotected: 91.5,
        acknowledgements: 0.0667,
        published: None,
    },
    Row {
        name: "20 flows",
        flows: 20,
        ring: 256,
        regions: 97,
        unprotected: 87.6,
        acknowledgements: 0.1,
        published: None,
    },
    Row {
        name: "40 flows",
        flows: 40,
        ring: 256,
        regions: 140,
        unprotected: 85.3,
        acknowledgements: 0.1195,
        published: Some(Published {
            gbps: 30.9,
            retransmit_percent: 4.173,
            iotlb: 2.195,
            caches: [0.632, 0.625, 0.895],
            reuse_distance: Some(70.7),
            windows_gbps: 84.8,
            windows_iotlb: 1.219,
            windows_l3: 0.0454,
        }),
    },
];

/// By rings, with 5 flows.
const RINGS: [Row; 3] = [
    Row {
        name: "ring of 512",
        flows: 5,
        ring: 512,
        regions: 93,
        unprotected: 97.6,
        acknowledgements: 0.0527,
        published: Some(Published {
            gbps: 69.0,
            retransmit_percent: 0.341,
            iotlb: 1.344,
            caches: [0.053, 0.054, 0.694],
            reuse_distance: None,
            windows_gbps: 94.3,
            windows_iotlb: 1.182,
            windows_l3: 0.0437,
        }),
    },
    Row {
        name: "ring of 1024",
        flows: 5,
        ring: 1024,
        regions: 188,
        unprotected: 97.6,
        acknowledgements: 0.0537,
        published: None,
    },
    Row {
        name: "ring of 2048",
        flows: 5,
        ring: 2048,
        regions: 380,
        unprotected: 97.6,
        acknowledgements: 0.0541,
        published: Some(Published {
            gbps: 66.3,
            retransmit_percent: 0.349,
            iotlb: 1.355,
            caches: [0.055, 0.055, 0.856],
            reuse_distance: Some(186.9),
            windows_gbps: 88.9,
            windows_iotlb: 1.180,
            windows_l3: 0.0533,
        }),
    },
];

/// A run under a bar. Linux has single unmaps, its hint is lost, and its addresses are spread over so many regions of
/// 2 MiB.
fn run_under(lab: &Lab<'_>, bar: Bar, machine: &str, workload: &str, flows: u32, regions: u32) -> ServedRun {
    let is_linux = bar.design == LINUX.design;
    let scatter = if is_linux { format!(",regions={regions}") } else { String::new() };
    ServedRun {
        batch: Some(if is_linux { 1 } else { BATCH }),
        no_hint: is_linux,
        ..lab.run(machine, &format!("{workload}{scatter}"), flows, bar)
    }
}

/// That `portcullis` is as fast as F&S. Where the link is full, both carry the same, apart from where their runs end.
fn is_as_fast(name: &str, chunks: &Numbers, windows: &Numbers) -> Point {
    Point::shape(name, chunks.rate >= 0.999 * windows.rate)
}

impl Row {
    /// A run of the row.
    fn run(&self, lab: &Lab<'_>, bar: Bar, workload: &str) -> ServedRun {
        let run = lab.run(MACHINE, workload, self.flows, bar);
        ServedRun { cores: CORES, ring: Some(self.ring), batch: Some(1), ..run }
    }

    /// Linux, with one of the rules for what an invalidation takes from the IOTLB.
    fn linux(&self, lab: &Lab<'_>, drops: &str, choices: &str) -> ServedRun {
        let run = self.run(lab, LINUX, &format!("iperf:regions={}{choices}", self.regions));
        ServedRun { no_hint: true, set: vec![("psi_drops".to_owned(), drops.to_owned())], ..run }
    }

    /// The same with one of the two buffers of the card, which may not both serve one priority.
    fn with_half_buffer(&self, lab: &Lab<'_>, drops: &str) -> ServedRun {
        let mut run = self.linux(lab, drops, "");
        run.set.push(("receive_buffer_bytes".to_owned(), "130944".to_owned()));
        run
    }

    /// A design that unmaps the pages of a descriptor together.
    fn batched(&self, lab: &Lab<'_>, bar: Bar) -> Numbers {
        lab.of(&ServedRun { batch: Some(BATCH), ..self.run(lab, bar, "iperf") })
    }

    fn unprotected(&self, lab: &Lab<'_>) -> Numbers {
        lab.of(&self.run(lab, super::lab::NONE, "iperf"))
    }
}
