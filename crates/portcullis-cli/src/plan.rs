//! What the commands that run designs share: they turn the command line into a plan, and print what stands above its
//! results.

use crate::arguments::PlanArguments;
use crate::html::Origin;
use crate::registry::{Registry, in_the_lab};
use crate::table::{count, side_by_side, wrap};
use crate::works::{Split, Works};
use crate::{Failure, machine_file, nearest, stop};
use indicatif::{ProgressBar, ProgressStyle};
use portcullis::SubPage;
use portcullis_sim::compare::{ClockMode, ComparePlan, Input, Item, Settings};
use portcullis_sim::number::exact;
use portcullis_sim::prefetch::{Hints, NO_SUCH_HARDWARE, Prefetching};
use portcullis_sim::{Machine, MachineError, Traffic};
use portcullis_trace::{Events, TracedDevice};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};

/// A plan, and where it comes from.
pub(crate) struct Planned<'a> {
    arguments: &'a PlanArguments,
    pub(crate) plan: ComparePlan,
    /// The machine before any sweep.
    base: Base,
    /// For each item of the plan, the input whose work it is. `None` if the work is synthetic.
    input_of: Vec<Option<usize>>,
    /// The traces to replay; empty if the work is synthetic.
    inputs: Vec<Input>,
}

/// A machine, and where it comes from.
struct Base {
    machine: Machine,
    /// Whether the machine comes from a file.
    is_file: bool,
}

/// The beginning of every JSON document.
#[derive(Serialize)]
pub(crate) struct Head<'p> {
    #[serde(flatten)]
    origin: Origin,
    input: &'p [Input],
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<&'p str>,
    machine: &'p str,
    assumed: &'p Machine,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    set: &'p [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    sweep: &'p [String],
    clock: ClockMode,
    no_hint: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    merge: Option<u8>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    halves: bool,
    sub_page: SubPage,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
}

impl<'a> Planned<'a> {
    pub(crate) fn new(
        arguments: &'a PlanArguments,
        registry: &Registry,
        split: Split,
        bar: &ProgressBar,
    ) -> Result<Self, Failure> {
        let (base, variants) = variants(arguments)?;
        let designs = registry.designs(&arguments.designs)?.into_iter().map(in_the_lab).collect();
        let Works { pieces, inputs } = Works::of(arguments, split, &variants[0].machine, bar)?;
        let items = pieces.iter().flat_map(|piece| {
            let item = move |Variant { machine, set }: Variant| Item {
                name: piece.name.clone(),
                device: piece.device.clone(),
                work: piece.work.clone(),
                machine: piece.machine(machine),
                set,
            };
            variants.clone().into_iter().map(item)
        });
        let plan = ComparePlan {
            items: items.collect(),
            designs,
            protections: arguments.protection.clone(),
            batch: arguments.batch.map(usize::from),
            clock: arguments.clock,
            seed: arguments.seed,
            leaf_only_hint: !arguments.no_hint,
            merge_min: arguments.merge,
            hints: arguments.prefetch.map_or(Hints::NONE, |prefetching| prefetching.hints),
            sub_page: arguments.sub_page,
            payload: arguments.payload.unwrap_or_default(),
            is_stopped: stop::is_asked_for,
        };
        let input_of = pieces.iter().flat_map(|piece| vec![piece.input; variants.len()]).collect();
        Ok(Self { arguments, plan, base, input_of, inputs })
    }

    /// The messages of the check that something was tested. `tested` tells whether a piece of work has a result.
    pub(crate) fn untested(&self, tested: impl Fn(usize) -> bool) -> Vec<String> {
        let ComparePlan { items, protections, .. } = &self.plan;
        if self.plan.runs() == 0 {
            let protections: Vec<String> = protections.iter().map(ToString::to_string).collect();
            return vec![format!(
                "nothing was tested: none of these designs offers {} protection",
                protections.join(" or ")
            )];
        }
        let untested = items.iter().enumerate().filter(|(index, _)| !tested(*index));
        untested.map(|(_, item)| format!("nothing was tested because every run failed ({})", item.name)).collect()
    }

    /// The beginning of the document. `seed` is given if the results depend on it.
    pub(crate) fn head(&self, seed: Option<u64>) -> Head<'_> {
        Head {
            origin: Origin::of_this_run(),
            input: &self.inputs,
            workload: self.arguments.workload.as_deref(),
            machine: &self.base.machine.id,
            assumed: &self.base.machine,
            set: &self.arguments.settings,
            sweep: &self.arguments.sweeps,
            clock: self.plan.clock,
            no_hint: self.arguments.no_hint,
            merge: self.arguments.merge,
            halves: self.arguments.halves,
            sub_page: self.arguments.sub_page,
            seed,
        }
    }

    /// The captures of which each device was run by itself. There are none if one device was chosen, or if values are
    /// swept.
    pub(crate) fn split_inputs(&self) -> Vec<usize> {
        let is_one_run_of_all = self.arguments.sweeps.is_empty() && self.arguments.device.is_none();
        (0..self.inputs.len()).filter(|input| is_one_run_of_all && self.is_split(Some(*input))).collect()
    }

    /// The index of the input whose work an item is. `None` if the work is synthetic.
    pub(crate) fn input_of(&self, item: usize) -> Option<usize> {
        self.input_of[item]
    }

    /// The input whose work an item is.
    pub(crate) fn input(&self, item: usize) -> Option<&Input> {
        self.input_of[item].map(|input| &self.inputs[input])
    }

    /// Whether a capture is split into its devices.
    pub(crate) fn is_split(&self, input: Option<usize>) -> bool {
        let items = self.plan.items.iter().zip(&self.input_of);
        items.filter(|(_, of)| **of == input).any(|(item, _)| item.is_one_of_several())
    }

    /// The device whose work an item is, if its capture has several.
    fn part(&self, item: usize) -> Option<&TracedDevice> {
        let one = &self.plan.items[item];
        let name = &one.device.as_ref().filter(|_| one.is_one_of_several())?.name;
        self.input(item)?.devices.iter().find(|traced| traced.device == *name)
    }

    /// Prints the head of the results of an item: its work, the machine, and the changes to either.
    pub(crate) fn print_head(&self, out: &mut impl Write, item: usize) -> io::Result<()> {
        let plan = &self.plan;
        match self.input(item) {
            Some(input) => match self.part(item) {
                Some(traced) => print_part(out, input, traced)?,
                None if self.is_split(self.input_of[item]) => {
                    writeln!(out, "{}: all its devices together", input.file)?
                }
                None => print_input(out, input)?,
            },
            None => {
                let facts = [plan.items[item].name.clone(), format!("synthetic, seed {}", plan.seed)];
                writeln!(out, "{}", side_by_side(&facts, "   "))?;
            }
        }
        let Item { machine, set, .. } = &plan.items[item];
        let clock = match plan.clock {
            ClockMode::Model => "model clock: the work runs at full speed".to_owned(),
            ClockMode::Trace => "the trace's clock".to_owned(),
            ClockMode::Scale(factor) => format!("pauses × {}", exact(factor)),
        };
        let mut facts = match self.base.is_file {
            true => vec![format!("machine {}: {} (a file; {})", self.arguments.machine, machine.id, assumed(machine))],
            false => {
                vec![format!("machine {} (assumed)", machine.id), "costs from its cost book, not your CPU".to_owned()]
            }
        };
        facts.push(clock);
        facts.extend(words_of(set));
        let prefetching = Prefetching::of(machine.iommu.prefetcher, plan.hints);
        facts.extend(prefetching.spec().map(|spec| format!("prefetcher {spec} ({NO_SUCH_HARDWARE})")));
        facts.extend(plan.batch.map(|batch| format!("batches of {batch}")));
        if !plan.leaf_only_hint {
            facts.push("no invalidation hint".to_owned());
        }
        facts.extend(plan.merge_min.map(|cpus| format!("merged from {cpus} CPUs on")));
        if self.arguments.halves {
            facts.push("commits in two halves".to_owned());
        }
        match plan.sub_page {
            SubPage::Expose => {}
            SubPage::Refuse => facts.push("parts of pages refused".to_owned()),
            SubPage::Bounce => facts.push("parts of pages bounced".to_owned()),
        }
        writeln!(out, "{}\n", side_by_side(&facts, "   "))
    }
}

/// The changes to the hardware, in the form of the command line.
pub(crate) fn words_of(set: &Settings) -> Vec<String> {
    set.iter().map(|(key, value)| format!("{key}={}", word(value))).collect()
}

pub(crate) fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template");
    // The bar hides itself if standard error is no terminal.
    ProgressBar::new(0).with_style(style)
}

/// How many values of a machine are assumed.
fn assumed(machine: &Machine) -> String {
    match machine.assumed.len() {
        0 => "none of its values is assumed".to_owned(),
        1 => "1 of its values is assumed".to_owned(),
        several => format!("{several} of its values are assumed"),
    }
}

/// A value as it is written on the command line.
fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A machine, and what was changed about it.
#[derive(Clone)]
pub(crate) struct Variant {
    pub(crate) machine: Machine,
    set: Settings,
}

impl Variant {
    /// A machine with the `KEY=VALUE` of `--set`, each key once.
    pub(crate) fn with(machine: Machine, settings: &[String]) -> Result<Self, Failure> {
        let mut variant = Self { machine, set: Settings::new() };
        for setting in settings {
            let (key, value) = setting
                .split_once('=')
                .ok_or_else(|| Failure::Input(format!("--set {setting}: expected KEY=VALUE")))?;
            if variant.set.contains_key(key) {
                return Err(Failure::Input(format!(
                    "--set {setting}: expected each parameter once, but `{key}` is set twice"
                )));
            }
            variant.set(key, value)?;
        }
        Ok(variant)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        self.machine.set(key, value).map_err(|error| match error {
            MachineError::Unknown { .. } => {
                let known = Machine::explained(std::slice::from_ref(&self.machine));
                match nearest::tip(key, known.into_iter().map(|(key, _)| key)).as_str() {
                    "" => Failure::Input(format!("{error}; `list machines` explains them")),
                    tip => Failure::Input(format!("a machine has no value `{key}`{tip} `list machines` explains all")),
                }
            }
            _ => Failure::input(error),
        })?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        self.set.insert(key.to_owned(), value);
        Ok(())
    }

    /// Checks that such a machine can exist. This runs after everything is set, so that the order of the options does
    /// not matter.
    fn check(&self) -> Result<(), Failure> {
        let values: Vec<String> = self.set.iter().map(|(key, value)| format!("{key}={}", word(value))).collect();
        self.machine.check().map_err(|error| Failure::Input(format!("{}: {error}", values.join(", "))))
    }
}

/// The machine with its settings, once for each combination of swept values. The last sweep changes fastest.
fn variants(arguments: &PlanArguments) -> Result<(Base, Vec<Variant>), Failure> {
    let (mut machine, is_file) = machine_file::find(&arguments.machine)?;
    // A prefetcher in the machine file stays unless `--prefetch` asks for another one or for none.
    if let Some(prefetching) = arguments.prefetch {
        machine.iommu.prefetcher = prefetching.prefetcher;
    }
    let base = Variant::with(machine, &arguments.settings)?;
    let before = Base { machine: base.machine.clone(), is_file };
    let mut variants = vec![base];
    for sweep in &arguments.sweeps {
        let expected = |what: &str| Failure::Input(format!("--sweep {sweep}: expected {what}"));
        let (key, values) = sweep.split_once('=').ok_or_else(|| expected("KEY=A,B,C"))?;
        let values: Vec<&str> = values.split(',').collect();
        let twice = |(at, value): (usize, &&str)| values[..at].contains(value);
        if let Some((_, value)) = values.iter().enumerate().find(|&(at, value)| twice((at, value))) {
            return Err(expected(&format!("each value of `{key}` once, but `{value}` appears twice")));
        }
        if variants[0].set.contains_key(key) {
            return Err(expected(&format!("a parameter that is not set already, but `{key}` is")));
        }
        let swept = variants.iter().flat_map(|variant| values.iter().map(move |value| (variant, value)));
        variants = swept
            .map(|(variant, value)| {
                let mut variant = variant.clone();
                variant.set(key, value)?;
                Ok(variant)
            })
            .collect::<Result<_, Failure>>()?;
    }
    for Variant { machine, .. } in &mut variants {
        machine.only_traffic = arguments.traffic.or(machine.only_traffic);
        let missing = match machine.only_traffic {
            Some(Traffic::Disk) if machine.disk_iops.is_none() => "disks",
            Some(Traffic::Network) if machine.link_gbps.is_none() => "a link",
            _ => continue,
        };
        return Err(Failure::Input(format!(
            "--traffic: expected a machine with {missing}, and {} has none",
            machine.id
        )));
    }
    variants.iter().try_for_each(Variant::check)?;
    Ok((before, variants))
}

/// What is odd about a capture, and left out of the comparison.
fn oddities(input: &Input) -> Vec<String> {
    let s = &input.statistics;
    let of = |number: u64, one: &str, many: &str| format!("{} {}", count(number), if number == 1 { one } else { many });
    let at = |number: u64, line: u64| match number {
        1 => format!("line {line}"),
        _ => format!("the first on line {line}"),
    };
    let mut odd = Vec::new();
    if s.failed_maps > 0 {
        odd.push(format!("{} failed ({})", of(s.failed_maps, "map", "maps"), at(s.failed_maps, s.failed_map_line)));
    }
    if s.unmaps_of_nothing > 0 {
        let unmaps = of(s.unmaps_of_nothing, "unmap has", "unmaps have");
        odd.push(format!("{unmaps} nothing to unmap ({})", at(s.unmaps_of_nothing, s.unmap_of_nothing_line)));
    }
    if s.partial_unmaps > 0 {
        odd.push(format!("{} a part of a mapping", of(s.partial_unmaps, "unmap covers", "unmaps cover")));
    }
    const FAULTS_SHOWN: usize = 3;
    odd.extend(input.faults.iter().take(FAULTS_SHOWN).map(|fault| {
        let accesses = of(fault.accesses, "access", "accesses");
        let what = format!("the IOMMU refused {accesses} of {} from {:#x} on", fault.device, fault.first_iova);
        match (fault.mapped_pages, fault.unmapped_us_before) {
            (None, _) => format!("{what}; the capture shows no mapping there"),
            (Some(pages), None) => format!("{what}, in a live mapping of {}", of(u64::from(pages), "page", "pages")),
            (Some(pages), Some(us)) => {
                let pages = of(u64::from(pages), "page", "pages");
                format!("{what}: a mapping of {pages} that was unmapped {:.2} ms before", us / 1e3)
            }
        }
    }));
    let shown: u64 = input.faults.iter().take(FAULTS_SHOWN).map(|fault| fault.accesses).sum();
    if s.refused_accesses > shown {
        odd.push(format!("it refused {} in all", of(s.refused_accesses, "access", "accesses")));
    }
    odd
}

/// Prints what one of several devices of a capture has.
fn print_part(out: &mut impl Write, input: &Input, traced: &TracedDevice) -> io::Result<()> {
    let device = format!("{}: device {}", input.file, traced.device);
    let facts = [device, format!("{} maps", count(traced.maps)), format!("{} pages", count(traced.pages))];
    writeln!(out, "{}", side_by_side(&facts, "  "))
}

/// Prints what a capture has, and what is odd about it.
pub(crate) fn print_input(out: &mut impl Write, input: &Input) -> io::Result<()> {
    let s = &input.statistics;
    let mut facts = vec![input.file.clone()];
    facts.extend([format!("{} maps", count(s.maps)), format!("{} pages", count(s.pages)), format!("{} CPUs", s.cpus)]);
    facts.push(format!("{} unmaps precede the capture", count(s.unmatched_unmaps)));
    if s.unmapped_never > 0 {
        facts.push(format!("{} maps are never unmapped", count(s.unmapped_never)));
    }
    writeln!(out, "{}", side_by_side(&facts, "  "))?;
    let mut warn = |text: &str| writeln!(out, "{}", wrap(text));
    for odd in oddities(input) {
        warn(&odd)?;
    }
    if s.lost_events > 0 {
        warn(&format!("warning: the tracer lost {} events; their effects are missing here", count(s.lost_events)))?;
    }
    if s.out_of_order > 0 {
        warn(&format!("warning: {} events are older than the one before them on their CPU", count(s.out_of_order)))?;
    }
    match input.events {
        Events::Both => Ok(()),
        Events::Iommu => warn(
            "warning: without dma: events only pages are known, and neither devices nor lengths of buffers; shares are ranges",
        ),
        Events::Dma => warn("read from dma: events alone; coherent buffers are missing"),
    }
}
