//! What this program says of itself: its commands, and how much stack it allows.

use super::table;
use crate::Arguments;
use crate::frames::{BYTES_MAX, FAST_BYTES_MAX, FAST_DESIGN};
use crate::house::files::File;
use clap::{Arg, Command, CommandFactory};

/// The stack that `cargo xtask frames` allows.
pub(super) fn stack(_: &[File]) -> Result<String, String> {
    let rows = [
        [format!("map, unmap, commit and tick of `{FAST_DESIGN}`"), FAST_BYTES_MAX.to_string()],
        ["every other operation, of every design and of the driver".to_owned(), BYTES_MAX.to_string()],
    ];
    Ok(table("operation | bytes of stack at most", rows))
}

pub(super) fn commands(_: &[File]) -> Result<String, String> {
    let mut rows = Vec::new();
    list(&Arguments::command(), "cargo xtask", &mut rows);
    Ok(table("command | what it does | options, with their defaults", rows))
}

/// Adds the commands of `command`, which is called by `name`.
fn list(command: &Command, name: &str, rows: &mut Vec<[String; 3]>) {
    for command in command.get_subcommands() {
        let name = format!("{name} {}", command.get_name());
        if command.has_subcommands() {
            list(command, &name, rows);
            continue;
        }
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let options: Vec<String> = command.get_arguments().map(option).collect();
        rows.push([format!("`{name}`"), about, options.join(", ")]);
    }
}

/// An option as it is typed, and what its value is unless given.
fn option(argument: &Arg) -> String {
    let mut typed: Vec<String> = argument.get_long().map(|long| format!("--{long}")).into_iter().collect();
    if !argument.get_action().takes_values() {
        return format!("`{}`", typed.join(" "));
    }
    typed.extend(argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string));
    let defaults: Vec<_> = argument.get_default_values().iter().map(|one| one.to_string_lossy()).collect();
    let default = if defaults.is_empty() { String::new() } else { format!(" ({})", defaults.join(",")) };
    format!("`{}`{default}", typed.join(" "))
}

#[cfg(test)]
mod tests {
    use super::{commands, stack};

    #[test]
    fn commands_have_their_options_and_operations_their_limits() {
        let commands = commands(&[]).expect("a table");
        for row in [
            "| `cargo xtask fuzz` | ",
            "| `cargo xtask linux build` | ",
            "| `--seconds SECONDS` (1200), `--seed SEED` |",
            "| `--list` |",
            "`JOB`, `--series SERIES` (6.12)",
        ] {
            assert!(commands.contains(row), "{commands}");
        }
        let stack = stack(&[]).expect("a table");
        assert!(stack.contains(" of `portcullis` | 1280 |") && stack.ends_with(" | 2048 |"), "{stack}");
    }
}
