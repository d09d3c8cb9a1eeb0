//! FreeBSD's allocator: a balanced tree of ranges whose nodes know the gaps.

mod avl;
mod gap_tree;

pub use gap_tree::GapTreeAllocator;
