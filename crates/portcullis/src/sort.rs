//! Sorting on a small stack. The sort of `core` is recursive and has stack frames of a kilobyte.

/// The distances between compared elements, one for each pass (Ciura, 2001).
const GAPS: [usize; 8] = [701, 301, 132, 57, 23, 10, 4, 1];

/// Sorts `values` by their keys with Shellsort. Intended for a batch or a few hundred ranges.
pub(crate) fn sort_by_key<T: Copy, K: Ord>(values: &mut [T], key: impl Fn(&T) -> K) {
    if values.is_sorted_by_key(&key) {
        return;
    }
    for gap in GAPS {
        for at in gap..values.len() {
            let value = values[at];
            let mut to = at;
            while to >= gap && key(&values[to - gap]) > key(&value) {
                values[to] = values[to - gap];
                to -= gap;
            }
            values[to] = value;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_sorted_is_in_order_and_all_there(mut values in prop::collection::vec(0..500u32, 0..2000)) {
            let mut expected: Vec<u32> = values.clone();
            expected.sort_unstable();
            sort_by_key(&mut values, |value| *value);
            prop_assert_eq!(values, expected);
        }
    }
}
