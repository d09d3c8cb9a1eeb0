//! The pictures of a page, drawn by `plotters` as SVG.

mod attack;
mod canvas;
mod cost;
mod curves;
mod labels;
mod misses;
mod over_time;
mod reach;

pub(super) use attack::attack;
pub(super) use canvas::{DrawError, Form, tick};
pub(super) use cost::cost;
pub(super) use curves::{are_curves, curves};
pub(super) use misses::{LEVELS, misses};
pub(super) use over_time::over_time;
