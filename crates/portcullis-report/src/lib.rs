//! Makes one self-contained page from a JSON document: the question, the answer, the picture, the numbers, and the
//! assumptions.
//!
//! A page is made only from the document, so every number in it is in the JSON.
#![deny(missing_docs)]
#![deny(unsafe_code)]

/// The example of the README, compiled as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod attack;
mod compare;
mod devices;
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

/// Why a page could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReportError {
    /// There are no pages for documents of this schema.
    #[error("there is no page for documents of the schema `{0}`")]
    Schema(String),
    /// The document lacks something, or has a value of another type.
    #[error("the document is not as its schema says: {0}")]
    Document(#[from] serde_json::Error),
    /// The parts of the document contradict each other.
    #[error("the document contradicts itself: {0}")]
    Malformed(&'static str),
    /// A picture could not be drawn.
    #[error("a picture could not be drawn: {0}")]
    Picture(#[from] picture::DrawError),
}

/// The page for a document of `compare`, `attack` or `figures`, as HTML.
///
/// # Errors
/// Returns a [`ReportError`] for any other document, for one that does not follow its schema, and if a picture cannot
/// be drawn.
pub fn page(document: &Value) -> Result<String, ReportError> {
    match document["schema"].as_str() {
        Some("portcullis.compare/1") => compare::page(&Deserialize::deserialize(document)?),
        Some("portcullis.attack/1") => attack::page(&Deserialize::deserialize(document)?),
        Some("portcullis.figures/1") => figures::page(&Deserialize::deserialize(document)?),
        other => Err(ReportError::Schema(other.unwrap_or_default().to_owned())),
    }
}
