//! Tells the program the profile with which it is built, because timings name it.

use std::path::Path;
use std::{env, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    // `OUT_DIR` is `<target>/<profile>/build/<package>/out`. Cargo does not report the profile's name elsewhere.
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name).unwrap_or_default();
    println!("cargo::rustc-env=PORTCULLIS_PROFILE={}", profile.display());
    Ok(())
}
