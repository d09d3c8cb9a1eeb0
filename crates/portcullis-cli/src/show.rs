//! What a run has found, shown in every face that was asked for.

use crate::html::Target;
use crate::{Failure, verdict};
use serde::Serialize;
use std::io::{self, Write};

/// Writes the page, if one was asked for; prints the document, or the table; and fails if checks have. A run may have taken long:
/// where one of these fails the others are done all the same.
pub(crate) fn show<W: Write>(
    out: &mut W,
    document: &impl Serialize,
    page: Option<&Target<'_>>,
    json: bool,
    table: impl FnOnce(&mut W) -> io::Result<()>,
    failed: &[String],
) -> Result<(), Failure> {
    let page = page.map_or(Ok(()), |target| target.write(document));
    let printed = if json { print(out, document) } else { table(out).map_err(Failure::Output) };
    Failure::of([verdict(failed), page, printed])
}

fn print(out: &mut impl Write, document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document).map_err(Failure::input)?;
    Ok(writeln!(out, "{text}")?)
}
