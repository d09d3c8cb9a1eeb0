//! Allocators that a Rust user might otherwise choose for I/O virtual addresses, on the rings of `portcullis bench`.
//! They only hand out addresses: there is no table behind them, and nothing is invalidated.

mod allocators;
mod meter;
mod ring;

use allocators::{Bits, Buddies, Offsets, Pages, Ranges, VmAddresses};
use meter::Document;
use ring::Ring;
use std::sync::Arc;

/// Live buffers of one page.
const LIVE: usize = 1024;
/// Pages of a descriptor.
const DESCRIPTOR: u32 = 64;

/// Pairs of allocation and free in a sample.
struct Pairs {
    page: u64,
    descriptor: u64,
}

fn main() {
    let document = Document::begin();
    run(&document, "vm-allocator", VmAddresses::new, Pairs { page: 1000, descriptor: 1000 });
    run(&document, "offset-allocator", Offsets::new, Pairs { page: 200_000, descriptor: 200_000 });
    run(&document, "range-alloc", Ranges::new, Pairs { page: 200_000, descriptor: 200_000 });
    run(&document, "buddy_system_allocator", Buddies::new, Pairs { page: 200_000, descriptor: 200_000 });
    run(&document, "bitmap-allocator", Bits::new, Pairs { page: 200_000, descriptor: 5_000 });
}

/// None of the allocators supports several threads: two threads share one behind a lock, and a single thread uses it
/// directly.
fn run<A: Pages>(document: &Document, name: &str, new: fn() -> A, pairs: Pairs) {
    let mut ring = Ring::new(new(), LIVE, 1);
    document.measure(name, "page-1", &mut [&mut ring], pairs.page);
    ring::check(&[&ring]);

    let shared = Arc::new(spin::Mutex::new(new()));
    let mut here = Ring::new(Arc::clone(&shared), LIVE, 1);
    let mut there = Ring::new(shared, LIVE, 1);
    document.measure(name, "page-1", &mut [&mut here, &mut there], pairs.page / 4);
    ring::check(&[&here, &there]);

    let mut ring = Ring::new(new(), LIVE / 4, DESCRIPTOR);
    document.measure(name, "descriptor-64", &mut [&mut ring], pairs.descriptor);
    ring::check(&[&ring]);
}
