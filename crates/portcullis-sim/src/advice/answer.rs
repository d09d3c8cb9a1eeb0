//! The answer in five lines: what strict protection costs a host as it runs today, what limits it, what is at risk
//! until then, and what would lower the cost. It stands before the tables.

use super::linux;
use super::ranking::{Candidate, Effort, Ranking, TIE, is_free};
use super::sensitivity::Sensitivity;
use super::text;
use crate::compare::{CompareRow, EQUAL_BATCHES, Item, LINUX};
use crate::number::{count, gbps, number, percent, thousands};
use crate::outcome::RunOutcome;
use crate::rates::Limit;
use crate::run::{Replay, Work};
use crate::share;
use crate::traffic::Traffic;
use portcullis::{Access, Protection};
use portcullis_trace::{OperationKind, Trace, TraceMapping};
use serde::{Serialize, Serializer};

/// What a host runs today, from which it would go to strict protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Today {
    /// Linux with deferred protection, its default: lazy.
    #[default]
    Lazy,
    /// No protection.
    Unprotected,
}

impl Today {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lazy => "lazy",
            Self::Unprotected => "none",
        }
    }

    /// Parses `lazy` or `none`.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Lazy, Self::Unprotected].into_iter().find(|today| today.name() == text)
    }
}

impl Serialize for Today {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The answer for one piece of work. The field names are JSON keys.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The work.
    pub trace: String,
    /// The device whose work it is; `null` if that is not known, or if it is of several.
    pub device: Option<String>,
    /// The kind of device.
    pub traffic: Traffic,
    /// What the host runs today.
    pub today: Today,
    /// CPU time of protection at the recorded load, in percent of one core: today, and with strict protection. `null`
    /// if nothing was recorded.
    pub recorded_cpu_percent: Option<[f64; 2]>,
    /// CPU time of protection at full speed, likewise.
    pub full_speed_cpu_percent: [f64; 2],
    /// The rate at full speed with strict protection, as a share of today's: the least and the greatest, over all that
    /// is not known.
    pub rate_vs_today_range: [f64; 2],
    /// What limits the rate today, and with strict protection.
    pub limit: [Limit; 2],
    /// Whether strict protection costs next to nothing of the rate.
    pub is_free: bool,
    /// For how long a buffer was seen within the device's reach after its unmap, as the host runs today; `null`:
    /// without end.
    pub stale_window_us_max: Option<f64>,
    /// How many times its length a buffer carries before its unmap, on average, if the driver uses pages again while
    /// they stay mapped; `null` if it does not, as far as is known.
    pub uses_per_map: Option<f64>,
    /// The pages that such a driver had mapped at once, at least. They stay within the device's reach under strict
    /// protection too.
    pub reachable_pages_min: Option<u64>,
    /// The five lines: the cost, the limit, the risk of today, what to do, and what is assumed.
    pub lines: Vec<Line>,
}

/// What the devices of one capture take together.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// Index of the capture among the inputs.
    pub input: usize,
    /// CPU time of protection at the recorded load, in percent of one core: today, and with strict protection. It is
    /// that of all devices together if they ran so, and else the sum over those that were run.
    pub recorded_cpu_percent: [f64; 2],
}

/// The captures whose devices were run by themselves, each with the sum over the answers. Each answer comes with the
/// index of its capture.
pub fn hosts<'a>(answers: impl Iterator<Item = (usize, &'a Answer)>) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for (input, answer) in answers {
        let Some([today, strict]) = answer.recorded_cpu_percent else { continue };
        match hosts.iter_mut().find(|host| host.input == input) {
            Some(Host { recorded_cpu_percent: sum, .. }) => *sum = [sum[0] + today, sum[1] + strict],
            None => hosts.push(Host { input, recorded_cpu_percent: [today, strict] }),
        }
    }
    hosts
}

/// A line of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Line {
    /// What it is about.
    pub about: &'static str,
    /// What it says.
    pub text: String,
}

impl Answer {
    /// The answer from the runs of `item`. `None` if Linux as it is was not run, today's or strict.
    pub(super) fn of(
        rows: &[CompareRow],
        item: &Item,
        today: Today,
        sensitivity: Option<&Sensitivity>,
    ) -> Option<Self> {
        if rows.iter().any(|row| row.prefetcher.is_some()) {
            return None;
        }
        let strict = linux(rows, Protection::Strict)?;
        let now = match today {
            Today::Lazy => linux(rows, Protection::Deferred)?,
            Today::Unprotected => {
                rows.iter().filter(|row| row.protection == Protection::None).find_map(Candidate::of)?
            }
        };
        let both = [now.outcome, strict.outcome];
        let [now_range, strict_range] = both.map(|outcome| outcome.estimate_vs_none_range);
        let rate_vs_today_range = share::range([0, 1].map(|end| strict_range[end] / now_range[end].max(f64::EPSILON)));
        let recorded = both.map(|outcome| Some(outcome.recorded?.cpu_percent));
        let change = Change {
            today,
            strict,
            now,
            recorded: recorded[0].zip(recorded[1]).map(|(now, strict)| [now, strict]),
            full_speed: both.map(|outcome| outcome.estimate_cpu_percent),
            rate_vs_today: rate_vs_today_range,
        };
        let recycled = Recycled::of(&item.work, strict.outcome.traffic);
        let lines = [
            ("cost", change.cost()),
            ("limit", change.limit()),
            ("risk", change.risk(recycled)),
            ("do", change.remedy(rows, item)),
            ("assumed", assumed(item, rows, recycled, sensitivity)),
        ];
        Some(Self {
            trace: item.name.clone(),
            device: item.device.as_ref().map(|device| device.name.clone()),
            traffic: strict.outcome.traffic,
            today,
            recorded_cpu_percent: change.recorded,
            full_speed_cpu_percent: change.full_speed,
            rate_vs_today_range,
            limit: both.map(|outcome| outcome.limit),
            is_free: change.is_free(),
            stale_window_us_max: now.outcome.stale_window_us_max,
            uses_per_map: recycled.and_then(|recycled| recycled.uses),
            reachable_pages_min: recycled.and_then(|recycled| recycled.pages),
            lines: lines.into_iter().map(|(about, text)| Line { about, text }).collect(),
        })
    }
}

/// The step from today's protection to Linux's strict one.
struct Change<'r> {
    today: Today,
    now: Candidate<'r>,
    strict: Candidate<'r>,
    recorded: Option<[f64; 2]>,
    full_speed: [f64; 2],
    rate_vs_today: [f64; 2],
}

impl Change<'_> {
    /// Whether the rate falls by no more than a tie, whatever is not known.
    fn is_free(&self) -> bool {
        is_free(self.rate_vs_today[0])
    }

    /// What it costs. What is known of the load that was recorded comes first.
    fn cost(&self) -> String {
        let from = match self.today {
            Today::Lazy => "Going from lazy to strict",
            Today::Unprotected => "Going from no protection to strict",
        };
        let cores = |[now, strict]: [f64; 2]| {
            let more = number((strict - now).max(0.0));
            format!("{more} % of one core ({} % today, {} % with strict)", number(now), number(strict))
        };
        let full = if self.is_free() {
            format!("next to nothing of today's rate at full speed, where it takes {}", cores(self.full_speed))
        } else {
            let both = [self.now.outcome, self.strict.outcome];
            let rates = match both.iter().any(|outcome| outcome.estimate_gbps_min.is_some()) {
                // Of buffers that may be nearly empty the share is known, and not the rate.
                true => String::new(),
                false => format!(" ({} today, {} with strict)", rate(both[0]), rate(both[1])),
            };
            format!("{} of today's rate at full speed{rates}", lost(self.rate_vs_today))
        };
        match self.recorded {
            Some(recorded) => format!("{from} costs {} at the recorded load, and {full}.", cores(recorded)),
            None => format!("{from} costs {full}."),
        }
    }

    fn limit(&self) -> String {
        let [today, strict] = [self.now.outcome, self.strict.outcome].map(text::limit);
        match today == strict {
            true => format!("At full speed {strict}, today and with strict."),
            false => format!("At full speed, with strict {strict}; today {today}."),
        }
    }

    /// What staying as it is risks, and what strict protection leaves at risk.
    fn risk(&self, recycled: Option<Recycled>) -> String {
        let outcome = self.now.outcome;
        let risk = match (self.today, outcome.bound_us) {
            (Today::Unprotected, _) => "Without protection a device reaches all memory at any time.".to_owned(),
            (Today::Lazy, bound_us) => {
                let bound = bound_us.map_or("without end".to_owned(), |bound_us| {
                    format!("for up to {} ms", number((bound_us as f64 + outcome.grace_us.unwrap_or_default()) / 1e3))
                });
                let seen = number(outcome.stale_window_us_max.unwrap_or_default() / 1e3);
                format!(
                    "While it stays lazy, the device reaches unmapped buffers {bound}, although they are in use again (seen: {seen} ms). \
                     Stay lazy only with devices and firmware that you trust. Linux keeps those behind Thunderbolt and USB4 ports strict, \
                     if firmware marks the ports as external."
                )
            }
        };
        match recycled {
            Some(Recycled { uses: Some(uses), pages }) => format!(
                "{risk} Its driver uses pages again: a buffer carries {} times its length before its unmap. With strict too, {} pages or \
                 more stay within reach while they are read.",
                number(uses),
                count(pages.unwrap_or_default())
            ),
            Some(Recycled { uses: None, .. }) => format!(
                "{risk} Its driver maps nothing to receive any more. With strict too, the pages that it mapped before the capture stay \
                 within reach."
            ),
            None => risk,
        }
    }

    /// What to do now, and what would lower the cost.
    fn remedy(&self, rows: &[CompareRow], item: &Item) -> String {
        let mut sentences = match self.today {
            Today::Unprotected => vec![self.turn_on(rows)],
            Today::Lazy => vec![self.choose(item)],
        };
        if !self.is_free() {
            sentences.push(self.lower(rows));
        }
        sentences.join(" ")
    }

    /// The first steps of a host without protection.
    fn turn_on(&self, rows: &[CompareRow]) -> String {
        let on = "Have the IOMMU translate (`intel_iommu=on iommu.passthrough=0`, without `iommu=pt`)";
        let lazy = linux(rows, Protection::Deferred).map(|lazy| self.ends(&lazy));
        let lazy =
            lazy.map_or(String::new(), |ends| format!(": lazy, which is the default on x86, costs {}", lost(ends)));
        format!("{on}{lazy}. With `iommu.strict=1` besides, it is strict.")
    }

    /// What to choose with Linux as it is, and the switch for it.
    fn choose(&self, item: &Item) -> String {
        // Only a PCI address has a colon.
        let name = item.device.as_ref().map(|device| device.name.as_str()).filter(|name| name.contains(':'));
        let number =
            name.map_or(String::new(), |name| format!(" (N: `readlink /sys/bus/pci/devices/{name}/iommu_group`)"));
        const TYPE: &str = "/sys/kernel/iommu_groups/N/type";
        match (self.is_free(), item.is_one_of_several()) {
            (true, false) => "Turn strict on: `iommu.strict=1`.".to_owned(),
            (true, true) => format!(
                "Make it strict, and leave those lazy that strict slows down: `iommu.strict=1`, and then `echo DMA-FQ > {TYPE}` for each of \
                 those. Or for this device alone `echo DMA > {TYPE}`{number}, while no device of its group has a driver."
            ),
            (false, _) => format!(
                "If it must run at full speed, stay lazy; at the recorded load, strict may be worth its CPU time. Where `iommu.strict=1` is on \
                 for others, `echo DMA-FQ > {TYPE}`{number} makes this device lazy, also while its driver is bound."
            ),
        }
    }

    /// What would lower the cost.
    fn lower(&self, rows: &[CompareRow]) -> String {
        let mut lower = Vec::new();
        let mut floor = self.strict.share();
        for batch in EQUAL_BATCHES {
            let ranking = Ranking::of(rows, Protection::Strict, Some(batch));
            // As in the advice below the tables.
            let Some(best) = ranking.better_than(floor).first().copied().copied() else { continue };
            floor = best.share();
            let drivers = format!("drivers that unmap up to {batch} buffers at once");
            let who = match (best.effort(), best.row.label() == LINUX) {
                (Effort::Option | Effort::Kernel, _) => "a changed kernel".to_owned(),
                (Effort::Drivers, true) => drivers,
                (Effort::Drivers, false) => format!("a changed kernel and {drivers}"),
            };
            lower.push(format!("with {who} (`{}`) {}", best.row.label(), lost(self.ends(&best))));
        }
        match lower.as_slice() {
            [] => format!("No other design here makes strict cheaper by more than {}.", percent(TIE)),
            some => format!("Of today's rate, strict would cost: {}.", some.join("; ")),
        }
    }

    /// The rate of a run as a share of today's, at both ends of what is not known.
    fn ends(&self, run: &Candidate<'_>) -> [f64; 2] {
        share::range([0, 1].map(|end| self.vs_today(run, end)))
    }

    /// The rate of a run as a share of today's, at one end of what is not known.
    fn vs_today(&self, run: &Candidate<'_>, end: usize) -> f64 {
        run.outcome.estimate_vs_none_range[end] / self.now.outcome.estimate_vs_none_range[end].max(f64::EPSILON)
    }
}

/// What is lost of a rate of which this share is left.
fn lost([low, high]: [f64; 2]) -> String {
    let [most, least] = [low, high].map(|share| (1.0 - share).max(0.0));
    if most <= TIE { "next to nothing".to_owned() } else { text::range(least, most) }
}

/// A rate to be read at a glance.
fn rate(outcome: &RunOutcome) -> String {
    match outcome.traffic {
        Traffic::Network => format!("{} Gb/s", gbps(outcome.estimate_gbps)),
        Traffic::Disk => format!("{} thousand requests a second", thousands(outcome.estimate_operations_per_second)),
    }
}

/// Pages that a driver uses again while they stay mapped.
#[derive(Clone, Copy)]
struct Recycled {
    /// How many times its length a buffer carries before its unmap, on average. `None` if the driver maps none.
    uses: Option<f64>,
    /// The most pages that were mapped at once for the device to write.
    pages: Option<u64>,
}

impl Recycled {
    fn of(work: &Work, traffic: Traffic) -> Option<Self> {
        // Less is the fill of a few buffers that were used twice.
        const USES_MIN: f64 = 1.05;
        let Work::Trace(Replay { trace, .. }) = work else { return None };
        // What a card sends is used once. A disk may use all of its buffers again.
        let may_be_used_again =
            |mapping: &TraceMapping| traffic == Traffic::Disk || mapping.access != Access::DeviceReads;
        let uses = |is_meant: &dyn Fn(&TraceMapping) -> bool| {
            let (mut carried, mut room) = (0u64, 0u64);
            for payload in &trace.payloads {
                let mapping = &trace.mappings[payload.mapping as usize];
                if is_meant(mapping) {
                    carried = carried.saturating_add(payload.bytes);
                    room += trace.segments_of(mapping).iter().map(|segment| segment.len).sum::<u64>();
                }
            }
            carried as f64 / room.max(1) as f64
        };
        let again = uses(&may_be_used_again);
        if again >= USES_MIN {
            return Some(Self { uses: Some(again), pages: Some(pages_max(trace, may_be_used_again)) });
        }
        let receives_in_old_pages = !trace.mappings.iter().any(may_be_used_again) && uses(&|_| true) >= USES_MIN;
        receives_in_old_pages.then_some(Self { uses: None, pages: None })
    }
}

/// Whether the capture or `--rate` says what each buffer received, and so whether pages were used again.
fn is_use_known(trace: &Trace) -> bool {
    let written = trace.mappings.iter().enumerate().filter(|(_, mapping)| mapping.access != Access::DeviceReads);
    written.map(|(index, _)| index as u32).all(|mapping| trace.payload_of(mapping).is_some())
}

/// The most pages of these mappings that were mapped at once.
fn pages_max(trace: &Trace, is_meant: impl Fn(&TraceMapping) -> bool) -> u64 {
    let (mut live, mut most) = (0u64, 0);
    for operation in &trace.operations {
        let mapping = &trace.mappings[operation.mapping as usize];
        if !is_meant(mapping) {
            continue;
        }
        match operation.kind {
            OperationKind::Map => live += u64::from(mapping.pages),
            OperationKind::Unmap => live -= u64::from(mapping.pages),
        }
        most = most.max(live);
    }
    most
}

/// The assumptions that carry the answer.
fn assumed(item: &Item, rows: &[CompareRow], recycled: Option<Recycled>, sensitivity: Option<&Sensitivity>) -> String {
    let Item { work, machine, .. } = item;
    let mut assumed = vec![format!("prices and caches of `{}`", machine.id)];
    match work.traffic(machine) {
        Traffic::Disk => {
            let rates = [
                machine.disk_iops.map(|rate| format!("{} requests", count(rate as u64))),
                machine.disk_bytes_per_second.map(|rate| format!("{} GB", number(rate / 1e9))),
            ];
            let rates: Vec<String> = rates.into_iter().flatten().collect();
            let (rates, in_flight) = (rates.join(" or "), count(machine.in_flight(Traffic::Disk)));
            assumed.push(match (machine.disks, machine.disk_count()) {
                (1, 1) => {
                    format!("one disk (`--set disks=N`) that does {rates} a second, with {in_flight} bytes in flight")
                }
                (1, several) => format!(
                    "{} disks (`--set disks=N`) that do {rates} a second together, with {in_flight} bytes in flight",
                    count(several)
                ),
                (disks, _) => format!(
                    "{} disks that do {rates} a second each, with {in_flight} bytes in flight together",
                    count(disks.into())
                ),
            });
        }
        Traffic::Network => {
            assumed.extend(machine.link_gbps.map(|gbps| format!("a link of {} Gb/s", number(gbps))));
            if recycled.is_none() && matches!(work, Work::Trace(Replay { trace, .. }) if !is_use_known(trace)) {
                let rate = if work.is_of_pages_alone() { "" } else { " (if the driver recycles pages: `--rate`)" };
                assumed.push(format!("a map for every packet{rate}"));
            }
            let is_range = |outcome: &RunOutcome| {
                outcome.payload_bytes_min < outcome.payload_bytes_max && !work.is_of_pages_alone()
            };
            if rows.iter().find_map(CompareRow::outcome).is_some_and(is_range) {
                assumed.push("received buffers of any fill (`--payload`)".to_owned());
            }
        }
    }
    if work.is_of_pages_alone() {
        let kind = match work.traffic(machine) {
            Traffic::Network => "a network card",
            Traffic::Disk => "a disk",
        };
        assumed.push(format!("that the capture is of one device, {kind} (`--traffic`)"));
    }
    let all = assumed.join("; ");
    match sensitivity.and_then(|sensitivity| sensitivity.cost_today) {
        // What would change it is in the advice.
        Some([least, most]) if most - least > TIE => {
            format!(
                "{all}. Over all that is assumed, strict costs {} of the unprotected rate.",
                text::range(least, most)
            )
        }
        _ => all + ".",
    }
}
