//! Compiles the meter that all peers share.

fn main() {
    println!("cargo:rerun-if-changed=../meter.c");
    println!("cargo:rerun-if-changed=../meter.h");
    cc::Build::new().file("../meter.c").flag("-std=gnu11").opt_level(2).compile("meter");
    println!("cargo:rustc-link-lib=pthread");
}
