//! Runs the test kit on the design.

portcullis_testkit::suite!(custom_design::Guarded);
