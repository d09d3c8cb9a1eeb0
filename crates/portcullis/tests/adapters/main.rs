//! Interfaces of others over a domain, as their adapters would be written: none knows a design, tries addresses until one fits, or has
//! bounce pages or locks of its own.
#![cfg(not(loom))]

mod dma_api;
mod ffi;
mod machine;
mod virtio;
