//! A design with its parameters, as users write it: `eiovar:k=512`.

use super::DesignId;
use crate::design::{OptionError, Options};
use core::fmt;
use thiserror::Error;

/// A design and the parameters that it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Its parameters that differ from the defaults.
    pub design: DesignId,
    /// Its parameters, where they differ from the defaults.
    pub options: Options,
}

/// A choice that is not valid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ChoiceError<'t> {
    /// There is no design of this name.
    #[error("no design `{0}`; there are: {list}", list = Ids)]
    Unknown(&'t str),
    /// The design does not take this parameter, or not with this value.
    #[error("{0}: {1}")]
    Option(&'static str, OptionError<'t>),
}

impl Choice {
    /// Reads an id and the parameters after it: `id`, `id:key=value`, `id:flag`, `id:key=value:key=value`.
    ///
    /// # Errors
    /// A [`ChoiceError`].
    pub fn parse(text: &str) -> Result<Self, ChoiceError<'_>> {
        let (id, options) = text.split_once(':').map_or((text, None), |(id, options)| (id, Some(options)));
        let design = DesignId::by_id(id).ok_or(ChoiceError::Unknown(id))?;
        let info = design.info();
        let options = options.map_or(Ok(Options::NONE), |options| Options::parse(info.options, options));
        Ok(Self { design, options: options.map_err(|error| ChoiceError::Option(info.id, error))? })
    }
}

impl From<DesignId> for Choice {
    /// Chooses the design with its defaults.
    fn from(design: DesignId) -> Self {
        Self { design, options: Options::NONE }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.design.info().id, self.options)
    }
}

/// Lists the ids of all designs in a message.
struct Ids;

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, design) in DesignId::ALL.iter().enumerate() {
            write!(f, "{}{}", if number > 0 { ", " } else { "" }, design.info().id)?;
        }
        Ok(())
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
        let message = |text| Choice::parse(text).unwrap_err().to_string();
        assert_eq!(message("stick"), "no design `stick`; there are: ".to_string() + &Ids.to_string());
        assert_eq!(message("none:k=1"), "none: no parameter `k`; it takes no parameters");
        assert_eq!(message("eiovar:"), "eiovar: no parameter ``; expected k or queue");
        assert_eq!(message("eiovar:z=1"), "eiovar: no parameter `z`; expected k or queue");
        assert_eq!(message("eiovar:k=many"), "eiovar: `k=many`: expected a whole number from 0 to 4294967296");
        assert_eq!(message("eiovar:k"), "eiovar: `k=`: expected a whole number from 0 to 4294967296");
        assert_eq!(message("magazine:queue=two"), "magazine: `queue=two`: expected global or per-core");
        assert_eq!(message("eiovar:k=1:k=1"), "eiovar: `k` is given twice");
    }
}
