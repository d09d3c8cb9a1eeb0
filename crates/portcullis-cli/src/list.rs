//! `portcullis list`.

use crate::Failure;
use crate::arguments::{ListArguments, Listed};
use crate::figures::{FigureInfo, table_of};
use crate::registry::{Known, Registry};
use crate::table::{Column, Layout, wrap_behind};
use portcullis::mapper::OptionInfo;
use portcullis_designs::Named;
use portcullis_sim::{Machine, ParameterInfo, SERVER_WORKLOADS, WORKLOADS, Work, WorkloadInfo};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    designs: Option<Vec<DesignEntry>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    machines: Option<Vec<Machine>>,
    /// What each value of a machine means that `--set` takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<BTreeMap<&'static str, &'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workloads: Option<Vec<WorkloadEntry>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    figures: Option<Vec<FigureInfo>>,
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
    description: String,
    defaults: serde_json::Value,
    parameters: Vec<ParameterInfo>,
}

pub(crate) fn list(arguments: &ListArguments, registry: &Registry, out: &mut impl Write) -> Result<(), Failure> {
    let wanted = |what| arguments.what.is_none_or(|only| only == what);
    let document = Document {
        schema: "portcullis.list/1",
        designs: wanted(Listed::Designs).then(|| designs(registry)),
        machines: wanted(Listed::Machines).then(Machine::all),
        values: wanted(Listed::Machines).then(|| Machine::explained(&Machine::all()).into_iter().collect()),
        workloads: wanted(Listed::Workloads).then(workloads),
        figures: wanted(Listed::Figures).then(FigureInfo::all),
    };
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document).map_err(Failure::input)?)?;
        return Ok(());
    }
    let mut parts = Vec::new();
    if let Some(designs) = &document.designs {
        parts.push(design_paragraphs(designs));
    }
    if let Some(machines) = &document.machines {
        parts.push(described("machine", "what it is", machines.iter().map(|one| (&*one.id, &*one.description))));
        parts.push(described(
            "--set",
            "what it means; prices are in core cycles",
            Machine::explained(machines).into_iter(),
        ));
    }
    if let Some(workloads) = &document.workloads {
        parts.push(workload_paragraphs(workloads));
    }
    if let Some(figures) = &document.figures {
        parts.push(table_of(figures));
    }
    writeln!(out, "{}", parts.join("\n\n"))?;
    Ok(())
}

/// A table of names and their meanings.
fn described<'a>(name: &str, meaning: &str, all: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let rows: Vec<Vec<String>> = all.map(|(id, description)| vec![id.to_owned(), description.to_owned()]).collect();
    Layout::of(&[name, meaning].map(Column::words), &rows).table(&rows)
}

fn designs(registry: &Registry) -> Vec<DesignEntry> {
    let option = |option: &OptionInfo| OptionEntry {
        key: option.key,
        default: option.default,
        expected: option.kind.to_string(),
        description: option.description,
    };
    let entry = |design: &Known| {
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
    registry.all().iter().map(entry).collect()
}

/// A fact of a paragraph, wrapped to several lines if it is long.
fn fact(name: &str, text: &str) -> String {
    wrap_behind(&format!("  {name:<13} "), &" ".repeat(16), text)
}

/// A paragraph for each design. It has a line for each fact in the JSON document.
fn design_paragraphs(designs: &[DesignEntry]) -> String {
    let paragraph = |design: &DesignEntry| {
        let parameter = |option: &OptionEntry| format!("{} = {}: {}", option.key, option.default, option.description);
        let breach = |breach: &BreachEntry| format!("{} under {}: {}", breach.rule, breach.protection, breach.bound);
        let mut facts = vec![
            ("from", design.source.to_owned()),
            ("protections", design.protections.join(", ")),
            ("addresses", design.allocator.to_owned()),
            ("invalidation", design.invalidation.to_owned()),
            ("table pages", design.tables.to_owned()),
        ];
        facts.extend(design.options.iter().map(|option| ("parameter", parameter(option))));
        facts.extend(design.breaches.iter().map(|one| ("gives up", breach(one))));
        let lines = facts.iter().map(|(name, text)| fact(name, text));
        std::iter::once(design.id.to_owned()).chain(lines).collect::<Vec<_>>().join("\n")
    };
    designs.iter().map(paragraph).collect::<Vec<_>>().join("\n\n")
}

fn workloads() -> Vec<WorkloadEntry> {
    let entry = |info: &WorkloadInfo| WorkloadEntry {
        id: info.id,
        description: info.description.to_owned(),
        defaults: Work::parse(info.id).map_or(serde_json::Value::Null, |work| work.parameters()),
        parameters: info.parameters(),
    };
    let of_servers = SERVER_WORKLOADS.iter().map(|(id, _, what)| WorkloadEntry {
        id,
        description: format!("for `simulate` only: {what}"),
        defaults: serde_json::Value::Null,
        parameters: Vec::new(),
    });
    WORKLOADS.iter().map(entry).chain(of_servers).collect()
}

/// A paragraph for each workload: what it does, and a line for each parameter.
fn workload_paragraphs(workloads: &[WorkloadEntry]) -> String {
    let paragraph = |workload: &WorkloadEntry| {
        let does = fact("does", &workload.description);
        let parameter = |one: &ParameterInfo| {
            let ParameterInfo { key, default, expected, description } = one;
            fact("parameter", &format!("{key} = {default}: {description}; {expected}"))
        };
        let lines = std::iter::once(does).chain(workload.parameters.iter().map(parameter));
        std::iter::once(workload.id.to_owned()).chain(lines).collect::<Vec<_>>().join("\n")
    };
    workloads.iter().map(paragraph).collect::<Vec<_>>().join("\n\n")
}
