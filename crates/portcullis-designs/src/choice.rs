//! A design with its parameters, as users write it: `eiovar:k=512`.

use super::DesignId;
use alloc::vec::Vec;
use core::fmt;
use portcullis::mapper::{Info, OptionError, Options};
use thiserror::Error;

/// A design that was chosen by name: one of this crate, or one that a program knows besides.
pub trait Named: Copy {
    /// The description of the design.
    fn info(self) -> &'static Info;
}

impl Named for DesignId {
    fn info(self) -> &'static Info {
        DesignId::info(self)
    }
}

/// A design and the parameters that it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice<D = DesignId> {
    /// The design.
    pub design: D,
    /// Its parameters, where they differ from the defaults.
    pub options: Options,
}

/// A choice that is not valid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ChoiceError<'t> {
    /// There is no design of this name.
    #[error("no design `{id}`; there are: {}", ids.join(", "))]
    Unknown {
        /// The name.
        id: &'t str,
        /// The names of all designs.
        ids: Vec<&'static str>,
    },
    /// The design does not take this parameter, or not with this value.
    #[error("{0}: {1}")]
    Option(&'static str, OptionError<'t>),
}

impl Choice {
    /// Reads a choice [among](Self::parse_among) the designs of this crate.
    ///
    /// # Errors
    /// [`ChoiceError::Unknown`] and [`ChoiceError::Option`].
    pub fn parse(text: &str) -> Result<Self, ChoiceError<'_>> {
        Self::parse_among(DesignId::ALL, text)
    }
}

impl<D: Named> Choice<D> {
    /// Reads an id and the parameters after it: `id`, `id:key=value`, `id:flag`, `id:key=value:key=value`.
    ///
    /// # Errors
    /// [`ChoiceError::Unknown`] and [`ChoiceError::Option`].
    pub fn parse_among<'t>(designs: &[D], text: &'t str) -> Result<Self, ChoiceError<'t>> {
        let (id, options) = text.split_once(':').map_or((text, None), |(id, options)| (id, Some(options)));
        let unknown = || ChoiceError::Unknown { id, ids: designs.iter().map(|design| design.info().id).collect() };
        let design = *designs.iter().find(|design| design.info().id == id).ok_or_else(unknown)?;
        let info = design.info();
        let options = options.map_or(Ok(Options::NONE), |options| Options::parse(info.options, options));
        Ok(Self { design, options: options.map_err(|error| ChoiceError::Option(info.id, error))? })
    }
}

impl<D: Named> From<D> for Choice<D> {
    /// Chooses the design with its defaults.
    fn from(design: D) -> Self {
        Self { design, options: Options::NONE }
    }
}

impl<D: Named> fmt::Display for Choice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.design.info().id, self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn reads_what_it_writes() {
        for text in ["stock", "eiovar:k=64", "eiovar:k=0:queue=per-core", "magazine:queue=global"] {
            assert_eq!(Choice::parse(text).map(|choice| choice.to_string()), Ok(text.to_string()));
        }
        assert_eq!(Choice::parse("eiovar:queue=per-core:k=1").unwrap().to_string(), "eiovar:k=1:queue=per-core");
        assert_eq!(Choice::parse("eiovar:queue=global:k=unbounded").unwrap().to_string(), "eiovar");
    }

    #[test]
    fn says_what_is_wrong() {
        let ids: Vec<_> = DesignId::ALL.iter().map(|design| design.info().id).collect();
        let message = |text| Choice::parse(text).unwrap_err().to_string();
        assert_eq!(message("stick"), "no design `stick`; there are: ".to_string() + &ids.join(", "));
        assert_eq!(message("none:k=1"), "none: no parameter `k`; it takes no parameters");
        assert_eq!(message("eiovar:"), "eiovar: no parameter ``; expected k or queue");
        assert_eq!(message("eiovar:z=1"), "eiovar: no parameter `z`; expected k or queue");
        assert_eq!(message("eiovar:k=many"), "eiovar: `k=many`: expected a whole number from 0 to 4294967296");
        assert_eq!(message("eiovar:k"), "eiovar: `k=`: expected a whole number from 0 to 4294967296");
        assert_eq!(message("magazine:queue=two"), "magazine: `queue=two`: expected global or per-core");
        assert_eq!(message("eiovar:k=1:k=1"), "eiovar: `k` is given twice");
    }
}
