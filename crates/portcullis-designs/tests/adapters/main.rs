//! Adapters of domains to interfaces of other crates. None of them knows a design, tries addresses until one fits, has
//! bounce pages of its own, or needs a lock to map or unmap. If a trait has no `self` (virtio), the domain is a static,
//! and a lock guards only that static.
#![cfg(not(loom))]

mod dma_api;
mod ffi;
mod machine;
mod virtio;
