//! The advice as text.

use super::linux;
use super::pages;
use super::ranking::{Candidate, Effort, Ranking, TIE};
use super::sensitivity::Sensitivity;
use crate::compare::{CompareRow, EQUAL_BATCHES, Item, LINUX};
use crate::machine::Machine;
use crate::number::{count, gbps, number, percent};
use crate::outcome::RunOutcome;
use crate::rates::Limit;
use crate::traffic::Traffic;
use portcullis::Protection;
use std::cmp::Ordering;

/// The paragraph for the runs of one piece of work.
pub(super) fn of(rows: &[CompareRow], item: &Item, sensitivity: Option<&Sensitivity>) -> String {
    let Item { work, machine, .. } = item;
    let mut sentences = match rows.iter().find_map(|row| row.prefetcher.clone()) {
        Some(prefetcher) => without_such_hardware(rows, &prefetcher),
        None => match (linux(rows, Protection::Strict), linux(rows, Protection::Deferred)) {
            (Some(strict), deferred) => with_linux(rows, strict, deferred, switch(item)),
            _ => without_linux(rows).into_iter().chain(batched_linux(rows)).collect(),
        },
    };
    if rows.iter().all(|row| row.prefetcher.is_none()) {
        sentences.extend(search(rows, machine));
        sentences.extend(at_the_recorded_speed(rows));
        sentences.extend(sensitivity.map(Sensitivity::sentence));
    }
    sentences.extend(rings(rows));
    sentences.extend(unpriced(rows));
    match work.is_of_pages_alone() {
        true => sentences.push(pages::of(work, machine)),
        false => sentences.extend(payload(rows)),
    }
    sentences.extend(beyond_the_link(rows));
    sentences.join(" ")
}

/// How Linux is made strict: all of it or, if there are other devices beside this one, a device by itself.
fn switch(item: &Item) -> &'static str {
    match item.is_one_of_several() {
        true => "`DMA` in `/sys/kernel/iommu_groups/N/type`",
        false => "kernel option `iommu.strict=1`",
    }
}

/// Today's Linux comes first, because it needs no other kernel.
fn with_linux(
    rows: &[CompareRow],
    strict: Candidate<'_>,
    deferred: Option<Candidate<'_>>,
    switch: &str,
) -> Vec<String> {
    let mut sentences = Vec::new();
    if strict.is_free() {
        sentences.push(format!(
            "Turn strict protection on: with Linux as it is (`magazine`, {switch}) it costs next to nothing \
             here, an estimated {} of the unprotected rate; {}.",
            loss(&strict),
            limit(strict.outcome)
        ));
        sentences.push(format!("It takes {}.", cpu_time(strict.outcome)));
        sentences.extend(nothing_is_better(rows));
        return sentences;
    }
    sentences.push(format!(
        "Strict protection with Linux as it is (`magazine`, {switch}) costs an estimated {} of the unprotected \
         rate at full speed; {}.",
        loss(&strict),
        limit(strict.outcome)
    ));
    sentences.push(format!("It takes {}.", cpu_time(strict.outcome)));
    if let Some(deferred) = deferred {
        sentences.push(format!("Deferred, its default, costs {}, and {}", loss(&deferred), exposure(deferred.outcome)));
    }
    let (mut lower, mut floor) = (Vec::new(), strict.share());
    for batch in EQUAL_BATCHES {
        if let Some((share, text)) = self::lower(rows, &strict, batch, floor) {
            lower.push(text);
            floor = share;
        }
    }
    if lower.is_empty() {
        sentences.push(format!("No other design here makes strict cheaper by more than {}.", percent(TIE)));
    } else {
        sentences.push(format!("What would lower it: {}.", lower.join("; ")));
    }
    sentences.extend(deferred.and_then(|deferred| shorter_window(rows, &deferred)));
    sentences
}

/// Whether there is a deferred run whose design bounds no window. Such a run is never chosen.
fn runs_unbounded(rows: &[CompareRow]) -> bool {
    let deferred = rows.iter().filter(|row| row.protection == Protection::Deferred);
    deferred.filter_map(CompareRow::outcome).any(|outcome| outcome.bound_us.is_none())
}

/// What to choose if today's Linux is not among the runs.
fn without_linux(rows: &[CompareRow]) -> Vec<String> {
    let (strict, deferred) =
        (Ranking::of(rows, Protection::Strict, None), Ranking::of(rows, Protection::Deferred, None));
    let mut sentences = Vec::new();
    match (strict.best(), deferred.best()) {
        (None, None) => {
            let which = match (unpriced(rows), runs_unbounded(rows)) {
                (Some(_), _) => " whose cost is known",
                (None, true) => " whose window has a bound",
                (None, false) => "",
            };
            return vec![format!("There is no strict or deferred run here to choose{which}.")];
        }
        (Some(best), None) => {
            let because = match runs_unbounded(rows) {
                true => "no deferred run here has a bound on its window",
                false => "it is the only protection that was run here",
            };
            sentences.push(choose(&strict, best, because));
        }
        (None, Some(best)) => {
            sentences.push(choose(&deferred, best, "no strict run is here to compare with"));
            sentences.push(format!("But {}", exposure(best.outcome)));
        }
        (Some(best), Some(other)) if other.share() - best.share() <= TIE => {
            sentences.push(choose(&strict, best, "deferred protection is estimated to carry no more"));
        }
        (Some(best), Some(other)) => {
            let because = format!(
                "no buffer stays within the device's reach after its unmap; that costs an estimated {} of the unprotected rate",
                loss(&best)
            );
            sentences.push(choose(&strict, best, &because));
            sentences.push(format!(
                "If that is too much, {} would cost {} instead, and {}",
                name(&other),
                loss(&other),
                exposure(other.outcome)
            ));
        }
    }
    sentences.extend(strict.best().and_then(|best| without_batches(rows, &best)));
    let price = strict.best().and_then(|best| price_of_batches(best.outcome));
    sentences.extend(price.map(|price| format!("Mind {price}.")));
    sentences
}

/// Says that `--batch` leaves out Linux as it is, if it does.
fn batched_linux(rows: &[CompareRow]) -> Option<String> {
    let is_batched = |row: &&CompareRow| row.label() == LINUX && row.batch > 1;
    rows.iter().find(is_batched).filter(|_| !rows.iter().any(CompareRow::is_linux))?;
    Some(
        "Linux as it is does not unmap in batches: what it costs today (`iommu.strict=1`) is shown without `--batch`."
            .to_owned(),
    )
}

/// The best run without batches, if the chosen run needs batches.
fn without_batches(rows: &[CompareRow], chosen: &Candidate<'_>) -> Option<String> {
    let best = Ranking::of(rows, Protection::Strict, Some(1)).best().filter(|_| chosen.row.batch > 1)?;
    Some(format!("Without batches {} is the best, at {} of unprotected.", name(&best), share(best.outcome)))
}

fn choose(ranking: &Ranking<'_>, best: Candidate<'_>, because: &str) -> String {
    let estimate =
        format!("estimated at {}, {} of unprotected; {}", rate(best.outcome), share(best.outcome), limit(best.outcome));
    let all = ranking.all.len();
    let differ = ranking.all.iter().any(|other| other.row.label() != best.row.label());
    if differ && ranking.is_all_tied() {
        let protection = best.row.protection;
        return format!(
            "All {all} {protection} runs are within {} of each other, {estimate}: none is better.",
            percent(TIE)
        );
    }
    let tied = match ranking.tied.len() {
        0 | 1 => String::new(),
        2 => format!(" One more is within {} of it, and no simpler.", percent(TIE)),
        more => format!(" {} more are within {} of it, and none is simpler.", more - 1, percent(TIE)),
    };
    format!("Choose {}, because {because}. It is {estimate}.{tied}", name(&best))
}

/// Says that no design is better than today's Linux.
fn nothing_is_better(rows: &[CompareRow]) -> Option<String> {
    let ranking = Ranking::of(rows, Protection::Strict, Some(1));
    let others = ranking.all.len().checked_sub(1).filter(|others| *others > 0)?;
    Some(if others == 1 && ranking.is_all_tied() {
        format!("The other strict design is within {} of it: it is no better here.", percent(TIE))
    } else if ranking.is_all_tied() {
        format!("All {others} other strict designs are within {} of it: none is better here.", percent(TIE))
    } else {
        format!(
            "Of the {others} other strict designs {} are within {} of it, and none is better.",
            ranking.tied.len() - 1,
            percent(TIE)
        )
    })
}

/// What lowers the cost of strict protection at batches of `batch` by more than a tie above the share `floor`. Returns
/// its share too.
fn lower(rows: &[CompareRow], today: &Candidate<'_>, batch: usize, floor: f64) -> Option<(f64, String)> {
    let ranking = Ranking::of(rows, Protection::Strict, Some(batch));
    let better = ranking.better_than(floor);
    let best = *better.first()?;
    let is_todays = |one: &Candidate<'_>| one.row.label() == today.row.label();
    let same = better.iter().skip(1).filter(|other| other.effort() == best.effort() && !is_todays(other));
    let same: Vec<String> = same.map(|other| format!("`{}`", other.row.label())).collect();
    let alike = match same.as_slice() {
        [] => String::new(),
        [one] => format!(" or {one}"),
        [most @ .., last] => format!(", {} or {last}", most.join(", ")),
    };
    let what = match best.effort() {
        Effort::Option | Effort::Kernel => "a kernel that is changed to".to_owned(),
        Effort::Drivers if is_todays(best) => format!("drivers that unmap in batches of up to {batch}, with"),
        Effort::Drivers => format!("drivers that unmap in batches of up to {batch}, and a kernel that is changed to"),
    };
    let in_batches = ranking.all.iter().find(|one| is_todays(one)).filter(|_| batch > 1 && !is_todays(best));
    let compared = match in_batches {
        Some(linux) => format!(", where `magazine` in the same batches would cost {}", loss(linux)),
        None => String::new(),
    };
    let price = price_of_batches(best.outcome).map(|price| format!("; {price}")).unwrap_or_default();
    let text = format!("{what} `{}`{alike} ({} instead{compared}{price})", best.row.label(), loss(best));
    Some((best.share(), text))
}

/// A deferred design with a shorter bound than today's that costs no more.
fn shorter_window(rows: &[CompareRow], today: &Candidate<'_>) -> Option<String> {
    let bound = |candidate: &Candidate<'_>| candidate.outcome.bound_us.filter(|bound_us| *bound_us > 0);
    let limit = bound(today)?;
    let all = Ranking::of(rows, Protection::Deferred, Some(today.row.batch)).all;
    let as_cheap = all.iter().filter(|other| other.share() >= today.share() - TIE);
    let (best, bound_us) =
        as_cheap.filter_map(|other| Some((other, bound(other)?))).min_by_key(|(_, bound_us)| *bound_us)?;
    let grace = |candidate: &Candidate<'_>| number(candidate.outcome.grace_us.unwrap_or_default());
    (bound_us < limit).then(|| {
        format!(
            "`{}` deferred, without batches and in a kernel that is changed to it, would cost {} and bound the window by {} µs + {} µs \
             instead of {} µs + {} µs.",
            best.row.label(),
            loss(best),
            count(bound_us),
            grace(best),
            count(limit),
            grace(today)
        )
    })
}

/// The price that drivers pay for batches: buffers return later.
fn price_of_batches(outcome: &RunOutcome) -> Option<String> {
    let (buffers, wait) = (outcome.batch_buffers_mean?, outcome.batch_wait_us_mean?);
    let recorded = outcome.recorded.and_then(|recorded| recorded.batch_wait_us_mean);
    let recorded = recorded.map(|wait| format!(", and {} µs at the recorded load", number(wait))).unwrap_or_default();
    Some(format!(
        "the price of batches: one holds {} buffers on average, at most {}, and a buffer waits {} µs on average for its return, at most {} \
         µs{recorded}",
        number(buffers),
        count(outcome.batch_buffers_max?),
        number(wait),
        number(outcome.batch_wait_us_max?)
    ))
}

/// Says if the cheapest design at the recorded speed differs from that under the model clock.
fn at_the_recorded_speed(rows: &[CompareRow]) -> Option<String> {
    let all = Ranking::of(rows, Protection::Strict, Some(1)).all;
    let cheapest = |cycles: &dyn Fn(&Candidate<'_>) -> Option<f64>| {
        let priced = all.iter().filter_map(|one| Some((one, cycles(one)?)));
        priced.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(one, _)| one)
    };
    let recorded_cycles = |one: &Candidate<'_>| one.outcome.recorded.map(|recorded| recorded.cycles_per_page);
    let (modelled, recorded) = (cheapest(&|one| Some(one.outcome.cycles_per_page))?, cheapest(&recorded_cycles)?);
    let (here, there) = (recorded_cycles(recorded)?, recorded_cycles(modelled)?);
    (here < there * (1.0 - TIE)).then(|| {
        format!(
            "At the recorded speed the order is another: there `{}` is the cheapest without batches, with {} cycles per page, and `{}` \
             takes {}; the table is for full speed (`--clock trace` shows the other).",
            recorded.row.label(),
            number(here),
            modelled.row.label(),
            number(there)
        )
    })
}

/// Numbers of hardware that does not exist justify no advice.
fn without_such_hardware(rows: &[CompareRow], prefetcher: &str) -> Vec<String> {
    let mut sentences = vec![format!(
        "There is no such hardware as an IOTLB with the prefetcher `{prefetcher}`: these numbers say what it would do, and \
         recommend nothing."
    )];
    if let Some(strict) = Ranking::of(rows, Protection::Strict, None).best() {
        sentences.push(format!(
            "With it, {} would be estimated at {}, {} of unprotected, with {} IOTLB misses per page.",
            name(&strict),
            rate(strict.outcome),
            share(strict.outcome),
            number(strict.outcome.iotlb_misses_per_page)
        ));
    }
    sentences
}

/// Designs for hardware that does not exist are compared, but never chosen.
fn rings(rows: &[CompareRow]) -> Option<String> {
    let row = rows.iter().find(|row| row.no_such_hardware)?;
    Some(format!(
        "There is no such hardware as `{}` needs: its numbers say what it would do, and recommend nothing.",
        row.design
    ))
}

/// Says that the cost of a design is not known.
fn unpriced(rows: &[CompareRow]) -> Option<String> {
    let row = rows.iter().find(|row| row.outcome().is_some_and(|outcome| outcome.unpriced))?;
    Some(format!(
        "`{}` reports no steps of its addresses: its numbers lack what they cost, and it is left out of what is said here.",
        row.design
    ))
}

/// Says that rates are ranges, if the fill of buffers is not known.
fn payload(rows: &[CompareRow]) -> Option<String> {
    let outcome = rows.iter().find_map(CompareRow::outcome)?;
    let (least, most) = (outcome.payload_bytes_min, outcome.payload_bytes_max);
    (least < most).then(|| {
        "It is not known how full the received buffers were. Rates are ranges: the low end is for the bytes that are certain (one in each \
         buffer where nothing is known), the high end for full buffers. `--payload` sets it."
            .to_owned()
    })
}

/// Names runs that moved more than the link can carry.
fn beyond_the_link(rows: &[CompareRow]) -> Option<String> {
    // The pauses are chosen to reach the rate within a fraction of this.
    const WITHIN: f64 = 1.01;
    let beyond = |row: &CompareRow| {
        let outcome = row.outcome()?;
        outcome.achieved_gbps.filter(|gbps| *gbps > outcome.unprotected_gbps * WITHIN)
    };
    let best = rows.iter().filter_map(|row| Some((row, beyond(row)?)));
    let (row, achieved) = best.max_by(|(_, a), (_, b)| a.partial_cmp(b).unwrap_or(Ordering::Equal))?;
    let unprotected = row.outcome().map_or(0.0, |outcome| outcome.unprotected_gbps);
    Some(format!(
        "`{}` {} moved {} Gb/s in this run, more than the {} that this work reaches unprotected: no link is modelled.",
        row.label(),
        row.protection,
        gbps(achieved),
        gbps(unprotected)
    ))
}

/// A warning if the search for addresses is a large part of the cost.
fn search(rows: &[CompareRow], machine: &Machine) -> Option<String> {
    let share = |candidate: &Candidate<'_>| {
        let outcome = candidate.outcome;
        let per_page = outcome.operations as f64 / outcome.pages.max(1) as f64;
        let steps = outcome.search_steps_mean? * machine.costs.tree_search as f64 * per_page;
        Some(steps / outcome.cycles_per_page)
    };
    let all = Ranking::of(rows, Protection::Strict, Some(1)).all;
    let worst = all.into_iter().filter_map(|one| Some((one, share(&one)?))).max_by(|(_, a), (_, b)| a.total_cmp(b));
    let (candidate, share) = worst.filter(|(_, share)| *share > 0.2)?;
    Some(format!(
        "{} of what `{}` costs here is the search for a free address ({} steps each).",
        percent(share),
        candidate.row.label(),
        number(candidate.outcome.search_steps_mean?)
    ))
}

/// The name of a run, with its batches, because they are a part of what makes it cheap.
fn name(candidate: &Candidate<'_>) -> String {
    let row = candidate.row;
    let batches = if row.batch == 1 { String::new() } else { format!(" in batches of {}", row.batch) };
    format!("`{}` {}{batches}", row.label(), row.protection)
}

pub(super) fn limit(outcome: &RunOutcome) -> String {
    let of = |limit| match limit {
        Limit::Link => "the link is the limit",
        Limit::Disk => "the disks are the limit",
        Limit::Cpu => "the CPUs are the limit",
        Limit::Queue => "the unit's invalidation queue is the limit, which all CPUs share",
        Limit::Lock => "a lock is the limit, which one CPU holds at a time",
        Limit::Pcie => "translations are the limit: bytes in flight wait for page walks",
    };
    match outcome.limit_min.filter(|least| *least != outcome.limit) {
        Some(least) => {
            format!("at the upper end of the range {}, and at the lower end {}", of(outcome.limit), of(least))
        }
        None => of(outcome.limit).to_owned(),
    }
}

/// The CPU time that protection takes, at full speed and as recorded.
fn cpu_time(outcome: &RunOutcome) -> String {
    let at_full_speed = format!("{} % of one core at full speed", number(outcome.estimate_cpu_percent));
    match outcome.recorded {
        Some(recorded) => {
            format!("{} % of one core at the recorded load, and {at_full_speed}", number(recorded.cpu_percent))
        }
        None => at_full_speed,
    }
}

pub(super) fn rate(outcome: &RunOutcome) -> String {
    if outcome.traffic == Traffic::Disk {
        return format!("{} requests per second", count(outcome.estimate_operations_per_second.round() as u64));
    }
    match outcome.estimate_gbps_min {
        Some(least) => format!("{} to {} Gb/s", gbps(least), gbps(outcome.estimate_gbps)),
        None => format!("{} Gb/s", gbps(outcome.estimate_gbps)),
    }
}

/// The share of the unprotected rate, or a range of shares.
fn share(outcome: &RunOutcome) -> String {
    let [low, high] = outcome.estimate_vs_none_range;
    range(low, high)
}

/// The cost of a run as a share of the unprotected rate. It is never shown as "-0 %".
fn loss(candidate: &Candidate<'_>) -> String {
    let [high, low] = candidate.outcome.estimate_vs_none_range.map(|share| (1.0 - share).max(0.0));
    range(low, high)
}

pub(super) fn range(low: f64, high: f64) -> String {
    match (percent(low), percent(high)) {
        (low, high) if low == high => low,
        (low, high) => format!("{} to {high}", low.trim_end_matches(" %")),
    }
}

fn exposure(outcome: &RunOutcome) -> String {
    match outcome.stale_window_us_max {
        Some(window_us) if window_us > 0.0 => format!(
            "the device can reach a buffer after it is back in use: seen up to {} µs, {} ({} stale pages were seen to translate).",
            number(window_us),
            bound(outcome),
            count(outcome.stale_accesses)
        ),
        _ => "no window was seen in which the device could reach a buffer after its unmap.".to_owned(),
    }
}

/// What the design promises about the window that was seen, and what it cannot promise.
fn bound(outcome: &RunOutcome) -> String {
    let grace = number(outcome.grace_us.unwrap_or_default());
    match outcome.bound_us {
        Some(0) => format!("until the hardware has worked off its queue, which takes {grace} µs at most"),
        Some(bound_us) => format!("bound {} µs + {grace} µs for timers and the hardware", count(bound_us)),
        None => "no bound".to_owned(),
    }
}
