//! `portcullis machine`, and `--machine FILE`: this host as a machine.

#[cfg(target_os = "linux")]
mod describe;
mod file;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod latency;

#[cfg(target_os = "linux")]
pub(crate) use describe::machine;
pub(crate) use file::find;
