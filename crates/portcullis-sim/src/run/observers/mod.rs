//! The observers that measure a run and never act: exposure, and residual bytes. The world does not know them by name.

mod exposure;
mod over_time;
mod residual;

pub(in crate::run) use exposure::Exposure;
pub(in crate::run) use residual::Residual;
