//! `portcullis machine`: this host as a machine.

mod describe;
mod host;
mod latency;
mod load;

pub(crate) use describe::machine;
