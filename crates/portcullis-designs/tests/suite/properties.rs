//! Runs the properties of the test kit on every design in the list of designs.

use portcullis_testkit::{Subject, properties};

#[test]
fn every_design_keeps_the_rules_and_breaks_those_it_declares() {
    properties::check(&Subject::listed());
}
