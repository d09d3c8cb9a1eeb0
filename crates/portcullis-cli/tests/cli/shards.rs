//! `figures --shard` and `--merge`: shards joined are the whole, and what does not fit together is refused.

use super::bad_input::refused;
use super::{portcullis, printed, program, text, written};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Figures that take few runs, fewer than there are shards.
const QUICK: [&str; 2] = ["eiovar-fig3", "eiovar-fig9"];

/// An empty folder for a test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// A file of `docs/sweep`.
fn of_sweep(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sweep").join(file)
}

/// A command that finds the program as `portcullis`, in `folder`.
fn shell(shell: &str, folder: &Path) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_portcullis")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(shell);
    command.current_dir(folder).env_remove("COLUMNS").env("PATH", format!("{}:{path}", program.display()));
    command
}

fn run(command: &mut Command) {
    let output = command.output().expect("the shell starts");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{command:?}");
}

/// What the shards in `folder` say joined.
fn joined(folder: &Path) -> String {
    let shards = (1..=8).map(|number| folder.join(format!("shards/{number}.jsonl")).display().to_string());
    let shards: Vec<String> = shards.collect();
    let shards: Vec<&str> = shards.iter().map(String::as_str).collect();
    printed(&[&["figures", "--merge"], &*shards].concat())
}

fn equals_the_whole(folder: &Path) {
    assert_eq!(joined(folder), printed(&[&["figures"], &QUICK[..]].concat()));
}

#[test]
fn an_array_of_slurm_makes_the_whole() {
    let folder = folder("slurm");
    let script = of_sweep("figures.sbatch");
    let commands = std::fs::read_to_string(&script).expect("the script");
    assert!(commands.contains("#SBATCH --array=1-8\n"));
    for task in 1..=8 {
        let mut command = shell("bash", &folder);
        command.env("SLURM_ARRAY_TASK_ID", task.to_string()).env("SLURM_ARRAY_TASK_COUNT", "8");
        run(command.arg(&script).args(QUICK));
    }
    equals_the_whole(&folder);
}

#[test]
fn an_indexed_job_of_kubernetes_makes_the_whole() {
    let folder = folder("kubernetes");
    let job = std::fs::read_to_string(of_sweep("figures-job.yaml")).expect("the job");
    for line in ["completionMode: Indexed\n", "completions: 8\n", "name: SHARDS\n              value: \"8\"\n"] {
        assert!(job.contains(line), "{line}");
    }
    // The block of the only argument: its lines are indented by 14.
    let block = job.split("- |\n").nth(1).expect("an argument");
    let lines = block.lines().map_while(|line| line.strip_prefix(&" ".repeat(14)));
    let commands = lines.collect::<Vec<_>>().join("\n");
    assert!(commands.contains("--shard"), "{commands}");
    for index in 0..8 {
        let mut command = shell("/bin/sh", &folder);
        command.env("JOB_COMPLETION_INDEX", index.to_string()).env("SHARDS", "8").env("FIGURES", QUICK.join(" "));
        run(command.args(["-c", &commands]));
    }
    equals_the_whole(&folder);
}

#[test]
fn a_figure_that_makes_its_own_runs_is_one_piece() {
    let shards = [1, 2].map(|number| {
        let shard = printed(&["figures", "riommu-cycles", "--shard", &format!("{number}/2")]);
        assert_eq!(shard.lines().count(), [2, 1][number - 1]);
        written(&format!("riommu-cycles-{number}.jsonl"), shard)
    });
    let whole = printed(&["figures", "riommu-cycles", "--json"]);
    assert_eq!(printed(&["figures", "--merge", &shards[1], &shards[0], "--json"]), whole);
}

/// Both halves of a figure with three runs. The first has two of them.
fn halves() -> [String; 2] {
    ["1/2", "2/2"].map(|share| printed(&["figures", "eiovar-fig9", "--shard", share]))
}

#[test]
fn joined_shards_can_be_checked_and_printed_as_json() {
    let [first, second] = halves();
    let files = [written("checked-1.jsonl", first), written("checked-2.jsonl", second)];
    let face = ["--check", "--json"];
    let whole = printed(&[&["figures", "eiovar-fig9"], &face[..]].concat());
    assert_eq!(printed(&[&["figures", "--merge", &files[0], &files[1]], &face[..]].concat()), whole);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let [first, second] = halves();
    let lines: Vec<&str> = first.lines().collect();
    let of_lines = |lines: &[&str]| lines.join("\n") + "\n";
    let good = written("half-2.jsonl", &second);
    let swapped = |from: &str, to: &str| {
        assert!(first.contains(from), "{from}");
        first.replacen(from, to, 1)
    };
    let build = lines[0].split("\"build\":\"").nth(1).and_then(|rest| rest.get(..16)).expect("a build");
    let of_other_figures = printed(&["figures", "eiovar-fig3", "--shard", "1/2"]);
    let of_other_whole = printed(&["figures", "eiovar-fig9", "--shard", "1/3"]);
    let cut = &first[..first.len() - 20];
    for (name, broken, reasons) in [
        ("version", swapped(env!("CARGO_PKG_VERSION"), "0.0.1"), &[":1: made by version \"0.0.1\""][..]),
        ("build", swapped(build, "0123456789abcdef"), &[":1: made by another build"]),
        ("schema", swapped("figures-shard/1", "figures-shard/2"), &[":1: expected the first line of a shard"]),
        ("empty", String::new(), &[":1: expected the first line of a shard"]),
        ("words", "no JSON\n".to_owned(), &[":1: expected the first line of a shard"]),
        ("key", swapped("\"full\":false,", ""), &[":1: ", "full"]),
        ("number", swapped("\"number\":1", "\"number\":3"), &[":1: there is no shard 3/2"]),
        ("none", swapped("\"number\":1,\"count\":2", "\"number\":0,\"count\":0"), &[":1: there is no shard 0/0"]),
        ("runs", swapped("\"runs\":3", "\"runs\":4"), &[":1: expected a share of the runs"]),
        ("unknown", swapped("eiovar-fig9", "eiovar-fig99"), &["half-2.jsonl:1: a shard of other figures"]),
        ("figures", of_other_figures, &["half-2.jsonl:1: a shard of other figures than"]),
        ("whole", of_other_whole, &["half-2.jsonl:1: a shard of other figures than"]),
        ("again", second.clone(), &["--merge: the shard 1/2 is missing"]),
        ("missing", of_lines(&lines[..2]), &["missing.jsonl: the run 2 is missing"]),
        ("twice", of_lines(&[lines[0], lines[1], lines[2], lines[1]]), &[":4: the run 0 is there twice"]),
        ("cut", cut.to_owned(), &[":3: expected a run in JSON, not cut off"]),
        ("nonsense", of_lines(&[lines[0], lines[1], "nonsense"]), &[":3: expected a run in JSON"]),
        ("foreign", swapped("\"run\":2", "\"run\":1"), &[":3: expected a run of the shard 1/2"]),
        ("beyond", swapped("\"run\":2", "\"run\":20"), &[":3: expected a run of the shard 1/2"]),
        ("other", swapped("eiovar:k=64", "eiovar:k=65"), &[":2: expected a run of the shard 1/2"]),
        ("result", swapped("\"rate\":", "\"speed\":"), &[":2: expected a run in JSON"]),
    ] {
        let broken = written(&format!("{name}.jsonl"), broken);
        refused(&["figures", "--merge", &broken, &good], reasons);
    }
    let first = written("half-1.jsonl", &first);
    refused(&["figures", "--merge", &first], &["--merge: the shard 2/2 is missing"]);
    refused(&["figures", "--merge", &first, &good, &good], &["half-2.jsonl", "are both the shard 2/2"]);
    refused(&["figures", "--merge", &first, "no-such.jsonl"], &["no-such.jsonl: "]);
    assert_eq!(portcullis(&["figures", "--merge", &good, &first]).status.code(), Some(0));
}

#[test]
fn a_share_is_from_one_to_the_number_of_shards() {
    for share in ["0/2", "3/2", "1", "1/0", "a/2", "1/2/3", "-1/2"] {
        refused(&["figures", "eiovar-fig9", &format!("--shard={share}")], &["such as 1/8"]);
    }
    for option in ["--list", "--check", "--json"] {
        refused(&["figures", "--shard", "1/2", option], &["--shard", option]);
    }
    refused(&["figures", "eiovar-fig9", "--merge", "shard.jsonl"], &["--merge"]);
    refused(&["figures", "--merge", "shard.jsonl", "--full"], &["--full"]);
    let output = program(&["figures", "eiovar-fig99", "--shard", "1/2"]).output().expect("the program starts");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
}
