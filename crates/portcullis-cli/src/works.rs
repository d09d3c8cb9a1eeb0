//! The pieces of work of a run: captures, the devices of a capture, or a synthetic workload.

use crate::arguments::PlanArguments;
use crate::table::count;
use crate::{Failure, bundled};
use indicatif::ProgressBar;
use portcullis::Access;
use portcullis_sim::compare::{Device, Input};
use portcullis_sim::{Machine, PayloadRule, Replay, Traffic, Work};
use portcullis_trace::{AccessLog, Operation, Trace, TraceMapping};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The bundled trace to replay if none is given.
const DEFAULT_TRACE: &str = "q-e1000e-rx.strict.2cpu";

/// A device of a capture with fewer maps is too little to compare designs with.
const MAPS_MIN: u64 = 100;

/// What is one piece of work if a capture has several devices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    /// Each device: what limits one does not limit another.
    Devices,
    /// The capture: a malicious device also tries the addresses of the others.
    Captures,
}

/// A piece of work.
pub(crate) struct Piece {
    /// The file of a trace, or a workload with its parameters.
    pub(crate) name: String,
    /// The device whose work it is, if that is known.
    pub(crate) device: Option<Device>,
    /// Index into the inputs. `None` if it is synthetic.
    pub(crate) input: Option<usize>,
    pub(crate) work: Work,
}

impl Piece {
    /// The machine for this piece: if several disks run together, it has so many. Rates that the user has set are those
    /// of all of them.
    pub(crate) fn machine(&self, machine: Machine) -> Machine {
        let Work::Trace(Replay { trace, joined: None }) = &self.work else { return machine };
        let devices = trace.traced_devices();
        let disks = devices.iter().filter(|traced| !traced.device.is_empty() && traced.maps >= MAPS_MIN).count();
        let is_given = !machine.assumed.contains_key("disk_iops");
        if disks < 2 || is_given || self.work.traffic(&machine) == Traffic::Network {
            return machine;
        }
        Machine { disks: machine.disks.saturating_mul(disks as u32), ..machine }
    }
}

/// All pieces of work, and the captures from which they are.
pub(crate) struct Works {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) inputs: Vec<Input>,
}

impl Works {
    pub(crate) fn of(
        arguments: &PlanArguments,
        split: Split,
        machine: &Machine,
        bar: &ProgressBar,
    ) -> Result<Self, Failure> {
        if let Some(workload) = &arguments.workload {
            let work = synthetic(workload, arguments.halves)?;
            let piece = Piece { name: workload.clone(), device: None, input: None, work };
            return Ok(Self { pieces: vec![piece], inputs: Vec::new() });
        }
        let traces = read(arguments, bar)?;
        if arguments.accesses.is_some() && arguments.traces.len() != 1 {
            return Err(Failure::Input("--accesses belongs to one trace; give exactly one".to_owned()));
        }
        if arguments.rate.is_some() && traces.len() != 1 {
            return Err(Failure::Input("--rate belongs to one trace; give exactly one".to_owned()));
        }
        check_payload(arguments.payload, &traces)?;
        let mut works = Self { pieces: Vec::new(), inputs: Vec::new() };
        let mut has_device = arguments.device.is_none();
        for (file, trace) in traces {
            if trace.operations.is_empty() {
                let unmaps = count(trace.statistics.unmaps);
                return Err(Failure::Input(format!(
                    "{file}: expected at least one map to replay, found none and {unmaps} unmaps"
                )));
            }
            let joined = arguments.accesses.as_deref().map(|path| join(&trace, path)).transpose()?;
            let input = works.inputs.len();
            works.inputs.push(Input::new(file.clone(), &trace));
            let wanted = arguments.device.as_deref();
            let parts = match joined {
                // The log is one of all devices.
                Some(joined) => vec![(
                    only_device(&trace),
                    Work::Trace(Replay { trace: Arc::new(trace), joined: Some(Arc::new(joined)) }),
                )],
                None => parts(trace, wanted, split, machine),
            };
            let parts = match arguments.rate {
                // Without the device that is wanted, that is what is wrong.
                Some(rate) if !parts.is_empty() => received(parts, rate, machine, &file)?,
                _ => parts,
            };
            has_device |= !parts.is_empty();
            let piece = |(device, work)| Piece { name: file.clone(), device, input: Some(input), work };
            works.pieces.extend(parts.into_iter().map(piece));
        }
        if has_device { Ok(works) } else { Err(works.no_device(arguments.device.as_deref().unwrap_or_default())) }
    }

    fn no_device(&self, wanted: &str) -> Failure {
        let devices = self.inputs.iter().flat_map(|input| &input.devices).map(|traced| traced.device.as_str());
        let mut named: Vec<&str> = devices.filter(|device| !device.is_empty()).collect();
        named.sort_unstable();
        named.dedup();
        let there =
            if named.is_empty() { "no device, because it has no dma: events".to_owned() } else { named.join(", ") };
        Failure::Input(format!("--device {wanted}: expected a device of the capture, which has {there}"))
    }
}

/// The device of a capture that names only one. What no event gives to a device counts as its work.
fn only_device(trace: &Trace) -> Option<Device> {
    let mut named = trace.device_names.iter().filter(|name| !name.is_empty());
    let name = named.next().filter(|_| named.next().is_none())?.clone();
    Some(Device { name, active_share: None })
}

/// The pieces of a capture: that of the device that is wanted, or those of all its devices. Devices of one kind also
/// run together, because they share the CPUs and the unit. Of a mixture, no kind of device would be true.
fn parts(trace: Trace, wanted: Option<&str>, split: Split, machine: &Machine) -> Vec<(Option<Device>, Work)> {
    let whole = |trace| Work::Trace(Replay::of(Arc::new(trace)));
    let is_wanted = |name: &str| {
        // `3b:00.0` is short for `0000:3b:00.0`.
        wanted.is_none_or(|wanted| name == wanted || name.strip_prefix("0000:") == Some(wanted))
    };
    let only = only_device(&trace);
    if only.is_some() || wanted.is_none() && split == Split::Captures {
        let is_wanted = only.as_ref().is_none_or(|only| is_wanted(&only.name));
        return if is_wanted { vec![(only, whole(trace))] } else { Vec::new() };
    }
    let traced = trace.traced_devices();
    let is_large = |maps: u64| wanted.is_some() || maps >= MAPS_MIN;
    let is_part = |(_, name): &(usize, &String)| !name.is_empty() && is_wanted(name);
    let parts =
        trace.device_names.iter().enumerate().filter(is_part).filter(|(index, _)| is_large(traced[*index].maps));
    let part = |(index, name): (usize, &String)| {
        let part = trace.of_device(index as u16);
        let device = Device { name: name.clone(), active_share: Some(active_share(&part)) };
        (Some(device), whole(part))
    };
    let parts: Vec<_> = parts.map(part).collect();
    if wanted.is_some() {
        return parts;
    }
    let kinds: Vec<Traffic> = parts.iter().map(|(_, work)| work.traffic(machine)).collect();
    let is_of_one_kind = kinds.len() != 1 && kinds.windows(2).all(|pair| pair[0] == pair[1]);
    let together = is_of_one_kind.then(|| (None, whole(trace)));
    together.into_iter().chain(parts).collect()
}

/// The part of the time of a capture from the first to the last operation of a device.
fn active_share(part: &Trace) -> f64 {
    let at = |operation: Option<&Operation>| operation.map_or(0, |operation| operation.time_ns);
    let active_ns = at(part.operations.last()).saturating_sub(at(part.operations.first()));
    (active_ns as f64 / (part.statistics.span_us as f64 * 1e3).max(1.0)).min(1.0)
}

/// The one piece of a capture, whose network card received so many bits a second while it was made, or whose disk
/// served so many requests.
fn received(
    parts: Vec<(Option<Device>, Work)>,
    rate: f64,
    machine: &Machine,
    file: &str,
) -> Result<Vec<(Option<Device>, Work)>, Failure> {
    let refused = |expected: &str| Failure::Input(format!("--rate {rate}: expected {expected} ({file})"));
    let [(Some(device), Work::Trace(Replay { trace, .. }))] = parts.as_slice() else {
        return Err(refused("the work of one device that `dma:` events name; `--device` chooses one"));
    };
    let whole = Trace::clone(trace);
    let all = |each_second: f64| (each_second * whole.statistics.span_us as f64 / 1e6) as u64;
    let trace = match parts[0].1.traffic(machine) {
        Traffic::Network => {
            if let Some(gbps) = machine.link_gbps.filter(|gbps| rate > gbps * 1e9) {
                let most = format!("at most what the link carries, {gbps} Gb/s; `--set link_gbps=N` changes it");
                return Err(refused(&most));
            }
            let bytes = all(rate / 8.0);
            whole.with_received(bytes)
        }
        Traffic::Disk => {
            if let Some(iops) = machine.all_disk_iops().filter(|iops| rate > *iops) {
                let most =
                    format!("at most what the disks serve, {iops} requests a second; `--set disk_iops=N` changes it");
                return Err(refused(&most));
            }
            let requests = all(rate);
            whole.with_requests(requests)
        }
    };
    Ok(vec![(Some(device.clone()), Work::Trace(Replay::of(Arc::new(trace))))])
}

fn synthetic(workload: &str, halves: bool) -> Result<Work, Failure> {
    let mut work = Work::parse(workload).map_err(|error| Failure::Input(format!("--workload {workload}: {error}")))?;
    match &mut work {
        Work::Rings(rings) => rings.halves = halves,
        _ if halves => {
            return Err(Failure::Input(format!("--halves: expected --workload rings, but got {workload}")));
        }
        _ => {}
    }
    Ok(work)
}

/// The captures, each with its name.
fn read(arguments: &PlanArguments, bar: &ProgressBar) -> Result<Vec<(String, Trace)>, Failure> {
    if arguments.traces.is_empty() {
        let trace = bundled::read(DEFAULT_TRACE).map_err(Failure::input)?;
        return Ok(vec![(bundled::file_name(DEFAULT_TRACE), trace)]);
    }
    if arguments.inputs().filter(|path| is_standard_input(path)).count() > 1 {
        return Err(Failure::Input(
            "`-` appears twice; expected it once, because standard input can be read only once".to_owned(),
        ));
    }
    let mut traces = Vec::new();
    for path in &arguments.traces {
        let name = name_of(path);
        bar.set_message(format!("reading {name}"));
        bar.set_length(std::fs::metadata(path).map_or(0, |file| file.len()));
        let trace = match is_standard_input(path) {
            true => Trace::read_from(&name, io::stdin().lock(), |_| {}),
            false => Trace::read(path, |bytes| bar.set_position(bytes)),
        };
        traces.push((name, trace.map_err(Failure::input)?));
    }
    Ok(traces)
}

/// Refuses a payload that no buffer of the traces can hold.
fn check_payload(payload: Option<PayloadRule>, traces: &[(String, Trace)]) -> Result<(), Failure> {
    let Some(PayloadRule::Bytes(bytes)) = payload else { return Ok(()) };
    let written = |mapping: &&TraceMapping| mapping.access != Access::DeviceReads;
    let len = |trace: &Trace, mapping: &TraceMapping| trace.segments_of(mapping).iter().map(|one| one.len).sum::<u64>();
    let lens = traces.iter().flat_map(|(_, trace)| trace.mappings.iter().filter(written).map(|one| len(trace, one)));
    match lens.max() {
        Some(longest) if bytes > longest => Err(Failure::Input(format!(
            "--payload {bytes}: expected at most {}, the length of the longest buffer that a device may write",
            count(longest)
        ))),
        _ => Ok(()),
    }
}

/// Whether the path stands for standard input. A file named `-` can be given as `./-`.
fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

fn name_of(path: &Path) -> String {
    if is_standard_input(path) { "standard input".to_owned() } else { path.display().to_string() }
}

fn join(trace: &Trace, path: &Path) -> Result<portcullis_trace::Joined, Failure> {
    let name = name_of(path);
    let log = match is_standard_input(path) {
        true => AccessLog::read_from(&name, io::stdin().lock(), |_| {}),
        false => AccessLog::read(path, |_| {}),
    };
    let log = log.map_err(Failure::input)?;
    portcullis_trace::join(trace, &log).map_err(|error| Failure::Input(format!("{name}: {error}")))
}
