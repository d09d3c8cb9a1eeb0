//! `priced_pairs MACHINE.json DESIGN...` prints one line for each design: the cycles of a strict map and unmap of one
//! page, without the share of the hardware, according to the cost book of the machine. `cargo xtask bench --machine`
//! compares them with measured times.

use portcullis_designs::DesignId;
use portcullis_sim::{Machine, priced};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("expected: MACHINE.json DESIGN...")?;
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let machine: Machine = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    for name in arguments {
        let design = DesignId::ALL.iter().find(|design| design.info().id == name);
        let design = design.ok_or_else(|| format!("no design `{name}`"))?;
        println!("{name} {:.1}", priced::page_1(&machine, *design)?);
    }
    Ok(())
}
