//! Runs side by side at equal batches: their tables, and the meanings of the columns.

use super::document::{Protection, Run, Share, Traffic};
use super::page::{cell, counted, design_cells, heads, protection_cell, scrolled, shown, whole};
use super::picture;
use maud::{Markup, html};
use portcullis_sim::number::{gbps, low_percent, number, percent, thousands};
use std::collections::BTreeSet;

/// Runs with batches of up to `unmaps` unmaps.
pub(super) struct Batch<'d> {
    pub(super) unmaps: u64,
    pub(super) runs: Vec<&'d Run>,
}

impl<'d> Batch<'d> {
    /// The runs of one piece of work by batch. Each batch has all designs in the order of `own`, where each design has
    /// its own batch. Designs without protection have no batches, and are listed with the smallest.
    pub(super) fn all(own: &'d [Run], equal: &'d [Run]) -> Vec<Self> {
        let all = || own.iter().chain(equal);
        let mut batches: BTreeSet<u64> =
            all().filter(|run| run.protection != Protection::None).map(|run| run.batch).collect();
        if batches.is_empty() {
            batches = all().map(|run| run.batch).collect();
        }
        let first = batches.first().copied();
        let at = |unmaps: u64| {
            let same = |run: &Run, other: &Run| {
                (&other.design, other.protection, other.batch) == (&run.design, run.protection, unmaps)
            };
            let runs = own.iter().filter_map(|run| match run.protection {
                Protection::None => (Some(unmaps) == first).then_some(run),
                _ => all().find(|other| same(run, other)),
            });
            Batch { unmaps, runs: runs.collect() }
        };
        batches.into_iter().map(at).collect()
    }

    pub(super) fn title(&self) -> Markup {
        title(self.unmaps)
    }
}

/// The title of batches of up to `unmaps`.
pub(super) fn title(unmaps: u64) -> Markup {
    html! {
        @if unmaps == 1 { "Each unmap by itself" } @else { "In batches of up to " (counted(unmaps)) ", each with one wait" }
    }
}

/// The rate of a run, with its unit. Shows both ends if it is a range.
pub(super) fn rate(run: &Run) -> Option<(Markup, &'static str)> {
    Some(match run.traffic {
        Some(Traffic::Disk) => {
            let requests = run.estimate_operations_per_second?;
            (shown(requests, &thousands(requests)), "kIO/s")
        }
        _ => (range(run.estimate_gbps_min, run.estimate_gbps?, gbps, gbps), "Gb/s"),
    })
}

/// A share of the unprotected rate. Shows both ends if it is a range.
pub(super) fn share(share: Share) -> Option<Markup> {
    let [low, high] = match share.estimate_vs_none_range {
        Some(ends) => ends.map(Some),
        None => [share.estimate_vs_none_min, share.estimate_vs_none],
    };
    Some(range(low, high?, low_percent, percent))
}

/// A range, or one number if both ends print the same.
pub(super) fn range(least: Option<f64>, most: f64, low: fn(f64) -> String, high: fn(f64) -> String) -> Markup {
    html! {
        @if let Some(least) = least.filter(|least| high(*least) != high(most)) { (shown(least, &low(least))) "–" }
        (shown(most, &high(most)))
    }
}

/// The table as on a terminal, with the bounds of the windows.
pub(super) fn table(runs: &[&Run], is_best: impl Fn(&Run) -> bool) -> Markup {
    let unit = runs.iter().find_map(|run| rate(run)).map_or("Gb/s", |(_, unit)| unit);
    let recorded = runs.iter().any(|run| run.recorded.is_some());
    let or_dash = |words: Option<Markup>| html! { td { @match words { Some(words) => (words), None => "–" } } };
    let table = html! {
        thead {
            tr {
                th.word scope="col" { "design" } th.word scope="col" { "protection" }
                (heads(&["of none", &format!("{unit}\n(est.)"), "limit"]))
                @if recorded { (heads(&["CPU % as\nrecorded"])) }
                (heads(&["cycles/\npage", "IOTLB\nmisses/p", "L3\nmisses/p", "inval/\npage", "tables\nmax", "window\nµs seen",
                    "bound\nµs", "stale\npages"]))
            }
        }
        tbody {
            @for run in runs.iter().filter(|run| run.error.is_none()) {
                tr.best[is_best(run)] {
                    (design_cells_of(run))
                    (or_dash(share(run.share)))
                    (or_dash(rate(run).map(|(rate, _)| rate)))
                    td { (run.limit.as_deref().unwrap_or("–")) }
                    @if recorded { (cell(unless_nothing(run, run.recorded.as_ref().map(|recorded| recorded.cpu_percent)), number)) }
                    @for value in [run.cycles_per_page, run.iotlb_misses_per_page, run.ptcache_l3_misses_per_page, run.invalidations_per_page] {
                        (cell(unless_nothing(run, value), number))
                    }
                    (cell(run.table_pages_max, whole))
                    @if run.stale_window_us_max.is_none() { td { "∞" } } @else { (cell(run.stale_window_us_max, number)) }
                    (bound_cell(run))
                    (cell(run.stale_accesses, whole))
                }
            }
        }
    };
    html! {
        (scrolled("All numbers", &table))
        @for run in runs {
            @if let Some(error) = &run.error {
                p { "No result for " code { (run.design.label()) } " " (run.protection.name()) ": " (error) }
            }
        }
    }
}

/// The first two cells of a run. Linux as it is says so.
fn design_cells_of(run: &Run) -> Markup {
    if !run.is_linux() {
        return design_cells(&run.design, run.protection);
    }
    html! {
        th.word scope="row" { (run.design.label()) " (Linux)" }
        (protection_cell(run.protection))
    }
}

/// Without translation, zero means that there is nothing to count.
fn unless_nothing(run: &Run, value: Option<f64>) -> Option<f64> {
    value.filter(|value| run.protection != Protection::None || *value != 0.0)
}

fn bound_cell(run: &Run) -> Markup {
    match (run.bound_us, run.grace_us) {
        _ if run.unbounded() => html! { td { "none" } },
        (Some(bound_us), Some(grace_us)) if run.protection == Protection::Deferred => html! {
            td { (shown(bound_us, &number(bound_us))) " + " (shown(grace_us, &number(grace_us))) }
        },
        (bound_us, _) => cell(bound_us, number),
    }
}

pub(super) fn misses_table(runs: &[&Run]) -> Markup {
    let table = html! {
        thead {
            tr {
                th.word scope="col" { "design" } th.word scope="col" { "protection" }
                @for (name, _, _) in picture::LEVELS { th scope="col" { (name) } }
                th scope="col" { "reads of memory" }
            }
        }
        tbody {
            @for run in runs.iter().filter(|run| run.memory_reads_per_page.is_some_and(|reads| reads > 0.0)) {
                tr {
                    (design_cells(&run.design, run.protection))
                    @for (_, _, misses) in picture::LEVELS { (cell(misses(run), number)) }
                    (cell(run.memory_reads_per_page, number))
                }
            }
        }
    };
    html! { details { summary { "Misses per page in numbers" } (scrolled("Misses per page", &table)) } }
}

pub(super) fn columns() -> Markup {
    let meanings = [
        (
            "of none, Gb/s or kIO/s, limit",
            "an estimate at full speed: its share of the rate without protection, the rate, and what limits it (CPUs, bus, link, disks, the invalidation queue or a lock); \
             ranges if the lengths of buffers, or how full the received ones were, are not known",
        ),
        (
            "CPU % as recorded",
            "the CPU time of protection, in percent of one core, at the speed at which the work was recorded",
        ),
        ("cycles/page", "CPU cycles of maps, unmaps and flushes, including waits, per mapped page"),
        (
            "IOTLB, L3 misses/p",
            "device accesses per page that needed a walk, and walks that missed the cache of pointers to leaf tables",
        ),
        ("inval/page, tables max", "invalidation commands per page; the most table pages in use"),
        (
            "window µs seen, bound µs",
            "the longest time that an unmapped page was seen within the device’s reach; the design’s bound on how long an unmap waits \
             until the hardware is told, + what timers and the hardware may add",
        ),
        ("stale pages", "pages that were still within reach when handed back"),
    ];
    html! {
        details {
            summary { "What the columns say" }
            dl { @for (name, meaning) in meanings { dt { (name) } dd { (meaning) } } }
        }
    }
}
