//! No QEMU outlives the process or thread that started it.

use portcullis_qemu::{Accelerator, EXECUTABLE_VARIABLE, QemuMachine, QemuSetup};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Set for a test that is started again in a separate process: it starts QEMU there.
const CHILD: &str = "PORTCULLIS_TEST_CHILD";
/// The child prints this before the process id of its QEMU.
const ANNOUNCEMENT: &str = "qemu is process ";
/// The time limit for the kernel to end a process.
const END_MAX: Duration = Duration::from_secs(5);

fn machine() -> Arc<QemuMachine> {
    QemuMachine::start(QemuSetup::new(Accelerator::Stopped)).unwrap_or_else(|error| panic!("{error}"))
}

/// Whether a process runs. A process that has ended but was not waited for does not count: in a container, the first
/// process may not wait for the processes that it inherits.
fn runs(process: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    let state = stat.rsplit_once(')').expect("a name in parentheses").1.trim_start();
    !state.starts_with(['Z', 'X'])
}

/// A command that runs only the test called `name`, in a separate process.
fn alone(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(CHILD, name);
    command
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

#[test]
fn ends_when_dropped() {
    let machine = machine();
    let process = machine.process_id().unwrap();
    assert!(runs(process));
    let other = machine.clone();
    drop(machine);
    assert!(runs(process), "another owner still has the machine");
    drop(other);
    assert!(!std::fs::exists(format!("/proc/{process}")).unwrap(), "ended, and waited for");
}

#[test]
fn ends_when_its_owner_panics() {
    let (tell, told) = mpsc::channel();
    let owner = std::thread::spawn(move || {
        let machine = machine();
        tell.send(machine.process_id().unwrap()).unwrap();
        assert!(!runs(machine.process_id().unwrap()), "this thread is meant to panic");
    });
    let process = told.recv().unwrap();
    owner.join().unwrap_err();
    assert!(!std::fs::exists(format!("/proc/{process}")).unwrap(), "ended, and waited for");
}

#[test]
fn ends_when_its_parent_is_killed() {
    if is_child() {
        let machine = machine();
        println!("{ANNOUNCEMENT}{}", machine.process_id().unwrap());
        // Waits until it is killed, or until its parent has ended.
        let _ = std::io::stdin().read_line(&mut String::new());
        panic!("this process was not killed");
    }
    let mut parent =
        alone("ends_when_its_parent_is_killed").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines().map(Result::unwrap);
    let announced: Vec<String> = lines.filter(|line| line.contains(ANNOUNCEMENT)).take(1).collect();
    let running = announced.first().map(|line| {
        let process = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        (process, runs(process))
    });
    parent.kill().unwrap();
    parent.wait().unwrap();
    let (process, ran) = running.expect("the child starts a QEMU");
    assert!(ran, "QEMU, process {process}, runs");
    let killed = Instant::now();
    while runs(process) && killed.elapsed() < END_MAX {
        std::thread::sleep(Duration::from_millis(5));
    }
    if runs(process) {
        // Kills QEMU, so that the test leaves nothing behind but its failure.
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw).expect("the id of a process");
        kill_process(pid, Signal::KILL).unwrap();
        panic!("QEMU, process {process}, outlives its parent");
    }
}

/// A test without a QEMU fails, and says how to get one.
#[test]
fn is_asked_for_where_there_is_none() {
    if is_child() {
        machine();
        return;
    }
    let mut child = alone("is_asked_for_where_there_is_none");
    let output = child.env("PATH", "/nowhere").env_remove(EXECUTABLE_VARIABLE).output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{messages}");
    assert!(messages.contains("no qemu-system-x86_64 in PATH; install it"), "{messages}");
}
