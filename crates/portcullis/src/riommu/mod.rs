//! rIOMMU (ASPLOS'15): an IOMMU for rings, with a flat table and one cached entry for each ring. There is no such
//! hardware.
//!
//! This is the driver: a ring, the rings of a domain, and the mapper over them. A batch of unmaps is a burst, at whose
//! end each ring is invalidated once. What the hardware reads is in [`iommu::rings`](crate::iommu::rings).

mod entry_state;
mod mapper;
mod ring;
mod rings;

pub(crate) use mapper::ADDRESSING;
pub use mapper::RingMapper;
pub use rings::RINGS_MAX;
