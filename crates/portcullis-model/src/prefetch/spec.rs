//! The text form of a prefetcher: `markov:rows=256:slots=2:form=baseline:buffer=8`.

use super::adjacent::{Adjacent, Direction};
use super::distance::Distance;
use super::markov::Markov;
use super::next::Next;
use super::recency::Recency;
use super::{Form, Prefetcher};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Default number of entries in the buffer.
const BUFFER: u32 = 16;
/// Default number of rows of a table, or pages of a stack.
const ROWS: u32 = 1024;
/// Default number of successors in a row.
const SLOTS: u32 = 2;
/// The largest size that is accepted.
const SIZE_MAX: u32 = 1 << 20;

const KINDS: &str = "none, adjacent, next, markov, recency, distance";

/// A prefetcher and its buffer. This is hypothetical hardware: no VT-d unit has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PrefetcherSpec {
    kind: Kind,
    buffer: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Predicts nothing. The buffer holds what the driver has prefetched.
    None,
    Adjacent(Direction),
    Next {
        depth: u32,
    },
    Markov {
        rows: u32,
        slots: u32,
        form: Form,
    },
    Recency {
        length: u32,
        form: Form,
    },
    Distance {
        rows: u32,
        slots: u32,
        form: Form,
    },
}

/// A prefetcher could not be parsed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PrefetcherError {
    /// There is no prefetcher of that name.
    #[error("there is no prefetcher `{0}`; there are: {KINDS}")]
    Unknown(String),
    /// The prefetcher has no such parameter.
    #[error("the prefetcher `{prefetcher}` has no parameter `{key}`; it has: {known}")]
    Parameter {
        /// The prefetcher.
        prefetcher: String,
        /// The parameter that was given.
        key: String,
        /// The parameters that exist, separated by commas.
        known: &'static str,
    },
    /// The value is not valid for that parameter.
    #[error("`{key}={value}` of the prefetcher `{prefetcher}`: expected {expected}")]
    Value {
        /// The prefetcher.
        prefetcher: String,
        /// The parameter.
        key: String,
        /// The value given.
        value: String,
        /// The expected value.
        expected: &'static str,
    },
}

impl PrefetcherSpec {
    /// A prefetcher that predicts nothing, whose buffer has 16 entries.
    pub const NONE: Self = Self { kind: Kind::None, buffer: BUFFER };

    /// Whether it never prefetches on its own.
    pub fn predicts_nothing(&self) -> bool {
        self.kind == Kind::None
    }

    /// The number of entries of its buffer.
    pub fn buffer(&self) -> usize {
        self.buffer as usize
    }

    /// A new prefetcher of this kind without history; none if it predicts nothing.
    pub(crate) fn build(&self) -> Option<Box<dyn Prefetcher>> {
        Some(match self.kind {
            Kind::None => return None,
            Kind::Adjacent(direction) => Box::new(Adjacent { direction }),
            Kind::Next { depth } => Box::new(Next { depth: depth.into() }),
            Kind::Markov { rows, slots, form } => Box::new(Markov::new(form, rows as usize, slots as usize)),
            Kind::Recency { length, form } => Box::new(Recency::new(form, length as usize)),
            Kind::Distance { rows, slots, form } => Box::new(Distance::new(form, rows as usize, slots as usize)),
        })
    }
}

impl FromStr for PrefetcherSpec {
    type Err = PrefetcherError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let mut spec = Self::NONE;
        spec.kind = match name {
            "none" => Kind::None,
            "adjacent" => Kind::Adjacent(Direction::Both),
            "next" => Kind::Next { depth: 1 },
            "markov" => Kind::Markov { rows: ROWS, slots: SLOTS, form: Form::Modified },
            "recency" => Kind::Recency { length: ROWS, form: Form::Modified },
            "distance" => Kind::Distance { rows: ROWS, slots: SLOTS, form: Form::Modified },
            _ => return Err(PrefetcherError::Unknown(name.to_owned())),
        };
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            spec.set(name, key, value)?;
        }
        Ok(spec)
    }
}

impl PrefetcherSpec {
    fn set(&mut self, name: &str, key: &str, value: &str) -> Result<(), PrefetcherError> {
        let refused = |expected| PrefetcherError::Value {
            prefetcher: name.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
            expected,
        };
        let size = || match value.parse() {
            Ok(size @ 1..=SIZE_MAX) => Ok(size),
            _ => Err(refused("a number from 1 to 1048576")),
        };
        match (key, &mut self.kind) {
            ("buffer", _) => self.buffer = size()?,
            ("depth", Kind::Next { depth }) => *depth = size()?,
            ("rows", Kind::Markov { rows, .. } | Kind::Distance { rows, .. }) => *rows = size()?,
            ("slots", Kind::Markov { slots, .. } | Kind::Distance { slots, .. }) => *slots = size()?,
            ("length", Kind::Recency { length, .. }) => *length = size()?,
            ("form", Kind::Markov { form, .. } | Kind::Recency { form, .. } | Kind::Distance { form, .. }) => {
                *form = match value {
                    "baseline" => Form::Baseline,
                    "modified" => Form::Modified,
                    _ => return Err(refused("baseline or modified")),
                }
            }
            ("direction", Kind::Adjacent(direction)) => {
                *direction = match value {
                    "both" => Direction::Both,
                    "up" => Direction::Up,
                    _ => return Err(refused("both or up")),
                }
            }
            (_, kind) => {
                let (prefetcher, key) = (name.to_owned(), key.to_owned());
                return Err(PrefetcherError::Parameter { prefetcher, key, known: kind.parameters() });
            }
        }
        Ok(())
    }
}

impl Kind {
    /// The parameters that can be set.
    const fn parameters(self) -> &'static str {
        match self {
            Self::None => "buffer",
            Self::Adjacent(_) => "direction, buffer",
            Self::Next { .. } => "depth, buffer",
            Self::Markov { .. } | Self::Distance { .. } => "rows, slots, form, buffer",
            Self::Recency { .. } => "length, form, buffer",
        }
    }
}

/// The text form, with every parameter.
impl fmt::Display for PrefetcherSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::None => write!(f, "none")?,
            Kind::Adjacent(Direction::Both) => write!(f, "adjacent:direction=both")?,
            Kind::Adjacent(Direction::Up) => write!(f, "adjacent:direction=up")?,
            Kind::Next { depth } => write!(f, "next:depth={depth}")?,
            Kind::Markov { rows, slots, form } => write!(f, "markov:rows={rows}:slots={slots}:form={form}")?,
            Kind::Recency { length, form } => write!(f, "recency:length={length}:form={form}")?,
            Kind::Distance { rows, slots, form } => write!(f, "distance:rows={rows}:slots={slots}:form={form}")?,
        }
        write!(f, ":buffer={}", self.buffer)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "baseline",
            Self::Modified => "modified",
        })
    }
}

impl TryFrom<String> for PrefetcherSpec {
    type Error = PrefetcherError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PrefetcherSpec> for String {
    fn from(spec: PrefetcherSpec) -> Self {
        spec.to_string()
    }
}
