//! Linux's allocators: the tree of ranges; EiovaR's lists of freed ranges in it; magazines over it, since 4.7.

mod magazine;
mod range_tree;
mod tree;

pub use magazine::{DEPOT_MAGAZINES_MAX, MAGAZINE_CAPACITY, MagazineAllocator, Magazines};
pub use range_tree::{Node, Parked, RangeTree, may_ever_fit, new_node};
pub use tree::TreeAllocator;
