//! Attacks every design with the same malicious device. A row has what got through, and its assessment.

pub use crate::run::{
    Attacked, Found, PROBES_CACHED_MIN, attack, attack_on_breaking_hardware, attack_on_flawed_prefetcher,
    attack_on_flawed_rings,
};

use crate::compare::{ComparePlan, Item, Settings};
use crate::number::{count, number};
use crate::parallel;
use crate::run::{Choice, LabDesign};
use portcullis::mapper::Options;
use portcullis::{Protection, Rule, SubPage};
use serde::{Serialize, Serializer};

/// The rules whose breach a device can see. The others are between a driver and the protection layer.
pub const SEEN_BY_DEVICES: [Rule; 7] =
    [Rule::Reach, Rule::Strict, Rule::Reuse, Rule::Tables, Rule::Rights, Rule::Reserved, Rule::Completion];

/// What a rule says, for those who do not know its number.
pub const fn meaning(rule: Rule) -> &'static str {
    match rule {
        Rule::Reach => {
            "a device reaches only memory that is mapped for it, or that a declared stale window still covers"
        }
        Rule::Strict => "under strict protection, nothing is reached through a mapping once its unmap has returned",
        Rule::Reuse => "no address is used again while it is live, or before its invalidation has completed",
        Rule::Tables => "no table page is freed while walks may still read it",
        Rule::Rights => "a device has no more rights than were asked for",
        Rule::Errors => "a refused operation changes nothing",
        Rule::Bounds => "queues, lists and tables stay within their limits",
        Rule::SubPage => "what is reached of a page beyond its buffer is reported",
        Rule::Reserved => "reserved addresses are never handed out",
        Rule::Teardown => "nothing is reached after a device was detached",
        Rule::Completion => "a buffer whose invalidation failed is never given back",
        Rule::Storms => "faults of a device take a bounded time",
        Rule::Exhaustion => "a full address space gives an error, and never a wrong address",
        _ => "a rule of the list in the documents",
    }
}

/// One design under one protection, attacked.
#[derive(Clone, Debug)]
pub struct AttackRow {
    /// The index of the plan's item.
    pub item: usize,
    /// The work.
    pub trace: String,
    /// The design with its parameters.
    pub choice: Choice,
    /// The protection.
    pub protection: Protection,
    /// How the domain treats partly covered pages; `None` if nothing can be done about them.
    pub sub_page: Option<SubPage>,
    /// The largest batch.
    pub batch: usize,
    /// The prefetcher, as users write it.
    pub prefetcher: Option<String>,
    /// The hardware parameters that were changed.
    pub set: Settings,
    /// The findings of the device.
    pub attacked: Attacked,
}

/// The JSON object for each broken rule of a row; a row without one has a single object, without a rule. The field
/// names are keys; fields that do not apply are `null`.
#[derive(Clone, Debug, Serialize)]
pub struct Entry<'r> {
    /// The work.
    pub trace: &'r str,
    /// The design.
    #[serde(serialize_with = "design_id")]
    pub design: LabDesign,
    /// Its parameters that differ from the defaults.
    pub options: Options,
    /// Whether the design is for hypothetical hardware.
    pub no_such_hardware: bool,
    /// The protection.
    pub protection: Protection,
    /// How the domain treats partly covered pages.
    pub sub_page: Option<SubPage>,
    /// The largest batch.
    pub batch: usize,
    /// The prefetcher, as users write it.
    pub prefetcher: Option<&'r str>,
    /// The hardware parameters that were changed.
    pub set: &'r Settings,
    /// The rule.
    pub rule: Option<String>,
    /// Whether the design declares to break the rule, and has kept the bound that it declares.
    pub declared: Option<bool>,
    /// Accesses that broke the rule.
    pub stale_accesses: u64,
    /// The longest time after the hand-back of a buffer at which one of them reached it, in microseconds.
    pub stale_window_us_max: Option<f64>,
    /// Bytes of such buffers, each times how long it was reached after its hand-back, in byte-microseconds: a lower
    /// bound.
    pub stale_bytes_us: Option<f64>,
    /// The design's bound on how long an unmap waits until the hardware is told, in microseconds; `null` if there is no
    /// bound.
    pub bound_us: Option<u64>,
    /// How much longer than the bound a buffer may be reached before this counts as a breach: the time that timers and
    /// the hardware may add, in microseconds.
    pub grace_us: Option<f64>,
    /// Accesses that the device made, in the whole row.
    pub probes: u64,
    /// Pages whose translation the hardware had cached when their unmap began, in the whole row.
    pub probes_cached: Option<u64>,
    /// Accesses that reached bytes of a page outside its buffer (S8), in the whole row.
    pub residual_accesses: u64,
    /// Accesses that reached buffers between the two halves of their commits, in the whole row. They count as mapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between_halves: Option<u64>,
    /// The most entries of one ring that were reached inside a burst although they were cleared, in the whole row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_burst_entries_max: Option<u64>,
    /// Maps that found their ring full, in the whole row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_maps: Option<u64>,
    /// Refused maps that were never made, in the whole row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_up_maps: Option<u64>,
    /// Such bytes (S8), each times how long it was exposed, in byte-microseconds, in the whole row.
    pub residual_bytes_us: Option<f64>,
    /// Why the run ended early, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn design_id<S: Serializer>(design: &LabDesign, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(design.info().id)
}

/// Attacks every design of `plan`, with its own batch, several at a time. Calls `progress` when an attack begins.
pub fn execute(plan: &ComparePlan, mut progress: impl FnMut(&str)) -> Vec<AttackRow> {
    let mut jobs = Vec::new();
    for (index, pace) in plan.paces().into_iter().enumerate() {
        jobs.extend(plan.own_jobs().into_iter().map(|job| (index, pace, job)));
    }
    let run = |&(index, pace, (choice, protection, batch)): &_| {
        let item: &Item = &plan.items[index];
        let job = plan.job(item, pace, choice, protection, batch);
        let (trace, set, prefetcher) = (item.name.clone(), item.set.clone(), job.prefetching().spec());
        let sub_page = job.sub_page();
        AttackRow { item: index, trace, choice, protection, sub_page, batch, prefetcher, set, attacked: attack(&job) }
    };
    parallel::each(&jobs, run, |(_, _, (choice, protection, _))| progress(&format!("{choice} {protection}")))
}

/// The number of runs that this takes.
pub fn runs(plan: &ComparePlan) -> usize {
    plan.items.len() * plan.own_jobs().len()
}

impl AttackRow {
    /// The design with its parameters, and the protection.
    pub fn label(&self) -> String {
        format!("{} {}", self.choice, self.protection)
    }

    /// The JSON objects of the row.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let attacked = &self.attacked;
        let entry = |found: Option<&Found>| Entry {
            trace: &self.trace,
            design: self.choice.design,
            options: self.choice.options,
            no_such_hardware: self.choice.design.info().is_hypothetical(),
            protection: self.protection,
            sub_page: self.sub_page,
            batch: self.batch,
            prefetcher: self.prefetcher.as_deref(),
            set: &self.set,
            rule: found.map(|found| found.rule.to_string()),
            declared: found.map(|found| found.declared),
            stale_accesses: found.map_or(0, |found| found.accesses),
            stale_window_us_max: found.and_then(|found| found.window_us_max),
            stale_bytes_us: found.and_then(|found| found.bytes_us),
            bound_us: attacked.bound_us,
            grace_us: attacked.grace_us,
            probes: attacked.probes,
            probes_cached: attacked.probes_cached,
            residual_accesses: attacked.residual_accesses,
            between_halves: attacked.between_halves,
            in_burst_entries_max: attacked.in_burst_entries_max,
            refused_maps: attacked.refused_maps,
            given_up_maps: attacked.given_up_maps,
            residual_bytes_us: attacked.residual_bytes_us,
            error: attacked.error.as_ref().map(ToString::to_string),
        };
        match attacked.found.as_slice() {
            [] => vec![entry(None)],
            found => found.iter().map(|found| entry(Some(found))).collect(),
        }
    }

    /// The faults of the row: breaches that are not declared, and inconclusive runs.
    pub fn violations(&self) -> Vec<String> {
        let (label, trace, attacked) = (self.label(), &self.trace, &self.attacked);
        let undeclared = attacked.found.iter().filter(|found| !found.declared);
        let mut violations: Vec<String> = undeclared
            .map(|found| format!("{label}: {}, which it does not declare ({trace})", found.in_words()))
            .collect();
        if self.protection == Protection::None {
            return violations;
        }
        if let Some(error) = &attacked.error {
            violations.push(format!("{label}: the run ended early, which proves nothing: {error} ({trace})"));
        } else if attacked.proves_nothing() {
            violations.push(format!(
                "{label}: only {} pages were cached when their unmap began, which proves nothing; {} are needed ({trace})",
                count(attacked.probes_cached.unwrap_or(0)),
                count(PROBES_CACHED_MIN)
            ));
        }
        violations
    }

    /// The rules that the design declares to break here and that were not found broken, although a device can see the
    /// breach.
    fn declared_not_found(&self) -> impl Iterator<Item = String> {
        let breaches = self.choice.design.info().breaches.iter().filter(|breach| breach.protection == self.protection);
        let found = |rule| self.attacked.found.iter().any(|found| found.rule == rule);
        let unseen = breaches.filter(move |breach| SEEN_BY_DEVICES.contains(&breach.rule) && !found(breach.rule));
        unseen.map(|breach| breach.rule.to_string())
    }
}

impl Found {
    /// `S2 by 12 accesses, up to 3.4 µs after hand-back`.
    fn in_words(&self) -> String {
        let accesses = if self.accesses == 1 { "access" } else { "accesses" };
        let window =
            self.window_us_max.map(|us| format!(", up to {} µs after hand-back", number(us))).unwrap_or_default();
        format!("{} broken by {} {accesses}{window}", self.rule, count(self.accesses))
    }
}

/// A summary in sentences of the findings for one item of the plan.
pub fn conclude(rows: &[&AttackRow]) -> String {
    if rows.is_empty() {
        return "No design was attacked.".to_owned();
    }
    let mut sentences = Vec::new();
    let labels = |rows: &[&AttackRow]| list(rows.iter().map(|row| format!("`{}` {}", row.choice, row.protection)));
    let (open, protecting) = split(rows.to_vec(), |row| row.protection == Protection::None);
    let (failed, sound) = split(protecting, |row| !row.violations().is_empty());
    let (tight, stale) = split(sound, |row| row.attacked.found.is_empty());
    let (unbounded, bounded) = split(stale, |row| row.attacked.bound_us.is_none());
    let longest = |rows: &[&AttackRow]| {
        let windows = rows.iter().flat_map(|row| &row.attacked.found).filter_map(|found| found.window_us_max);
        windows.fold(0.0, f64::max)
    };
    sentences.extend(failed.iter().flat_map(|row| row.violations()).map(|violation| format!("FAILED: {violation}.")));
    if !tight.is_empty() {
        let probes: u64 = tight.iter().map(|row| row.attacked.probes).sum();
        sentences.push(format!("Nothing got through {}, in {} accesses.", labels(&tight), count(probes)));
    }
    if rows.iter().any(|row| row.attacked.between_halves.is_some()) {
        let reached: u64 = rows.iter().filter_map(|row| row.attacked.between_halves).sum();
        sentences.push(format!(
            "{} accesses reached buffers between the two halves of their commits: the device still has these, so they \
             count as mapped.",
            count(reached)
        ));
    }
    for (row, entries) in rows.iter().filter_map(|row| Some((row, row.attacked.in_burst_entries_max?))) {
        let entries = count(entries);
        sentences.push(format!(
            "Inside a burst of `{}`, up to {entries} cleared entries of a ring were reached: the burst is the unit of unmap. \
             There is no such hardware.",
            row.choice
        ));
    }
    for (row, given_up) in rows.iter().filter_map(|row| Some((row, row.attacked.given_up_maps?))) {
        if given_up > 0 {
            let (given_up, refused) = (count(given_up), count(row.attacked.refused_maps.unwrap_or(0)));
            sentences.push(format!(
                "{refused} maps of `{}` found no room in their ring; {given_up} of these were never made, and the findings do not cover them.",
                row.choice
            ));
        }
    }
    if !bounded.is_empty() {
        let (labels, longest) = (labels(&bounded), number(longest(&bounded)));
        sentences.push(format!(
            "Under {labels}, buffers were reached for up to {longest} µs after hand-back, within the bound that each declares, \
             plus the time that timers and the hardware add."
        ));
    }
    if !unbounded.is_empty() {
        let (labels, longest) = (labels(&unbounded), number(longest(&unbounded)));
        sentences.push(format!(
            "Under {labels}, buffers were reached without bound, as declared; the longest time seen was {longest} µs after \
             hand-back."
        ));
    }
    let (ended_early, open) = split(open, |row| row.attacked.error.is_some());
    for row in ended_early {
        sentences.extend(row.attacked.error.iter().map(|error| format!("`{}` was not attacked: {error}.", row.choice)));
    }
    if !open.is_empty() {
        let designs = list(open.iter().map(|row| format!("`{}`", row.choice)));
        sentences.push(format!("Without protection, as declared, the device reaches all memory: {designs}."));
    }
    for row in rows {
        let missing = list(row.declared_not_found());
        if !missing.is_empty() && row.attacked.error.is_none() {
            let label = row.label();
            sentences.push(format!("`{label}` declares that it breaks {missing}; this run did not find it broken."));
        }
    }
    sentences.join(" ")
}

/// The rows for which `first` is true, and the others.
fn split(rows: Vec<&AttackRow>, first: fn(&AttackRow) -> bool) -> (Vec<&AttackRow>, Vec<&AttackRow>) {
    rows.into_iter().partition(|row| first(row))
}

/// `a`, `a and b`, `a, b and c`.
fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    match items.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
