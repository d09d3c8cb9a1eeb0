//! rIOMMU (ASPLOS'15): an IOMMU for rings, with a flat table and one cached entry for each ring. There is no such
//! hardware.
//!
//! The module [`format`](mod@format) has the structures that the hardware reads. It is for drivers and for hardware
//! implemented in software. The rest is the driver: a ring, the rings of a domain, and the mapper over them. A batch
//! of unmaps is a burst, at whose end each ring is invalidated once.

pub mod format;
mod mapper;
mod ring;
mod rings;

pub(crate) use mapper::ADDRESSING;
pub use mapper::RingMapper;
pub use rings::RINGS_MAX;
