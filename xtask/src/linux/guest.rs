//! A machine that QEMU emulates, with an IOMMU. It boots a kernel, which runs a job.

use super::initramfs::Initramfs;
use super::kernel::Kernel;
use super::module::Modules;
use super::modules::Library;
use super::packages::Store;
use super::scenario::Scenario;
use super::scratch::Scratch;
use crate::failure::{Failure, tail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A fifth of a boot: the kernel tests its ciphers, and reads the certificates of those who sign its modules. Newer
/// kernels still test them while a job runs.
const QUICK: &str = " cryptomgr.notests initcall_blacklist=jent_mod_init,load_system_certificate_list";
/// A kernel that trusts its time stamp counter patches the clock of its scheduler while it boots. Every CPU executes
/// that code, at a breakpoint too if the emulator has seen one there (see [`Guest::boot`]).
const UNPATCHED_CLOCK: &str = " tsc=unstable";
/// How often a machine is booted until its job begins.
const BOOTS: usize = 4;
/// The line that `guest/init` prints before a job.
const BEGINS: &str = "JOB-BEGINS";
/// The line that it prints after a job. The exit status of the job follows it.
const DONE: &str = "JOB-DONE ";
/// Words that a kernel prints when something is wrong.
const COMPLAINTS: [&str; 5] = ["BUG:", "WARNING:", "Call Trace", "Kernel panic", "rcu: INFO"];

/// A machine that is ready to boot.
struct Guest<'a> {
    scenario: &'a Scenario,
    kernel: &'a Kernel,
    /// More arguments for QEMU.
    devices: Vec<String>,
    /// The kernel's modules that the job loads.
    modules: Vec<&'a str>,
    /// Files of this machine, each with its path in the guest.
    files: Vec<(&'static str, PathBuf)>,
    /// A script for its shell.
    job: String,
}

/// The output of a guest.
pub(crate) struct Transcript {
    pub(crate) lines: Vec<String>,
    /// The duration of the run.
    pub(crate) elapsed: Duration,
}

impl Scenario {
    /// Boots the machine, with the modules that were built for its kernel, and waits for the end of the job.
    pub(super) fn run(&self, store: &Store, kernel: &Kernel, built: Option<&Modules>) -> Result<Transcript, Failure> {
        let scratch = Scratch::new(store, &self.name)?;
        let mut files = self.files(&scratch, kernel)?;
        files.extend(built.into_iter().flat_map(Modules::files));
        let traffic = if self.has_traffic { "e1000e nvme" } else { "" };
        let assigned = self.variables.iter().map(|(name, value)| format!("{name}='{value}'\n"));
        let guest = Guest {
            scenario: self,
            kernel,
            devices: self.devices(&scratch)?,
            modules: self.modules.split_whitespace().chain(traffic.split_whitespace()).collect(),
            files,
            job: assigned.chain([self.job.clone()]).collect(),
        };
        guest.boot(store)
    }
}

impl Guest<'_> {
    /// Boots the machine and waits for the end of the job. The job must succeed, and the kernel must not complain.
    ///
    /// A machine that fails before its job begins is booted again, [`BOOTS`] times at most. A kernel patches its own
    /// code while it boots, and the emulator sometimes lets another CPU execute the breakpoint that stood there in the
    /// meantime.
    fn boot(&self, store: &Store) -> Result<Transcript, Failure> {
        for _ in 1..BOOTS {
            match self.run_once(store) {
                Err(failure @ Failure::Guest { has_begun: false, .. }) => {
                    println!("    {}: {failure}\n    its job has not begun; once more:", self.scenario.name);
                }
                ended => return ended,
            }
        }
        self.run_once(store)
    }

    fn run_once(&self, store: &Store) -> Result<Transcript, Failure> {
        let logs = store.folder.join("logs");
        fs::create_dir_all(&logs).map_err(Failure::file(&logs))?;
        let log = logs.join(format!("{}.log", self.scenario.name));
        let archive = logs.join(format!("{}.cpio", self.scenario.name));
        fs::write(&archive, self.initramfs()?).map_err(Failure::file(&archive))?;
        let console = File::create(&log).map_err(Failure::file(&log))?;
        let errors = console.try_clone().map_err(Failure::file(&log))?;
        let mut command = self.command(self.kernel.qemu(store)?, &archive);
        let begun = Instant::now();
        let machine = command.stdin(Stdio::null()).stdout(console).stderr(errors).spawn();
        let end = machine.and_then(|mut machine| wait(&mut machine, Duration::from_secs(self.scenario.limit_s)));
        let end = end.map_err(Failure::program(command.get_program().display()))?;
        let elapsed = begun.elapsed();
        let bytes = fs::read(&log).map_err(Failure::file(&log))?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
        let Some(reason) = self.wrong(end, &lines) else { return Ok(Transcript { lines, elapsed }) };
        let (name, console) = (self.scenario.name.to_owned(), tail(&text));
        let has_begun = has_begun(&lines, &self.scenario.allowed);
        Err(Failure::Guest { name, reason, has_begun, log, console })
    }

    fn initramfs(&self) -> Result<Vec<u8>, Failure> {
        let mut archive = Initramfs::new(&self.kernel.busybox, &self.job)?;
        archive.modules(&Library::read(self.kernel)?, &self.modules)?;
        for (name, file) in &self.files {
            archive.copy(name, file)?;
        }
        archive.finish()
    }

    fn command(&self, mut command: Command, initramfs: &Path) -> Command {
        if self.scenario.icount {
            command.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]);
        } else {
            command.args(["-accel", "tcg,thread=multi"]);
        }
        command.args(["-machine", "q35", "-cpu", "max", "-smp", &self.scenario.cpus.to_string()]);
        command.args(["-m", &self.scenario.memory_mib.to_string()]);
        if !self.scenario.iommu.is_empty() {
            command.args(["-device", &format!("intel-iommu,{}", self.scenario.iommu)]);
        }
        // QEMU exits when the guest panics.
        command.args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        command.arg("-kernel").arg(self.kernel.image()).arg("-initrd").arg(initramfs);
        // The kernel prints messages below the given level; warnings have level 4. The kernel's test of its timer
        // sometimes fails if the emulator shares a few CPUs with much other work.
        let mut append = format!("console=ttyS0 panic=1 loglevel=5 no_timer_check {}", self.scenario.append);
        append += QUICK;
        if !self.scenario.icount {
            append += UNPATCHED_CLOCK;
        }
        command.args(["-append", &append]);
        command.args(&self.devices);
        command
    }

    /// What is wrong with the way that a guest ended and with its output. `end` is `None` if the guest had to be
    /// stopped.
    fn wrong(&self, end: Option<ExitStatus>, lines: &[String]) -> Option<String> {
        if let Some(line) = lines.iter().find(|line| is_complaint(line, &self.scenario.allowed)) {
            return Some(format!("its kernel complains: {line}"));
        }
        let Some(status) = end else {
            return Some(format!("it has not ended after {} s", self.scenario.limit_s));
        };
        match job_status(lines) {
            Some("0") if status.success() => None,
            Some("0") => Some(format!("QEMU ended with {status}")),
            Some(other) => Some(format!("its job ended with {other}")),
            None => Some("its job has not ended".to_owned()),
        }
    }
}

/// Whether the job had begun when something went wrong. A kernel that has complained before has not booted well.
fn has_begun(lines: &[String], allowed: &[String]) -> bool {
    let before = lines.iter().take_while(|line| !line.contains(BEGINS));
    before.clone().count() < lines.len() && !before.into_iter().any(|line| is_complaint(line, allowed))
}

fn is_complaint(line: &str, allowed: &[String]) -> bool {
    COMPLAINTS.iter().any(|complaint| line.contains(complaint)) && !allowed.iter().any(|text| line.contains(text))
}

/// The exit status of the job, if it has ended. The kernel may have printed in front of it, on the same line.
fn job_status(lines: &[String]) -> Option<&str> {
    let end = lines.iter().rev().find_map(|line| line.split_once(DONE));
    end.and_then(|(_, status)| status.split_whitespace().next())
}

/// Waits for at most `limit`, and then stops the machine.
fn wait(machine: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if let Some(status) = machine.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(50));
    }
    machine.kill()?;
    machine.wait()?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::{has_begun, is_complaint, job_status, wait};
    use crate::fixture::lines;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn the_end_of_a_job_is_found() {
        assert_eq!(job_status(&lines("a\n[    1.2] noiseJOB-DONE 0\nreboot: Power down")), Some("0"));
        assert_eq!(job_status(&lines("JOB-DONE 3")), Some("3"));
        assert_eq!(job_status(&lines("JOB-DONE \n")), None);
        assert_eq!(job_status(&lines("JOB")), None);
    }

    #[test]
    fn complaints_are_found_unless_allowed() {
        let line = "[    3.1] WARNING: CPU: 0 PID: 60 at lib/x.c:3 f+0x1/0x2";
        assert!(is_complaint(line, &[]));
        assert!(is_complaint(line, &["lib/y.c".into()]));
        assert!(!is_complaint(line, &["lib/x.c:3".into()]));
        assert!(is_complaint("BUG: TASK stack guard page was hit", &[]));
        assert!(!is_complaint("e1000e: Copyright", &[]));
    }

    #[test]
    fn a_complaint_before_the_job_is_one_about_the_boot() {
        assert!(has_begun(&lines("boots\nJOB-BEGINS\nBUG: x"), &[]));
        assert!(!has_begun(&lines("BUG: x\nJOB-BEGINS\nBUG: y"), &[]));
        assert!(has_begun(&lines("BUG: x\nJOB-BEGINS\nJOB-DONE 1"), &["BUG: x".into()]));
        assert!(!has_begun(&lines("boots"), &[]));
    }

    #[test]
    fn what_does_not_end_is_stopped() {
        let begun = Instant::now();
        let mut endless = Command::new("sleep").arg("60").spawn().expect("a program of every system");
        assert!(wait(&mut endless, Duration::from_millis(100)).expect("ours to stop").is_none());
        let mut short = Command::new("true").spawn().expect("a program of every system");
        let end = wait(&mut short, Duration::from_secs(60)).expect("ours");
        assert!(end.is_some_and(|status| status.success()));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
