//! The same malicious device against every design: what got through, and what to make of it.

pub use crate::run::{
    Attacked, Found, PROBES_CACHED_MIN, attack, attack_on_breaking_hardware, attack_on_flawed_prefetcher,
    attack_on_flawed_rings,
};

use crate::compare::{ComparePlan, Item, Settings};
use crate::number::{count, number};
use crate::parallel;
use portcullis::design::Options;
use portcullis::designs::{Choice, DesignId};
use portcullis::{Protection, Rule, SubPage};
use serde::{Serialize, Serializer};

/// The rules whose breach a device can see. The others are between a driver and the protection layer.
pub const SEEN_BY_DEVICES: [Rule; 7] =
    [Rule::Reach, Rule::Strict, Rule::Reuse, Rule::Tables, Rule::Rights, Rule::Reserved, Rule::Completion];

/// One design under one protection, attacked.
#[derive(Clone, Debug)]
pub struct AttackRow {
    /// Which item of the plan.
    pub item: usize,
    /// The work.
    pub trace: String,
    /// The design with its parameters.
    pub choice: Choice,
    /// The protection.
    pub protection: Protection,
    /// What the domain does about parts of pages; `None` where nothing can be done about them.
    pub sub_page: Option<SubPage>,
    /// The largest batch.
    pub batch: usize,
    /// What prefetches, as users write it.
    pub prefetcher: Option<String>,
    /// The hardware parameters that were changed.
    pub set: Settings,
    /// What the device found out.
    pub attacked: Attacked,
}

/// What JSON has of a row for each rule that was broken; once, with no rule, where none was. The field names are keys; what does
/// not apply is `null`.
#[derive(Clone, Debug, Serialize)]
pub struct Entry<'r> {
    /// The work.
    pub trace: &'r str,
    /// The design.
    #[serde(serialize_with = "design_id")]
    pub design: DesignId,
    /// Its parameters, where they differ from the defaults.
    pub options: Options,
    /// Whether it is for hardware that there is not.
    pub no_such_hardware: bool,
    /// The protection.
    pub protection: Protection,
    /// What the domain does about parts of pages.
    pub sub_page: Option<SubPage>,
    /// The largest batch.
    pub batch: usize,
    /// What prefetches, as users write it.
    pub prefetcher: Option<&'r str>,
    /// The hardware parameters that were changed.
    pub set: &'r Settings,
    /// The rule.
    pub rule: Option<String>,
    /// Whether the design declares that it breaks the rule, and has kept the bound that it names.
    pub declared: Option<bool>,
    /// Accesses that broke the rule.
    pub stale_accesses: u64,
    /// The longest after the hand-back of a buffer that one of them reached it, in microseconds.
    pub stale_window_us_max: Option<f64>,
    /// Bytes of such buffers, each times how long it was reached after its hand-back: at least so many byte-microseconds.
    pub stale_bytes_us: Option<f64>,
    /// How long the design says that an unmap waits for the hardware to be told; `null` without bound.
    pub bound_us: Option<u64>,
    /// What timers and the hardware may take beside it before that counts as a breach, in microseconds.
    pub grace_us: Option<f64>,
    /// Accesses that the device made, of the whole row.
    pub probes: u64,
    /// Pages whose translation the hardware held when their unmap began, of the whole row.
    pub probes_cached: Option<u64>,
    /// Accesses that reached bytes of a page beside those of its buffer (S8), of the whole row.
    pub residual_accesses: u64,
    /// The most entries of one ring that were reached inside a burst though they were cleared, of the whole row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_burst_entries_max: Option<u64>,
    /// Maps that found their ring full, of the whole row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_maps: Option<u64>,
    /// Those of them that were never made, of the whole row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_up_maps: Option<u64>,
    /// Bytes so exposed times how long, of the whole row.
    pub residual_bytes_us: Option<f64>,
    /// Why the run ended early, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn design_id<S: Serializer>(design: &DesignId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(design.info().id)
}

/// Attacks every design of `plan`, each with its own batch, several at a time; `progress` is told when one begins.
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

/// How many runs that takes.
pub fn runs(plan: &ComparePlan) -> usize {
    plan.items.len() * plan.own_jobs().len()
}

impl AttackRow {
    /// The design with its parameters, and the protection.
    pub fn label(&self) -> String {
        format!("{} {}", self.choice, self.protection)
    }

    /// What JSON has of it.
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

    /// What is wrong: breaches that are not declared, and runs that show nothing.
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

    /// The rules that the design declares to break here, and that were not seen broken although a device can.
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

/// In plain words, what was found on one item of the plan.
pub fn conclude(rows: &[&AttackRow]) -> String {
    if rows.is_empty() {
        return "There is no attack here to conclude from.".to_owned();
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
    for (row, entries) in rows.iter().filter_map(|row| Some((row, row.attacked.in_burst_entries_max?))) {
        let entries = count(entries);
        sentences.push(format!(
            "Inside a burst of `{}` up to {entries} entries of a ring were reached that were cleared: the burst is the unit of unmap. \
             There is no such hardware.",
            row.choice
        ));
    }
    for (row, given_up) in rows.iter().filter_map(|row| Some((row, row.attacked.given_up_maps?))) {
        if given_up > 0 {
            let (given_up, refused) = (count(given_up), count(row.attacked.refused_maps.unwrap_or(0)));
            sentences.push(format!(
                "{refused} maps of `{}` found no room in their ring; {given_up} of these were never made, and nothing is said of them.",
                row.choice
            ));
        }
    }
    if !bounded.is_empty() {
        let (labels, longest) = (labels(&bounded), number(longest(&bounded)));
        sentences.push(format!(
            "Under {labels} buffers were reached for up to {longest} µs after hand-back, within the bound that each declares, \
             and what timers and the hardware take beside it."
        ));
    }
    if !unbounded.is_empty() {
        let (labels, longest) = (labels(&unbounded), number(longest(&unbounded)));
        sentences.push(format!(
            "Under {labels} they were reached without bound, as declared; the longest seen was {longest} µs after \
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
            sentences.push(format!("`{label}` declares that it breaks {missing}; this run did not see it do so."));
        }
    }
    sentences.join(" ")
}

/// Those of which `first` is true, and the others.
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
