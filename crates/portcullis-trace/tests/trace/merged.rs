//! Two captures as one of the same host: its devices and its CPUs differ, and its time is the same.

/// A line of a capture without its time.
struct Event<'t> {
    /// On the clock of the capture, from its first event on.
    time_us: u64,
    task: String,
    cpu: u16,
    flags: &'t str,
    words: String,
}

/// The events of a capture. Those of `device` get another name, and those of other devices keep theirs.
fn events<'t>(text: &'t str, first_cpu: u16, [device, renamed]: [&str; 2]) -> Vec<Event<'t>> {
    let mut begun_us = None;
    let event = |line: &'t str| {
        let (before, rest) = line.split_once('[')?;
        let (task, pid) = before.trim().rsplit_once('-')?;
        let pid = pid.parse::<u32>().ok()?;
        // The idle task is one of every CPU.
        let pid = if pid == 0 { 0 } else { pid + 10_000 * u32::from(first_cpu) };
        let (cpu, rest) = rest.split_once(']')?;
        let (flags, rest) = rest.trim_start().split_once(' ')?;
        let (time, words) = rest.trim_start().split_once(": ")?;
        let (seconds, micros) = time.split_once('.')?;
        let time_us = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
        let begun_us = *begun_us.get_or_insert(time_us);
        let cpu = cpu.parse::<u16>().ok()? + first_cpu;
        Some(Event {
            time_us: time_us - begun_us,
            task: format!("{task}-{pid}"),
            cpu,
            flags,
            words: words.replace(device, renamed),
        })
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(event).collect()
}

/// The text of both captures. The CPUs of the second follow those of the first, of which there are `cpus`.
pub(crate) fn merged(first: (&str, [&str; 2]), second: (&str, [&str; 2]), cpus: u16) -> String {
    let mut all = events(first.0, 0, first.1);
    all.extend(events(second.0, cpus, second.1));
    // Stable: what happened at one time stays in order.
    all.sort_by_key(|event| event.time_us);
    let line = |Event { time_us, task, cpu, flags, words }: &Event<'_>| {
        let (seconds, micros) = (time_us / 1_000_000 + 1, time_us % 1_000_000);
        format!("{task:>16} [{cpu:03}] {flags} {seconds:5}.{micros:06}: {words}\n")
    };
    all.iter().map(line).collect()
}
