//! Tells the program with which profile it is built: what is timed says so.

use std::path::Path;
use std::{env, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    // `<target>/<profile>/build/<package>/out`; cargo says it nowhere else.
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name).unwrap_or_default();
    println!("cargo::rustc-env=PORTCULLIS_PROFILE={}", profile.display());
    Ok(())
}
