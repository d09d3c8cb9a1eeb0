//! Memory that the host provides page by page, as it is touched.

use portcullis::table::Frame;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::slice_from_raw_parts_mut;

/// `count` pages of zeros. The allocator takes memory of this size from the operating system, whose fresh pages are
/// zeros that cost nothing until they are touched. A `vec!` of atomics would touch them all.
pub(crate) fn frames(count: usize) -> Box<[Frame]> {
    if count == 0 {
        return Box::default();
    }
    let layout = Layout::array::<Frame>(count).expect("the memory has an address space");
    // SAFETY: the layout is not empty. It is that of the slice, whose entries are words that may be zero, and the box
    // is the only owner.
    unsafe {
        let frames = alloc_zeroed(layout).cast::<Frame>();
        if frames.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(slice_from_raw_parts_mut(frames, count))
    }
}

#[cfg(test)]
mod tests {
    use super::frames;

    #[test]
    fn all_entries_are_zero_and_can_be_stored() {
        let pages = frames(3);
        pages[2][511].store_bits(7);
        let bits: Vec<u64> = pages.iter().flatten().map(portcullis::table::Entry::load_bits).collect();
        assert_eq!((bits.len(), bits.iter().sum::<u64>(), bits[3 * 512 - 1]), (3 * 512, 7, 7));
        assert!(frames(0).is_empty());
    }
}
