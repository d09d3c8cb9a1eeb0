//! The parameters of a design, as written after its id: `eiovar:k=512`, `freebsd:fixed`.

use core::fmt;
use core::ops::RangeInclusive;
use thiserror::Error;

/// The most parameters that one design takes.
const OPTIONS_MAX: usize = 8;

/// A parameter that a design takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionInfo {
    /// Its name.
    pub key: &'static str,
    /// The values that it accepts.
    pub kind: OptionKind,
    /// Its default value, in words.
    pub default: &'static str,
    /// What it does.
    pub description: &'static str,
}

/// The values that a parameter accepts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OptionKind {
    /// A whole number in this range.
    Count(RangeInclusive<u64>),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A flag that is given or not, with no value.
    Flag,
}

/// The value of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// A word.
    Word(&'static str),
    /// The flag was given.
    Flag,
}

/// The parameters that were given, in the order in which the design lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options([Option<(&'static str, Value)>; OPTIONS_MAX]);

/// A parameter that is not valid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum OptionError<'t> {
    /// The design has no parameter of this name.
    #[error("no parameter `{key}`{}", Keys(expected))]
    Unknown {
        /// What was given.
        key: &'t str,
        /// The parameters that the design has.
        expected: &'static [OptionInfo],
    },
    /// A value that the parameter does not accept.
    #[error("`{key}={value}`: expected {expected}")]
    Value {
        /// The parameter.
        key: &'static str,
        /// What was given.
        value: &'t str,
        /// The values that it accepts.
        expected: &'static OptionKind,
    },
    /// The parameter was given twice.
    #[error("`{0}` is given twice")]
    Twice(&'static str),
}

impl Options {
    /// All parameters at their defaults.
    pub const NONE: Self = Self([None; OPTIONS_MAX]);

    /// Reads `key=value:flag:key=value` for a design that takes `infos`. A parameter given at its default counts as
    /// not given.
    ///
    /// # Errors
    /// [`OptionError::Unknown`], [`OptionError::Value`] and [`OptionError::Twice`].
    ///
    /// # Panics
    /// If a design takes more than eight parameters.
    pub fn parse<'t>(infos: &'static [OptionInfo], text: &'t str) -> Result<Self, OptionError<'t>> {
        let mut options = Self::NONE;
        for pair in text.split(':') {
            let (key, value) = pair.split_once('=').map_or((pair, None), |(key, value)| (key, Some(value)));
            let index = infos.iter().position(|info| info.key == key);
            let index = index.ok_or(OptionError::Unknown { key, expected: infos })?;
            let info = &infos[index];
            if value == Some(info.default) && info.kind != OptionKind::Flag {
                continue;
            }
            let refused = OptionError::Value { key: info.key, value: value.unwrap_or(""), expected: &info.kind };
            let parsed = info.kind.parse(value).ok_or(refused)?;
            if options.0[index].replace((info.key, parsed)).is_some() {
                return Err(OptionError::Twice(info.key));
            }
        }
        Ok(options)
    }

    /// The number called `key`, if it was given.
    pub fn count(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Count(count) => Some(count),
            Value::Word(_) | Value::Flag => None,
        }
    }

    /// The word called `key`, if it was given.
    pub fn word(&self, key: &str) -> Option<&'static str> {
        match self.get(key)? {
            Value::Word(word) => Some(word),
            Value::Count(_) | Value::Flag => None,
        }
    }

    /// Whether the flag called `key` was given.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key) == Some(Value::Flag)
    }

    fn get(&self, key: &str) -> Option<Value> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The parameters that were given.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Value)> {
        self.0.iter().copied().flatten()
    }
}

impl OptionKind {
    fn parse(&'static self, text: Option<&str>) -> Option<Value> {
        match self {
            Self::Count(range) => text?.parse().ok().filter(|count| range.contains(count)).map(Value::Count),
            Self::Word(words) => words.iter().find(|word| Some(**word) == text).map(|word| Value::Word(word)),
            Self::Flag => text.is_none().then_some(Value::Flag),
        }
    }
}

impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(range) => write!(f, "a whole number from {} to {}", range.start(), range.end()),
            Self::Word(words) => list(f, words.iter().copied()),
            Self::Flag => f.write_str("nothing behind it"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Word(word) => f.write_str(word),
            Self::Flag => f.write_str("on"),
        }
    }
}

impl fmt::Display for Options {
    /// Writes the parameters as they appear after the id: `:k=64:queue=per-core`, `:fixed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(key, value)| match value {
            Value::Flag => write!(f, ":{key}"),
            _ => write!(f, ":{key}={value}"),
        })
    }
}

/// Lists a design's parameters in a message.
struct Keys<'i>(&'i [OptionInfo]);

impl fmt::Display for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("; it takes no parameters"),
            infos => {
                f.write_str("; expected ")?;
                list(f, infos.iter().map(|info| info.key))
            }
        }
    }
}

/// Writes `a, b or c`.
fn list<'w>(f: &mut fmt::Formatter<'_>, words: impl ExactSizeIterator<Item = &'w str>) -> fmt::Result {
    let last = words.len().saturating_sub(1);
    for (number, word) in words.enumerate() {
        let before = match number {
            0 => "",
            _ if number == last => " or ",
            _ => ", ",
        };
        write!(f, "{before}{word}")?;
    }
    Ok(())
}
