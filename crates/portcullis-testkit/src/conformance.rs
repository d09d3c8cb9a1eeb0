//! A design's tables and invalidations, through the VT-d driver: on the model, and on QEMU's VT-d where there is a QEMU.

use portcullis::design::{Design, Info};
use portcullis_qemu::conformance::{Side, Straight, Verdict, Wired, WiredUnit, Wiring, of_design};
use portcullis_qemu::find_executable;
use std::sync::Arc;

/// Maps, unmaps and devices' accesses under each protection of the design. A design that has the addresses of memory themselves, or that wants
/// hardware that does not exist, has nothing to conform to here.
///
/// # Panics
/// If a device sees something else than specified, with the rule.
pub fn check<D: Design<Wired, WiredUnit>>() {
    let Info { id, .. } = D::INFO;
    let straight: Arc<dyn Wiring> = Arc::new(Straight);
    let mut sides = vec![Side::Model];
    match find_executable() {
        Some(_) => sides.push(Side::Qemu),
        None => println!("there is no QEMU: {id} goes through the model only"),
    }
    for check in of_design::<D>() {
        for &side in &sides {
            if let Verdict::Fail(why) = check.run(side, &straight) {
                panic!("{id}, {} on {side}: {why}", check.name);
            }
        }
    }
}
