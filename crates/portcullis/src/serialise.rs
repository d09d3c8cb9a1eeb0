//! Protections and parameters of designs as they stand in documents: the words that users write.

use crate::design::{Options, Value};
use crate::{Protection, SubPage};
use serde::{Serialize, Serializer};

/// Its name.
impl Serialize for Protection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Its name.
impl Serialize for SubPage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A map of those that were given.
impl Serialize for Options {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// A number, a word, or for a flag `true`.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Count(count) => serializer.serialize_u64(count),
            Self::Word(word) => serializer.serialize_str(word),
            Self::Flag => serializer.serialize_bool(true),
        }
    }
}
