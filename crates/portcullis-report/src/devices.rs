//! The devices of a capture that has several: what strict protection costs each of them.

use super::document::{Answer, Host, Input, Traffic};
use super::page::{cell, facts, heads, scrolled, whole};
use super::runs::range;
use maud::{Markup, html};
use portcullis_sim::number::{low_percent, number, percent};

/// The section of one capture.
pub(super) fn section(id: &str, input: &Input, host: &Host, answers: &[&Answer]) -> Markup {
    let maps = |maps: u64| cell(Some(maps as f64), whole);
    let table = html! {
        thead {
            tr {
                th.word scope="col" { "device" } th.word scope="col" { "rate with" br; "strict" }
                (heads(&["of\ntoday’s", "CPU % as\nrecorded", "with\nstrict", "limit", "maps"]))
                th.word scope="col" { "kind" }
            }
        }
        tbody {
            @for traced in &input.devices {
                @let answer = answers.iter().find(|answer| answer.device.as_deref() == Some(&traced.device));
                tr {
                    th.word scope="row" { @if traced.device.is_empty() { "no device named" } @else { (traced.device) } }
                    @match answer {
                        Some(answer) => {
                            td.word { (verdict(answer)) }
                            td { (rate(answer)) }
                            @for end in [0, 1] { (cell(answer.recorded_cpu_percent.map(|cpu| cpu[end]), number)) }
                            td { (answer.limit[1]) }
                            (maps(traced.maps))
                            td.word { @match answer.traffic { Traffic::Network => "network", Traffic::Disk => "disk" } }
                        }
                        None => {
                            td.word { "not run" } td { "–" } td { "–" } td { "–" } td { "–" }
                            (maps(traced.maps))
                            td.word { "–" }
                        }
                    }
                }
            }
            tr {
                @let together = answers.iter().find(|answer| answer.device.is_none());
                th.word scope="row" { "together" }
                td.word { @if let Some(answer) = together { (verdict(answer)) } }
                td { @if let Some(answer) = together { (rate(answer)) } }
                @for cpu in host.recorded_cpu_percent { (cell(Some(cpu), number)) }
                td { @if let Some(answer) = together { (answer.limit[1]) } }
                td {} td.word {}
            }
        }
    };
    html! {
        section id=(id) {
            h2 { (input.file) ": its devices" }
            (facts(input))
            (scrolled("The devices", &table))
            p.quiet {
                "Each device by itself, on the machine’s CPUs, at the load of the capture. What they take of the CPUs adds up; rates do not. Devices of one kind also run together, with the CPUs and the unit that they share. "
                "Where only some lose nothing of their rate: boot with " code { "iommu.strict=1" } ", and make the others lazy again by "
                code { "echo DMA-FQ > /sys/kernel/iommu_groups/N/type" } ", also while their drivers are bound (Linux 5.15 and later)."
            }
        }
    }
}

fn verdict(answer: &Answer) -> Markup {
    html! { @if answer.is_free { strong { "the same" } } @else { "falls" } }
}

fn rate(answer: &Answer) -> Markup {
    let [low, high] = answer.rate_vs_today_range;
    range(Some(low), high, low_percent, percent)
}
