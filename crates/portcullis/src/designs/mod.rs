//! The design [`Portcullis`], the mechanism of Linux that others are compared with, and what no protection costs. One
//! file is one design; the file lists the files of a map and an unmap in reading order. The crate `portcullis-designs`
//! has the published designs, and the list of all.

mod identity_map;
mod magazine;
mod none;
mod portcullis;
mod queue;

pub use identity_map::Static;
pub use magazine::Magazine;
pub use none::Unprotected;
pub use portcullis::Portcullis;
pub use queue::{GLOBAL_WINDOW, PER_CPU_WINDOW, queue_kind, queue_option};
