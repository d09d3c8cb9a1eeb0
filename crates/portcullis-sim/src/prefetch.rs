//! Prefetching as a user requests it: hardware that predicts, and a driver that announces what it has mapped.

use portcullis::Access;
use portcullis_model::{PrefetcherError, PrefetcherSpec};
use std::fmt;
use thiserror::Error;

/// The note beside every mention of hardware that does not exist.
pub const NO_SUCH_HARDWARE: &str = "no such hardware";

/// The mappings that the driver announces to the hardware for prefetching, after it has made them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MapHint {
    /// No mappings.
    #[default]
    Never,
    /// Mappings that the device reads, because it reads them soon.
    Reads,
    /// All mappings.
    All,
}

impl MapHint {
    pub(crate) fn covers(self, access: Access) -> bool {
        match self {
            Self::Never => false,
            Self::Reads => access == Access::DeviceReads,
            Self::All => true,
        }
    }
}

/// What the driver announces to the hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hints {
    /// The new mappings that it announces.
    pub map: MapHint,
    /// Whether it announces, before an unmap, that the device is done with the pages. Their entries are then evicted
    /// first.
    pub unmap: bool,
}

impl Hints {
    /// No hints.
    pub const NONE: Self = Self { map: MapHint::Never, unmap: false };
}

/// A prefetcher and the hints of the driver: `next:depth=1:buffer=16+map-hint=reads`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefetching {
    /// The prefetcher. `None` if it would have nothing to do.
    pub prefetcher: Option<PrefetcherSpec>,
    /// The hints of the driver.
    pub hints: Hints,
}

/// The text names no such prefetching.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PrefetchingError {
    /// The text before the first plus is not a prefetcher.
    #[error(transparent)]
    Prefetcher(#[from] PrefetcherError),
    /// The text after a plus is not a hint.
    #[error("`+{0}`: expected +map-hint=reads or +map-hint=all, or +unmap-hint")]
    Hint(String),
}

impl Prefetching {
    /// No prefetcher and no hints.
    pub const NONE: Self = Self { prefetcher: None, hints: Hints::NONE };

    /// Parses a prefetcher, and hints that each follow a plus.
    ///
    /// # Errors
    /// Returns a [`PrefetchingError`] that names the unknown part and what was expected.
    pub fn parse(text: &str) -> Result<Self, PrefetchingError> {
        let mut words = text.split('+');
        let prefetcher = words.next().unwrap_or_default().parse()?;
        let mut hints = Hints::NONE;
        for word in words {
            match word {
                "map-hint=reads" => hints.map = MapHint::Reads,
                "map-hint=all" => hints.map = MapHint::All,
                "unmap-hint" => hints.unmap = true,
                other => return Err(PrefetchingError::Hint(other.to_owned())),
            }
        }
        Ok(Self::of(Some(prefetcher), hints))
    }

    /// A prefetcher with its hints, or neither if the prefetcher would have nothing to do.
    pub fn of(prefetcher: Option<PrefetcherSpec>, hints: Hints) -> Self {
        match prefetcher.filter(|one| !one.predicts_nothing() || hints != Hints::NONE) {
            Some(prefetcher) => Self { prefetcher: Some(prefetcher), hints },
            None => Self::NONE,
        }
    }

    /// The form of the command line, with every parameter. `None` if there is no prefetcher.
    pub fn spec(&self) -> Option<String> {
        let prefetcher = self.prefetcher?;
        let map = match self.hints.map {
            MapHint::Never => "",
            MapHint::Reads => "+map-hint=reads",
            MapHint::All => "+map-hint=all",
        };
        let unmap = if self.hints.unmap { "+unmap-hint" } else { "" };
        Some(format!("{prefetcher}{map}{unmap}"))
    }
}

impl fmt::Display for Prefetching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.spec().as_deref().unwrap_or("none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        for text in [
            "adjacent:direction=up:buffer=4",
            "next:depth=3:buffer=16+map-hint=reads",
            "markov:rows=64:slots=4:form=baseline:buffer=8",
            "recency:length=9:form=modified:buffer=16",
            "distance:rows=32:slots=1:form=modified:buffer=16+map-hint=all",
            "none:buffer=4+map-hint=all",
            "adjacent:direction=both:buffer=4+map-hint=reads+unmap-hint",
            "none:buffer=16+unmap-hint",
            "none",
        ] {
            assert_eq!(Prefetching::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Prefetching::parse("next").unwrap().to_string(), "next:depth=1:buffer=16");
        assert_eq!(Prefetching::parse("none:buffer=4"), Ok(Prefetching::NONE), "nothing would ever be in it");
    }

    #[test]
    fn what_cannot_be_is_named_with_what_was_expected() {
        for (text, words) in [
            ("stride", ["`stride`", "none, adjacent, next, markov, recency, distance"]),
            ("next:rows=4", ["`rows`", "depth, buffer"]),
            ("markov:rows=0", ["`rows=0`", "from 1 to 1048576"]),
            ("recency:length=1048577", ["`length=1048577`", "from 1 to 1048576"]),
            ("distance:form=new", ["`form=new`", "baseline or modified"]),
            ("adjacent:direction=down", ["`direction=down`", "both or up"]),
            ("next:depth", ["`depth=`", "from 1 to 1048576"]),
            ("next+map-hint=writes", ["`+map-hint=writes`", "+map-hint=reads or +map-hint=all, or +unmap-hint"]),
        ] {
            let error = Prefetching::parse(text).expect_err(text).to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }
}
