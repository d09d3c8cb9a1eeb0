use super::{Prices, prices};
use crate::host::cpus;
use std::sync::OnceLock;

/// The clock does not matter here. It is for a machine on which nothing counts cycles.
fn measured() -> &'static Prices {
    static PRICES: OnceLock<Prices> = OnceLock::new();
    PRICES.get_or_init(|| prices(Some(3e9), || {}).expect("prices"))
}

#[test]
fn no_main_step_is_for_nothing() {
    let cycles = &measured().cycles;
    let price = |step: &str| cycles.get(step).copied().unwrap_or_else(|| panic!("no price of {step}: {cycles:?}"));
    for step in [
        "map",
        "unmap",
        "table_read",
        "table_write",
        "table_clear",
        "tree_insert",
        "tree_erase",
        "tree_find",
        "tree_search",
        "list_pop",
        "list_push",
        "lock",
        "window_take",
        "window_claim",
        "window_return",
        "copy_kib",
    ] {
        assert!(price(step) > 0.0, "{step}: {cycles:?}");
    }
    // Alone, these steps may hide behind each other.
    let chunk: f64 = ["chunk_take", "chunk_write", "chunk_find"].iter().filter_map(|step| cycles.get(step)).sum();
    assert!(chunk > 0.0, "{cycles:?}");
    assert_eq!(price("store_fence"), 0.0);
}

#[test]
fn a_line_goes_between_two_cores() {
    let cpus = cpus::available();
    let other = cpus::of_another_core(cpus[0], &cpus);
    match measured().cycles.get("line_transfer") {
        Some(cycles) => assert!(other.is_some() && *cycles > 0.0, "{cycles}"),
        None => assert_eq!(other, None),
    }
}
