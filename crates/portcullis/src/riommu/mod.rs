//! rIOMMU (ASPLOS'15): an IOMMU for rings, with a flat table and one cached entry for each. There is no such hardware.
//!
//! The module [`format`](mod@format) has what hardware reads, for drivers and for hardware that is software. The driver is the rest: a
//! ring, the rings of a domain, and the mapper over them, whose batch of unmaps is the burst at whose end a ring is invalidated once.

pub mod format;
mod mapper;
mod ring;
mod rings;

pub(crate) use mapper::ADDRESSING;
pub use mapper::RingMapper;
pub use rings::RINGS_MAX;
