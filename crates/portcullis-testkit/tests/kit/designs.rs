//! Designs of the library, through what a design from outside goes through. Properties and attack are in the tests of the crates that have the
//! designs and the malicious device.

use portcullis::designs::{DesignId, FastAndSafe, MacOs, Magazine, Portcullis};
use portcullis_testkit::{bench, conformance, replay};

#[test]
fn every_design_replays() {
    for &design in DesignId::ALL {
        replay::check(design.into());
    }
}

#[test]
fn they_conform() {
    // Not `kmalloc`, which asks its host for bytes: the host of the rigs lends table pages only.
    conformance::check::<Portcullis>();
    conformance::check::<FastAndSafe>();
    conformance::check::<MacOs>();
    conformance::check::<Magazine>();
}

#[test]
fn they_are_timed() {
    bench::check::<Portcullis>();
}
