//! The qtest protocol: one line out, one line back.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use thiserror::Error;

/// How long QEMU may take to answer a command.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// An error of the connection to QEMU.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QtestError {
    /// There is no QEMU.
    #[error("no qemu-system-x86_64 in PATH; install it (Debian: qemu-system-x86) or name one in PORTCULLIS_QEMU")]
    NoQemu,
    /// QEMU could not be started.
    #[error("QEMU could not be started: {0}")]
    Start(#[source] io::Error),
    /// QEMU has ended, or did not answer in time.
    #[error("QEMU does not answer `{command}`: {source}")]
    Silent {
        /// The command.
        command: String,
        /// The error of the socket.
        source: io::Error,
    },
    /// QEMU did not answer `OK`.
    #[error("QEMU answers `{answer}` to `{command}`")]
    Refused {
        /// The command.
        command: String,
        /// The answer.
        answer: String,
    },
}

/// One end of the socket. Commands are answered in order.
#[derive(Debug)]
pub struct Protocol {
    socket: BufReader<UnixStream>,
    line: String,
    commands: u64,
    /// Answers may be outstanding that were never read. The next command would receive one of them.
    lost: bool,
}

impl Protocol {
    pub(super) fn new(socket: UnixStream) -> Self {
        // A socket that does not support time limits still works. Then only the time limit of the test applies.
        let _ = socket.set_read_timeout(Some(ANSWER_MAX));
        Self { socket: BufReader::new(socket), line: String::new(), commands: 0, lost: false }
    }

    /// The socket.
    pub(super) fn socket(&self) -> &UnixStream {
        self.socket.get_ref()
    }

    /// The number of commands sent so far.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Sends a command and returns the words after `OK` in its answer.
    ///
    /// # Errors
    /// [`QtestError::Silent`], [`QtestError::Refused`].
    pub fn command(&mut self, command: &str) -> Result<&str, QtestError> {
        self.burst(command)
    }

    /// Sends several commands, one per line, at once, and returns the words of the last answer. That takes one
    /// exchange between both processes instead of one per command.
    ///
    /// # Errors
    /// As [`Protocol::command`]. After a refusal in the middle or a missing answer, the following answers are lost,
    /// and every further command is refused.
    pub fn burst(&mut self, commands: &str) -> Result<&str, QtestError> {
        let silent = |source| QtestError::Silent { command: commands.to_owned(), source };
        if core::mem::replace(&mut self.lost, true) {
            return Err(silent(io::ErrorKind::BrokenPipe.into()));
        }
        self.line.clear();
        self.line.push_str(commands);
        self.line.push('\n');
        self.socket.get_mut().write_all(self.line.as_bytes()).map_err(silent)?;
        let mut left = commands.lines().count();
        for command in commands.lines() {
            left -= 1;
            self.commands += 1;
            loop {
                self.line.clear();
                if self.socket.read_line(&mut self.line).map_err(silent)? == 0 {
                    return Err(silent(io::ErrorKind::UnexpectedEof.into()));
                }
                // Notices of interrupts may come between answers.
                if !self.line.starts_with("IRQ") {
                    break;
                }
            }
            if !self.line.starts_with("OK") {
                self.lost = left > 0;
                let answer = self.line.trim_end().to_owned();
                return Err(QtestError::Refused { command: command.to_owned(), answer });
            }
        }
        self.lost = false;
        Ok(self.line["OK".len()..].trim())
    }

    /// Reads from a physical address. `suffix` is `b`, `w`, `l` or `q` for 1, 2, 4 or 8 bytes.
    ///
    /// # Errors
    /// Those of [`Protocol::command`].
    pub fn read(&mut self, suffix: char, address: u64) -> Result<u64, QtestError> {
        let command = format!("read{suffix} {address:#x}");
        self.number(&command)
    }

    /// Writes to a physical address. `suffix` is as in [`read`](Protocol::read).
    ///
    /// # Errors
    /// Those of [`Protocol::command`].
    pub fn write(&mut self, suffix: char, address: u64, value: u64) -> Result<(), QtestError> {
        let mut command = String::with_capacity(48);
        write!(command, "write{suffix} {address:#x} {value:#x}").expect("a string takes all");
        self.command(&command).map(drop)
    }

    /// Reads 1, 2 or 4 bytes (`b`, `w`, `l`) from an I/O port.
    ///
    /// # Errors
    /// Those of [`Protocol::command`].
    pub fn port_in(&mut self, suffix: char, port: u16) -> Result<u64, QtestError> {
        let command = format!("in{suffix} {port:#x}");
        self.number(&command)
    }

    /// Writes 1, 2 or 4 bytes to an I/O port.
    ///
    /// # Errors
    /// Those of [`Protocol::command`].
    pub fn port_out(&mut self, suffix: char, port: u16, value: u64) -> Result<(), QtestError> {
        self.command(&format!("out{suffix} {port:#x} {value:#x}")).map(drop)
    }

    /// Sends several commands, one per line, at once, and returns the number that the last one reads.
    ///
    /// # Errors
    /// Those of [`Protocol::burst`].
    pub fn number(&mut self, commands: &str) -> Result<u64, QtestError> {
        let answer = self.burst(commands)?;
        let digits = answer.strip_prefix("0x").unwrap_or(answer);
        u64::from_str_radix(digits, 16)
            .map_err(|_| QtestError::Refused { command: commands.to_owned(), answer: answer.to_owned() })
    }
}
