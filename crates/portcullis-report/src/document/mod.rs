//! The parts of a JSON document that a page shows: keys of `compare`, `attack` and `figures`.

mod figures;

pub(super) use figures::{Figure, Figures, Grid, Paper, Point, Tally, Tolerance};

use portcullis_sim::attack::PROBES_CACHED_MIN;
use portcullis_sim::compare::LINUX;
use serde::Deserialize;
use serde_json::{Map, Value};

/// What every document contains in addition to its results.
#[derive(Deserialize)]
pub(super) struct Setting {
    pub(super) version: Option<String>,
    #[serde(default)]
    pub(super) command: Vec<String>,
    #[serde(default)]
    pub(super) input: Vec<Input>,
    pub(super) assumed: Option<Assumed>,
    #[serde(default)]
    pub(super) set: Vec<String>,
    #[serde(default)]
    pub(super) sweep: Vec<String>,
    pub(super) clock: Option<String>,
    pub(super) no_hint: Option<bool>,
    pub(super) sub_page: Option<String>,
    pub(super) seed: Option<u64>,
    #[serde(default)]
    pub(super) violations: Vec<String>,
}

/// A trace that was replayed.
#[derive(Deserialize)]
pub(super) struct Input {
    pub(super) file: String,
    pub(super) events: String,
    pub(super) maps: u64,
    pub(super) pages: u64,
    pub(super) cpus: u64,
    pub(super) unmatched_unmaps: u64,
    pub(super) unmapped_never: u64,
    pub(super) partial_unmaps: u64,
    pub(super) failed_maps: u64,
    pub(super) unmaps_of_nothing: u64,
    pub(super) refused_accesses: u64,
    pub(super) lost_events: u64,
    pub(super) out_of_order: u64,
    #[serde(default)]
    pub(super) devices: Vec<TracedDevice>,
}

/// A device of a trace. The mappings that no event gives to a device have one without a name.
#[derive(Deserialize)]
pub(super) struct TracedDevice {
    pub(super) device: String,
    pub(super) maps: u64,
}

impl Input {
    fn has_several_devices(&self) -> bool {
        self.devices.iter().filter(|traced| !traced.device.is_empty()).count() > 1
    }
}

/// The machine, with all its values.
#[derive(Deserialize)]
pub(super) struct Assumed {
    pub(super) id: String,
    pub(super) description: String,
    pub(super) source: String,
    #[serde(flatten)]
    pub(super) values: Map<String, Value>,
}

/// How mappings are protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Protection {
    None,
    Strict,
    Deferred,
}

impl Protection {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Strict => "strict",
            Self::Deferred => "deferred",
        }
    }
}

/// A design with its parameters.
#[derive(Clone, PartialEq, Deserialize)]
pub(super) struct Design {
    design: String,
    #[serde(default)]
    options: Map<String, Value>,
    /// Whether the design needs hardware that does not exist.
    #[serde(default)]
    pub(super) no_such_hardware: bool,
    /// Whether its cost is not known.
    #[serde(default)]
    pub(super) unpriced: bool,
}

impl Design {
    /// The label, followed by the protection if there is one.
    pub(super) fn label_with(&self, protection: Protection) -> String {
        match protection {
            Protection::None => self.label(),
            _ => format!("{} {}", self.label(), protection.name()),
        }
    }

    /// The form of the command line: `eiovar:k=64`.
    pub(super) fn label(&self) -> String {
        self.options.iter().fold(self.design.clone(), |label, (key, value)| match value {
            Value::Bool(_) => format!("{label}:{key}"),
            Value::String(word) => format!("{label}:{key}={word}"),
            other => format!("{label}:{key}={other}"),
        })
    }
}

/// A document of `compare`.
#[derive(Deserialize)]
pub(super) struct Comparison {
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) results: Vec<Run>,
    pub(super) equal_batch: Vec<Run>,
    /// What stands before the tables, for each piece of work on which Linux as it is was run.
    #[serde(default)]
    pub(super) answers: Vec<Option<Answer>>,
    /// The captures of several devices.
    #[serde(default)]
    pub(super) hosts: Vec<Host>,
    pub(super) best: Vec<Best>,
    pub(super) advice: Vec<String>,
    /// The totals of several pieces of work.
    #[serde(default)]
    pub(super) all: Vec<Total>,
}

/// What strict protection costs a host as it runs today.
#[derive(Deserialize)]
pub(super) struct Answer {
    pub(super) trace: String,
    pub(super) device: Option<String>,
    pub(super) traffic: Traffic,
    /// Today, and with strict protection.
    pub(super) recorded_cpu_percent: Option<[f64; 2]>,
    pub(super) rate_vs_today_range: [f64; 2],
    pub(super) limit: [String; 2],
    pub(super) is_free: bool,
    pub(super) lines: Vec<Line>,
}

/// What the devices of one capture take together.
#[derive(Deserialize)]
pub(super) struct Host {
    /// Index of the trace.
    pub(super) input: usize,
    /// Today, and with strict protection.
    pub(super) recorded_cpu_percent: [f64; 2],
}

/// A line of an answer.
#[derive(Deserialize)]
pub(super) struct Line {
    pub(super) about: String,
    pub(super) text: String,
}

/// The best of each protection.
#[derive(Deserialize)]
pub(super) struct Best {
    pub(super) strict: Option<Chosen>,
    pub(super) deferred: Option<Chosen>,
}

/// A design, its parameters and its batch.
#[derive(Deserialize)]
pub(super) struct Chosen {
    #[serde(flatten)]
    pub(super) design: Design,
    pub(super) batch: u64,
}

/// A design over several pieces of work.
#[derive(Deserialize)]
pub(super) struct Total {
    #[serde(flatten)]
    pub(super) design: Design,
    pub(super) protection: Protection,
    pub(super) batch: u64,
    pub(super) set: Map<String, Value>,
    pub(super) cycles_per_page: f64,
    pub(super) stale_window_us_max: Option<f64>,
    pub(super) stale_accesses: f64,
    #[serde(flatten)]
    pub(super) share: Share,
    pub(super) worst: Worst,
}

/// The work on which a design does worst.
#[derive(Deserialize)]
pub(super) struct Worst {
    pub(super) trace: String,
    #[serde(default)]
    pub(super) device: Option<String>,
    #[serde(flatten)]
    pub(super) share: Share,
}

/// A share of the rate without protection. It is a range if the fill of buffers is not known.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct Share {
    pub(super) estimate_vs_none: Option<f64>,
    pub(super) estimate_vs_none_min: Option<f64>,
    /// Over all that is not known.
    pub(super) estimate_vs_none_range: Option<[f64; 2]>,
}

/// The work and the hardware of a run.
#[derive(Clone, PartialEq, Deserialize)]
pub(super) struct Subject {
    /// The work.
    pub(super) trace: String,
    /// The device whose work it is, if that is known.
    #[serde(default)]
    device: Option<String>,
    /// The hardware parameters that were changed.
    #[serde(default)]
    set: Map<String, Value>,
    /// The prefetcher, which no real hardware has, if the machine has one.
    prefetcher: Option<String>,
}

impl Subject {
    /// The title: the work, which device's if there are several and, in a sweep, the changed values.
    pub(super) fn title(&self, setting: &Setting) -> String {
        let title = match self.part(setting) {
            Some(traced) => format!("{}, {}", self.trace, traced.device),
            None if self.input(setting).is_some_and(Input::has_several_devices) => {
                format!("{}, all devices together", self.trace)
            }
            None => self.trace.clone(),
        };
        if setting.sweep.is_empty() { title } else { with_settings(&title, &self.set) }
    }

    /// The device, if it is one of several.
    pub(super) fn part<'s>(&self, setting: &'s Setting) -> Option<&'s TracedDevice> {
        let input = self.input(setting).filter(|input| input.has_several_devices())?;
        input.devices.iter().find(|traced| Some(&traced.device) == self.device.as_ref())
    }

    /// The trace, if the work is one.
    pub(super) fn input<'s>(&self, setting: &'s Setting) -> Option<&'s Input> {
        setting.input.iter().find(|input| input.file == self.trace)
    }

    /// The prefetcher to mention, because no real hardware has one.
    pub(super) fn hypothetical(&self) -> Option<&str> {
        self.prefetcher.as_deref()
    }
}

/// A title, followed by the changes to the hardware.
pub(super) fn with_settings(title: &str, set: &Map<String, Value>) -> String {
    set.iter().fold(title.to_owned(), |title, (key, value)| match value {
        Value::String(word) => format!("{title}, {key}={word}"),
        other => format!("{title}, {key}={other}"),
    })
}

/// The kind of device for which the work is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Traffic {
    Network,
    Disk,
}

/// The same work at the speed at which it was recorded.
#[derive(Deserialize)]
pub(super) struct Recorded {
    pub(super) cpu_percent: f64,
}

/// A run. A failed run has an error and no numbers.
#[derive(Deserialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) subject: Subject,
    #[serde(flatten)]
    pub(super) design: Design,
    pub(super) protection: Protection,
    pub(super) batch: u64,
    pub(super) error: Option<String>,
    pub(super) span_us: Option<f64>,
    pub(super) cycles_per_page: Option<f64>,
    pub(super) invalidations_per_page: Option<f64>,
    pub(super) iotlb_misses_per_page: Option<f64>,
    pub(super) ptcache_l1_misses_per_page: Option<f64>,
    pub(super) ptcache_l2_misses_per_page: Option<f64>,
    pub(super) ptcache_l3_misses_per_page: Option<f64>,
    pub(super) memory_reads_per_page: Option<f64>,
    pub(super) table_pages_max: Option<f64>,
    /// `None` also if the device always reaches memory.
    pub(super) stale_window_us_max: Option<f64>,
    /// `None` if there is no bound.
    pub(super) bound_us: Option<f64>,
    /// What timers and the hardware may add to the bound.
    pub(super) grace_us: Option<f64>,
    pub(super) stale_window_us_over_time: Option<Vec<f64>>,
    pub(super) stale_window_piece_us: Option<f64>,
    pub(super) stale_accesses: Option<f64>,
    pub(super) traffic: Option<Traffic>,
    pub(super) estimate_gbps: Option<f64>,
    /// `None` if the fill of buffers is known.
    pub(super) estimate_gbps_min: Option<f64>,
    pub(super) estimate_operations_per_second: Option<f64>,
    pub(super) limit: Option<String>,
    #[serde(flatten)]
    pub(super) share: Share,
    pub(super) recorded: Option<Recorded>,
}

impl Run {
    /// Whether it is Linux as it is.
    pub(super) fn is_linux(&self) -> bool {
        self.batch == 1 && self.design.label() == LINUX
    }

    /// Whether a longer run would have shown a longer window.
    pub(super) fn unbounded(&self) -> bool {
        self.stale_window_us_max.is_some_and(|window_us| window_us > 0.0) && self.bound_us.is_none()
    }
}

/// A document of `attack`.
#[derive(Deserialize)]
pub(super) struct Attack {
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) results: Vec<Finding>,
}

/// What a malicious device found under one design, for one rule.
#[derive(Deserialize)]
pub(super) struct Finding {
    #[serde(flatten)]
    pub(super) subject: Subject,
    #[serde(flatten)]
    pub(super) design: Design,
    pub(super) protection: Protection,
    pub(super) rule: Option<String>,
    /// Whether the design declares that it breaks the rule. `None` if no rule was broken.
    pub(super) declared: Option<bool>,
    pub(super) stale_accesses: f64,
    pub(super) stale_window_us_max: Option<f64>,
    pub(super) stale_bytes_us: Option<f64>,
    /// `None` if there is no bound.
    pub(super) bound_us: Option<f64>,
    /// What timers and the hardware may add to the bound.
    pub(super) grace_us: Option<f64>,
    pub(super) probes: f64,
    /// `None` if nothing is ever unmapped.
    pub(super) probes_cached: Option<f64>,
    /// Why the run ended early, if it did.
    pub(super) error: Option<String>,
}

impl Finding {
    /// Whether something got through that the design does not declare.
    pub(super) fn undeclared(&self) -> bool {
        self.stale_accesses > 0.0 && self.declared != Some(true)
    }

    /// Whether nothing got through, but the run would not have shown it.
    pub(super) fn shows_nothing(&self) -> bool {
        let too_few = self.probes_cached.is_some_and(|cached| cached < PROBES_CACHED_MIN as f64);
        self.stale_accesses == 0.0 && (self.error.is_some() || too_few)
    }

    /// On which side of its design's bound a finding lies. Given if there are findings on both sides, or if this one
    /// is beyond the bound, because their names would otherwise be equal.
    pub(super) fn side_of_bound(&self, all: &[Self]) -> Option<&'static str> {
        let late = |finding: &Self| {
            let bounded = finding.protection == Protection::Deferred && finding.bound_us.is_some();
            bounded && finding.undeclared() && finding.rule == self.rule
        };
        let same = |other: &&Self| other.design == self.design && other.protection == self.protection;
        match self.declared {
            Some(false) if late(self) => Some("beyond its bound"),
            Some(true) if all.iter().filter(same).any(late) => Some("within its bound"),
            _ => None,
        }
    }

    /// Whether the device would have kept reaching buffers for as long as the attack lasted.
    pub(super) fn unbounded(&self) -> bool {
        self.stale_window_us_max.is_some() && self.declared == Some(true) && self.bound_us.is_none()
    }
}
