//! Linux's allocators: the tree of ranges; EiovaR's lists of freed ranges in it; magazines over it, since 4.7.

mod free_list;
mod magazine;
mod range_tree;
mod tree;

pub use free_list::FreeListAllocator;
pub(in crate::iova) use magazine::Magazines;
pub use magazine::{DEPOT_MAGAZINES_MAX, MAGAZINE_CAPACITY, MagazineAllocator};
pub(in crate::iova) use range_tree::{Node, RangeTree, may_ever_fit, new_node};
pub use tree::TreeAllocator;
