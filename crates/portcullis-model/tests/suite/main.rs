//! The model from the outside: through its registers, its memory and its devices.

mod common;
mod device;
mod driver;
mod invalidation;
mod nic;
mod prefetching;
mod queue;
mod rings;
mod translation;
