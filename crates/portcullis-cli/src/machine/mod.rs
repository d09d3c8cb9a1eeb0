//! `portcullis machine`: this host as a machine.

mod describe;
mod host;
mod latency;

pub(crate) use describe::machine;
