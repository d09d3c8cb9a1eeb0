//! The summary of a capture of several devices: what strict protection costs each, and their host.

use crate::table::{Column, Layout, count, number, wrap};
use portcullis_sim::Traffic;
use portcullis_sim::advice::{Answer, Host};
use portcullis_sim::compare::Input;
use portcullis_sim::number::percent_range;
use portcullis_trace::TracedDevice;
use std::io::{self, Write};

/// Prints the devices of a capture of which each was run by itself.
pub(crate) fn print(out: &mut impl Write, input: &Input, host: &Host, answers: &[&Answer]) -> io::Result<()> {
    let columns = [
        Column::words("device"),
        Column::words("kind"),
        Column::words("rate with\nstrict"),
        Column::numbers("of\ntoday's"),
        Column::numbers("CPU % as recorded\ntoday"),
        Column::numbers("\nstrict"),
        Column::numbers("limit").worth(1),
        Column::numbers("maps").worth(2),
    ];
    let dash = || "-".to_owned();
    let row = |device: &TracedDevice| {
        let answer = answers.iter().find(|answer| answer.device.as_deref() == Some(&device.device));
        let name = if device.device.is_empty() { "no device named" } else { &device.device };
        let mut cells = vec![name.to_owned()];
        match answer {
            Some(answer) => cells.extend(of(answer)),
            None => cells.extend([dash(), "not run".to_owned(), dash(), dash(), dash(), dash()]),
        }
        cells.push(count(device.maps));
        cells
    };
    let mut rows: Vec<Vec<String>> = input.devices.iter().map(row).collect();
    let (blank, maps) = (String::new, input.devices.iter().map(|device| device.maps).sum());
    let [today, strict] = host.recorded_cpu_percent.map(number);
    // Devices of one kind were run together too.
    let [_, verdict, rate, .., limit] = match answers.iter().find(|answer| answer.device.is_none()) {
        Some(answer) => of(answer),
        None => [blank(), blank(), blank(), blank(), blank(), blank()],
    };
    rows.push(vec!["together".to_owned(), blank(), verdict, rate, today, strict, limit, count(maps)]);
    let layout = Layout::of(&columns, &rows);
    writeln!(out, "\nEach device by itself:\n{}", layout.table(&rows))?;
    let parts = || answers.iter().filter(|answer| answer.device.is_some());
    let free = parts().filter(|answer| answer.is_free).count();
    if (1..parts().count()).contains(&free) {
        writeln!(out, "{}", wrap(MIXED))?;
    }
    writeln!(out)
}

/// What to do if strict protection slows down some devices and not others.
const MIXED: &str = "Some lose nothing of their rate with strict. Boot with `iommu.strict=1`, and make the others lazy again: `echo DMA-FQ > \
                     /sys/kernel/iommu_groups/N/type`, also while their drivers are bound (Linux 5.15 and later).";

/// The cells between the name of a device and its maps.
fn of(answer: &Answer) -> [String; 6] {
    let kind = match answer.traffic {
        Traffic::Network => "network",
        Traffic::Disk => "disk",
    };
    let [today, strict] = match answer.recorded_cpu_percent {
        Some(cpu) => cpu.map(number),
        None => ["-", "-"].map(str::to_owned),
    };
    let [low, high] = answer.rate_vs_today_range;
    let verdict = if answer.is_free { "the same" } else { "falls" };
    let rate = percent_range(Some(low), high);
    [kind.to_owned(), verdict.to_owned(), rate, today, strict, answer.limit[1].name().to_owned()]
}
