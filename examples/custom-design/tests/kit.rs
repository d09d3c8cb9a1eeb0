//! The design goes through the test kit.

portcullis_testkit::suite!(custom_design::Guarded);
