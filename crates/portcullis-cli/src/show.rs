//! Shows the results of a run in every form that was asked for.

use crate::html::Target;
use crate::{Failure, verdict};
use serde::Serialize;
use std::io::{self, Write};

/// Writes the page if one was asked for, prints the document or the table, and reports failed checks. If one of these
/// steps fails, the others still run, because the run may have taken long.
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
