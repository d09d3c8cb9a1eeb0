//! Interfaces of others over a domain, as their adapters would be written: none knows a design, tries addresses until one fits, or has
//! bounce pages of its own, and none needs a lock to map or unmap. Where the trait has no value (virtio), the domain is a static, and a
//! lock guards that static alone.
#![cfg(not(loom))]

mod dma_api;
mod ffi;
mod machine;
mod virtio;
