//! The model from outside: through its registers, its memory and its devices.

mod common;
mod device;
mod driver;
mod invalidation;
mod queue;
mod translation;
