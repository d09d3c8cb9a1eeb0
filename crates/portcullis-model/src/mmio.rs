//! The register block as a driver accesses it.

use crate::vtd::Vtd;
use portcullis_vtd::Mmio;
use std::sync::Arc;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Picoseconds since a fixed moment. Never goes back.
    fn now_ps(&self) -> u64;
}

impl<C: Clock + ?Sized> Clock for &C {
    fn now_ps(&self) -> u64 {
        (**self).now_ps()
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now_ps(&self) -> u64 {
        (**self).now_ps()
    }
}

/// The registers of a [`Vtd`]. Each access happens at the time that a clock shows.
pub struct ModelMmio<C: Clock> {
    vtd: Arc<Vtd>,
    clock: C,
}

impl<C: Clock> ModelMmio<C> {
    /// The registers of `vtd`.
    pub fn new(vtd: Arc<Vtd>, clock: C) -> Self {
        Self { vtd, clock }
    }

    /// The unit behind the registers.
    pub fn vtd(&self) -> &Arc<Vtd> {
        &self.vtd
    }
}

// SAFETY: these are the registers of one software unit. Its devices reach only the model's memory, which holds no
// Rust objects of the program.
unsafe impl<C: Clock> Mmio for ModelMmio<C> {
    fn read32(&self, offset: u32) -> u32 {
        self.vtd.read_register(self.clock.now_ps(), offset, 4) as u32
    }

    fn read64(&self, offset: u32) -> u64 {
        self.vtd.read_register(self.clock.now_ps(), offset, 8)
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.vtd.write_register(self.clock.now_ps(), offset, 4, value.into());
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.vtd.write_register(self.clock.now_ps(), offset, 8, value);
    }
}
