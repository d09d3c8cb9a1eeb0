//! Runs the conformance suite on the model and on QEMU: `conformance [--list]`.
//!
//! Prints the failed checks and the counts; with `--list`, one line for every check. Exit status: 0 if all checks
//! passed, 1 if a check failed, 2 for wrong usage.

use portcullis_qemu::conformance::Report;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let list = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--list"] => true,
        _ => {
            eprintln!("usage: conformance [--list]");
            return ExitCode::from(2);
        }
    };
    let report = Report::make();
    let text = report.to_string();
    if list {
        println!("{text}");
    } else {
        let failed = report.lines.iter().filter(|line| line.failed());
        failed.for_each(|line| println!("{}: model: {}; QEMU: {}", line.check.name, line.model, line.qemu));
        println!("{}", text.lines().last().unwrap_or_default());
    }
    if report.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
