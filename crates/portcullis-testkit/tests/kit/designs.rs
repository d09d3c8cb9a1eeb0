//! Runs designs of the library through the kit, as a design of another crate would be. `properties` and `attack` run in
//! the tests of the crates that define the designs and the malicious device.

use portcullis_designs::{DesignId, FastAndSafe, MacOs, Magazine, Portcullis};
use portcullis_testkit::{bench, conformance, replay};

#[test]
fn every_design_replays() {
    for &design in DesignId::ALL {
        replay::check(design.into());
    }
}

#[test]
fn they_conform() {
    // Not `kmalloc`: it asks its host for bytes, and the host of the rigs lends table pages only.
    conformance::check::<Portcullis>();
    conformance::check::<FastAndSafe>();
    conformance::check::<MacOs>();
    conformance::check::<Magazine>();
}

#[test]
fn they_are_timed() {
    bench::check::<Portcullis>();
}
