//! Fast & Safe's allocator: windows of neighbouring addresses, and a record of each window.

mod radix_tree;
mod window;
mod windows;

pub use windows::WindowAllocator;
