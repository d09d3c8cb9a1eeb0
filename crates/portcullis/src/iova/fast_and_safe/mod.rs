//! Fast & Safe's allocator: windows of neighbouring addresses, and what is known of each.

mod radix_tree;
mod window;
mod windows;

pub use windows::WindowAllocator;
