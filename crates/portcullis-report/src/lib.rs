//! One self-contained page from a JSON document: the question, the answer, the picture, the numbers, what was assumed.
//!
//! A page is made from the document and nothing else, so that every number in it is in the JSON.
#![deny(missing_docs)]
#![deny(unsafe_code)]

/// The example of the README, compiled as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod attack;
mod compare;
mod document;
mod figures;
mod ink;
mod page;
mod picture;
mod runs;
mod totals;

pub use page::BEGINNING;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

/// Why there is no page.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReportError {
    /// Not a document that there are pages for.
    #[error("there is no page for documents of the schema `{0}`")]
    Schema(String),
    /// The document lacks something, or has something else in its place.
    #[error("the document is not as its schema says: {0}")]
    Document(#[from] serde_json::Error),
    /// The parts of the document do not belong together.
    #[error("the document contradicts itself: {0}")]
    Malformed(&'static str),
    /// A picture could not be drawn.
    #[error("a picture could not be drawn: {0}")]
    Picture(#[from] picture::DrawError),
}

/// The page for a document of `compare`, `attack` or `figures`, as HTML.
///
/// # Errors
/// [`ReportError`] for any other document, or one that is not as its schema says.
pub fn page(document: &Value) -> Result<String, ReportError> {
    match document["schema"].as_str() {
        Some("portcullis.compare/1") => compare::page(&Deserialize::deserialize(document)?),
        Some("portcullis.attack/1") => attack::page(&Deserialize::deserialize(document)?),
        Some("portcullis.figures/1") => figures::page(&Deserialize::deserialize(document)?),
        other => Err(ReportError::Schema(other.unwrap_or_default().to_owned())),
    }
}
