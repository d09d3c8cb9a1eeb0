//! Runs tests and kills them as soon as one test has failed, the run takes too long, or the next line of output
//! takes too long.

use crate::failure::Failure;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The largest address space of one process of a run. A flawed loop may fill a list without end.
const MEMORY_MAX: u64 = 8 << 30;

/// How long a run takes, or may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Times {
    pub(super) run: Duration,
    /// The longest time without a line of output.
    pub(super) silence: Duration,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Passed,
    /// The name is that of the failed test, if the run printed it before it ended.
    Failed(Option<String>),
    TimedOut,
}

/// Runs tests until all have passed, one has failed, or `limits` are exceeded. Also returns how long they took.
pub(super) fn watch(mut command: Command, limits: Times) -> Result<(Ended, Times), Failure> {
    let failure = |error| Failure::Program { program: "cargo".to_owned(), error };
    // A process group of its own lets cargo, the tests and the processes that they start be killed together.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failure)?;
    confine(&child, limits.run);
    let printed = lines(&mut child);
    let begun = Instant::now();
    let mut silence = Duration::ZERO;
    let early = loop {
        let silent_since = Instant::now();
        let line = printed.recv_timeout(limits.silence.min(limits.run.saturating_sub(begun.elapsed())));
        silence = silence.max(silent_since.elapsed());
        match line {
            Ok(line) => {
                if let Some(test) = failed(&line) {
                    break Some(Ended::Failed(Some(test.to_owned())));
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some(Ended::TimedOut),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if early.is_some() {
        // An error means that the processes have already ended.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    }
    let status = child.wait().map_err(failure)?;
    let ended = early.unwrap_or(if status.success() { Ended::Passed } else { Ended::Failed(None) });
    Ok((ended, Times { run: begun.elapsed(), silence }))
}

/// The name of the failed test, if the line reports one.
fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Sets limits that hold even if this program ends first. A kernel without them gives the same verdicts.
fn confine(child: &Child, limit: Duration) {
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let at_most = |value| Rlimit { current: Some(value), maximum: Some(value) };
    let pid = Some(Pid::from_child(child));
    let _ = prlimit(pid, Resource::As, at_most(MEMORY_MAX));
    let _ = prlimit(pid, Resource::Cpu, at_most((limit.as_secs() + 1) * cpus));
}

/// The output of the child, line by line. The channel closes when no process holds the other end of the pipe any
/// more.
fn lines(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    thread::spawn(move || {
        for line in stdout.split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::{Ended, Times, failed, watch};
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn shell_within(script: &str, limits: Times) -> (Ended, Times) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        watch(command, limits).expect("a shell")
    }

    fn shell(script: &str, run: Duration) -> Ended {
        shell_within(script, Times { run, silence: run }).0
    }

    #[test]
    fn a_line_names_the_test_that_failed() {
        assert_eq!(failed("test tables::a_table_leaves ... FAILED"), Some("tables::a_table_leaves"));
        assert_eq!(failed("test a - should panic ... FAILED"), Some("a - should panic"));
        for line in
            ["test a ... ok", "test result: FAILED. 1 passed; 1 failed", "FAILED", "test a ... FAILED to start", ""]
        {
            assert_eq!(failed(line), None, "{line}");
        }
    }

    #[test]
    fn the_first_failure_ends_the_run_and_all_that_it_has_started() {
        let begun = Instant::now();
        // The background process holds the pipe. If it were not killed too, the run would not end.
        let script = "echo 'test a ... ok'; sleep 600 & echo 'test b ... FAILED'; wait";
        assert_eq!(shell(script, Duration::from_secs(300)), Ended::Failed(Some("b".to_owned())));
        assert!(begun.elapsed() < Duration::from_secs(200));
    }

    #[test]
    fn a_run_that_takes_too_long_is_ended() {
        let begun = Instant::now();
        assert_eq!(shell("echo 'test a ... ok'; sleep 600", Duration::from_millis(100)), Ended::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(200));
    }

    #[test]
    fn a_run_that_is_silent_for_too_long_is_ended() {
        let limits = Times { run: Duration::from_secs(300), silence: Duration::from_millis(1500) };
        let script = "for test in a b c d; do sleep 0.5; echo \"test $test ... ok\"; done";
        let (ended, took) = shell_within(script, limits);
        assert_eq!(ended, Ended::Passed);
        assert!(took.run > limits.silence && took.silence < limits.silence, "{took:?}");
        assert_eq!(shell_within("echo 'test a ... ok'; sleep 600", limits).0, Ended::TimedOut);
    }

    #[test]
    fn a_run_that_ends_by_itself_says_how() {
        let limit = Duration::from_secs(300);
        assert_eq!(shell("echo 'test a ... ok'", limit), Ended::Passed);
        assert_eq!(shell("echo 'test a ... ok'; kill -ABRT $$", limit), Ended::Failed(None));
    }
}
