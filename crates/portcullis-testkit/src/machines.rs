//! Machines drawn at random.

use crate::checker::Machine;
use proptest::prelude::*;

/// A random machine. Those with few address bits run out of addresses (S13).
pub fn machine() -> impl Strategy<Value = Machine> {
    let address_bits = prop_oneof![2 => Just(48), 2 => Just(39), 3 => Just(32), 1 => Just(20), 1 => Just(14)];
    let address_mask_max = prop_oneof![4 => Just(Some(18)), 1 => Just(Some(2)), 1 => Just(None)];
    let flags = (any::<bool>(), prop::bool::weighted(0.2), any::<bool>(), any::<bool>());
    (address_bits, flags, address_mask_max).prop_map(
        |(address_bits, (coherent, caches_absent, large_leaves, slow), address_mask_max)| Machine {
            address_bits,
            coherent,
            caches_absent,
            large_leaves,
            address_mask_max,
            slow,
        },
    )
}
