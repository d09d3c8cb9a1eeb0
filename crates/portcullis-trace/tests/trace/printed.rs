//! Prints the same events like each of the three programs, according to `traces/README.md` and the programs' sources.

/// A way to print a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Style {
    /// The kernel's text, without the flags of `irq-info`.
    FtraceWithoutFlags,
    /// `trace-cmd report`.
    TraceCmd,
    /// Newer versions of `trace-cmd report`, with flags.
    TraceCmdWithFlags,
    /// `trace-cmd report -l`.
    TraceCmdLatency,
    /// `trace-cmd report -t --ts-diff`.
    TraceCmdNanoseconds,
    /// `perf script`.
    Perf,
    /// `perf script` with `-F pid,tid,...,period --ns` and the call chains of `-g`.
    PerfWithChains,
}

/// All styles of trace-cmd and perf. The flag says whether a style shows interrupts.
pub(super) const STYLES: [(Style, bool); 6] = [
    (Style::TraceCmd, false),
    (Style::TraceCmdWithFlags, true),
    (Style::TraceCmdLatency, true),
    (Style::TraceCmdNanoseconds, false),
    (Style::Perf, false),
    (Style::PerfWithChains, false),
];

/// The columns of a line of ftrace.
struct Columns<'a> {
    task: &'a str,
    pid: &'a str,
    cpu: &'a str,
    flags: &'a str,
    time: &'a str,
    event: &'a str,
    text: &'a str,
}

impl<'a> Columns<'a> {
    fn of(line: &'a str) -> Self {
        let (who, rest) = line.split_once(" [").unwrap();
        let (task, pid) = who.trim().rsplit_once('-').unwrap();
        let (cpu, rest) = rest.split_once("] ").unwrap();
        let (flags, rest) = rest.split_once(' ').unwrap();
        let (time, rest) = rest.trim_start().split_once(": ").unwrap();
        let (event, text) = rest.split_once(':').unwrap();
        Self { task, pid, cpu, flags, time, event, text: text.trim() }
    }

    fn print(&self, style: Style) -> String {
        let Self { task, pid, cpu, flags, time, event, .. } = self;
        let own = self.text;
        // Lists in libtraceevent's form.
        let text = &bare_lists(own);
        let padded = format!("{event}: {:1$}{text}", "", 20usize.saturating_sub(event.len()));
        match style {
            Style::FtraceWithoutFlags => format!("{task:>16}-{pid:<7} [{cpu}] {time:>12}: {event}: {own}"),
            Style::TraceCmd => format!("{task:>16}-{pid:<5} [{cpu}] {time:>12}: {padded}"),
            Style::TraceCmdWithFlags => format!("{task:>16}-{pid:<5} [{cpu}] {flags} {time:>12}: {padded}"),
            Style::TraceCmdLatency => {
                let (task, cpu) = (&task[..task.len().min(8)], cpu.trim_start_matches('0'));
                let cpu = if cpu.is_empty() { "0" } else { cpu };
                format!("{task:>8}-{pid:<5} {cpu:>3}{flags} {time:>12}: {padded}")
            }
            Style::TraceCmdNanoseconds => {
                format!("{task:>16}-{pid:<5} [{cpu}] {time:>12}000: {:<8} {padded}", "(+10)")
            }
            Style::Perf => {
                format!("{:>16} {pid:>5} [{cpu}] {time:>12}: {}:{event}: {text}", comm(task), system(event))
            }
            Style::PerfWithChains => {
                let chain =
                    "\tffffffff816c1f40 iommu_map+0x10 ([kernel.kallsyms])\n\t           f8090 __GI___libc_open+0xd0";
                let (comm, system) = (comm(task), system(event));
                format!(
                    "{comm} {pid:>5}/{pid:<5} [{cpu}] {time:>12}000:          1 {system:>12}:{event}: {text}\n{chain}\n"
                )
            }
        }
    }
}

/// perf's name for the task.
fn comm(task: &str) -> &str {
    if task == "<idle>" { "swapper" } else { task }
}

fn system(event: &str) -> &'static str {
    match event {
        "map" | "unmap" => "iommu",
        _ if event.starts_with("dma_") => "dma",
        _ => "intel_iommu",
    }
}

/// Replaces `{0x1000,0x2000}` by `4096 8192`.
fn bare_lists(text: &str) -> String {
    let mut parts = text.split('{');
    let mut bare = parts.next().unwrap().to_owned();
    for part in parts {
        let (list, rest) = part.split_once('}').unwrap();
        let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap().to_string();
        bare += &list.split(',').map(number).collect::<Vec<_>>().join(" ");
        bare += rest;
    }
    bare
}

/// Prints the events of an ftrace capture in another style, below the header of the other program.
pub(super) fn printed(ftrace: &str, style: Style) -> String {
    let mut text = match style {
        Style::FtraceWithoutFlags => "# tracer: nop\n#\n",
        Style::Perf | Style::PerfWithChains => "# ========\n# captured on    : Sat Nov 21 12:24:22 2026\n#\n",
        _ => "version = 7\nCPU 1 is empty\ncpus=4\n",
    }
    .to_owned();
    for line in ftrace.lines().filter(|line| !line.starts_with(['#', 'C'])) {
        text += &Columns::of(line).print(style);
        text += "\n";
    }
    text
}
