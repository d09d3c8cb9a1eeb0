//! Makes a number of maps and unmaps: `pairs DESIGN PROTECTION WORKLOAD PAIRS`. It is for tools that count
//! instructions; `cargo xtask bench --check` runs it under one.

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use portcullis::Protection;
    use portcullis_bench::{Workload, repeat};
    use portcullis_designs::Choice;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [design, protection, workload, pairs] = &arguments[..] else {
        return Err("expected: DESIGN PROTECTION WORKLOAD PAIRS".into());
    };
    let choice = Choice::parse(design).map_err(|error| error.to_string())?;
    let offered = choice.design.info().protections.iter().copied();
    let protection = offered.into_iter().find(|offered: &Protection| offered.name() == protection);
    let protection = protection.ok_or("the design does not offer this protection")?;
    repeat(choice, protection, Workload::by_id(workload)?, pairs.parse()?)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("benchmarks need Linux");
}
