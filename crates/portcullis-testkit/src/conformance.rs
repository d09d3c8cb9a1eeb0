//! Runs a design's tables and invalidations through the VT-d driver: on the model, and on QEMU's VT-d if QEMU is
//! installed.

use portcullis::mapper::{Design, Info};
use portcullis_qemu::conformance::{Side, Straight, Verdict, Wired, WiredUnit, Wiring, of_design};
use portcullis_qemu::find_executable;
use std::sync::Arc;

/// Checks maps, unmaps and accesses of devices under each protection of the design. There is nothing to check, and the
/// function returns, if the design uses physical addresses or needs hardware that does not exist.
///
/// # Panics
/// If a device sees something that the rules do not allow, with the rule.
pub fn check<D: Design<Wired, WiredUnit>>() {
    let Info { id, .. } = D::INFO;
    let straight: Arc<dyn Wiring> = Arc::new(Straight);
    let mut sides = vec![Side::Model];
    match find_executable() {
        Some(_) => sides.push(Side::Qemu),
        None => println!("QEMU is not installed: {id} runs on the model only"),
    }
    for check in of_design::<D>() {
        for &side in &sides {
            if let Verdict::Fail(why) = check.run(side, &straight) {
                panic!("{id}, {} on {side}: {why}", check.name);
            }
        }
    }
}
