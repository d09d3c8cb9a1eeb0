//! macOS's allocator: buddy blocks below 4 GiB.

mod blocks;
mod buddy;

pub use buddy::{BUDDY_PAGES_MAX, BuddyAllocator};
