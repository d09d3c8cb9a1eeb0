//! The traces that the program carries, so that it can show something without a file.

use portcullis_trace::{Trace, TraceError};
use std::io::Cursor;

macro_rules! bundled {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../traces/", $name, ".trace.xz")))),*]
    };
}

/// The traces by name, without the file name ending.
const BUNDLED: &[(&str, &[u8])] = bundled![
    "q-e1000e-rx.strict.2cpu",
    "nvme-seqread128k.strict.4cpu",
    "e1000e-rx.strict.4cpu",
    "e1000e-tx.strict.4cpu",
];

/// The file name of a bundled trace.
pub(crate) fn file_name(name: &str) -> String {
    format!("{name}.trace.xz")
}

/// Reads a bundled trace.
///
/// # Errors
/// Fails like [`Trace::read_from`].
///
/// # Panics
/// Panics if there is no bundled trace of that name.
pub(crate) fn read(name: &str) -> Result<Trace, TraceError> {
    let bytes = BUNDLED.iter().find(|(bundled, _)| *bundled == name).map(|(_, bytes)| *bytes);
    Trace::read_from(&file_name(name), Cursor::new(bytes.expect("a bundled trace")), |_| {})
}
