//! `portcullis list`.

use crate::Failure;
use crate::arguments::{ListArguments, Listed};
use crate::table::plain;
use portcullis::design::OptionInfo;
use portcullis::designs::DesignId;
use portcullis_lab::{Machine, WORKLOADS, Work, WorkloadInfo};
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    designs: Option<Vec<DesignEntry>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    machines: Option<Vec<Machine>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workloads: Option<Vec<WorkloadEntry>>,
}

#[derive(Serialize)]
struct DesignEntry {
    id: &'static str,
    source: &'static str,
    allocator: &'static str,
    invalidation: &'static str,
    tables: &'static str,
    protections: Vec<&'static str>,
    breaches: Vec<BreachEntry>,
    batch: usize,
    options: Vec<OptionEntry>,
}

#[derive(Serialize)]
struct OptionEntry {
    key: &'static str,
    default: &'static str,
    expected: String,
    description: &'static str,
}

#[derive(Serialize)]
struct BreachEntry {
    protection: &'static str,
    rule: String,
    bound: &'static str,
}

#[derive(Serialize)]
struct WorkloadEntry {
    id: &'static str,
    description: &'static str,
    defaults: serde_json::Value,
}

pub(crate) fn list(arguments: &ListArguments, out: &mut impl Write) -> Result<(), Failure> {
    let wanted = |what| arguments.what.is_none_or(|only| only == what);
    let document = Document {
        schema: "portcullis.list/1",
        designs: wanted(Listed::Designs).then(designs),
        machines: wanted(Listed::Machines).then(Machine::all),
        workloads: wanted(Listed::Workloads).then(workloads),
    };
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document).map_err(Failure::input)?)?;
        return Ok(());
    }
    let mut parts = Vec::new();
    if let Some(designs) = &document.designs {
        parts.push(design_table(designs));
    }
    if let Some(machines) = &document.machines {
        let mut table = plain(&["machine", "what it is"], 2);
        for machine in machines {
            table.add_row([machine.id, machine.description]);
        }
        parts.push(table.trim_fmt());
    }
    if let Some(workloads) = &document.workloads {
        let mut table = plain(&["workload", "what it does"], 2);
        for workload in workloads {
            table.add_row([workload.id, workload.description]);
        }
        parts.push(table.trim_fmt());
    }
    writeln!(out, "{}", parts.join("\n\n"))?;
    Ok(())
}

fn designs() -> Vec<DesignEntry> {
    let option = |option: &OptionInfo| OptionEntry {
        key: option.key,
        default: option.default,
        expected: option.kind.to_string(),
        description: option.description,
    };
    let entry = |design: &DesignId| {
        let info = design.info();
        let breach = |breach: &portcullis::Breach| BreachEntry {
            protection: breach.protection.name(),
            rule: breach.rule.to_string(),
            bound: breach.bound,
        };
        DesignEntry {
            id: info.id,
            source: info.source,
            allocator: info.allocator,
            invalidation: info.invalidation,
            tables: info.tables,
            protections: info.protections.iter().map(|protection| protection.name()).collect(),
            breaches: info.breaches.iter().map(breach).collect(),
            batch: info.batch_default,
            options: info.options.iter().map(option).collect(),
        }
    };
    DesignId::ALL.iter().map(entry).collect()
}

fn design_table(designs: &[DesignEntry]) -> String {
    let mut table = plain(&["design", "from", "protections", "parameters", "gives up"], 5);
    for design in designs {
        let breaches: Vec<String> = design
            .breaches
            .iter()
            .map(|breach| format!("{} ({}): {}", breach.rule, breach.protection, breach.bound))
            .collect();
        let options = design.options.iter().map(|option| format!("{}={}", option.key, option.default));
        let options = options.collect::<Vec<_>>().join(", ");
        table.add_row([design.id, design.source, &design.protections.join(", "), &options, &breaches.join("; ")]);
    }
    table.trim_fmt()
}

fn workloads() -> Vec<WorkloadEntry> {
    let entry = |info: &WorkloadInfo| WorkloadEntry {
        id: info.id,
        description: info.description,
        defaults: Work::parse(info.id).map_or(serde_json::Value::Null, |work| work.parameters()),
    };
    WORKLOADS.iter().map(entry).collect()
}
