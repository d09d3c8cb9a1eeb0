//! The model from the outside: through its registers, its memory and its devices.

mod ceiling;
mod common;
mod device;
mod driver;
mod interrupts;
mod invalidation;
mod nic;
mod nic_joining;
mod nic_rings;
mod prefetching;
mod queue;
mod rings;
mod translation;
