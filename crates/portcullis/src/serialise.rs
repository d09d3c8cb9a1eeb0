//! Serialization of protections and of parameters of designs, with the names that users write.

use crate::mapper::{Options, Value};
use crate::{Protection, SubPage};
use serde::{Serialize, Serializer};

/// As its name.
impl Serialize for Protection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// As its name.
impl Serialize for SubPage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// As a map of the options that were given.
impl Serialize for Options {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// As a number, a string, or `true` for a flag.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Count(count) => serializer.serialize_u64(count),
            Self::Word(word) => serializer.serialize_str(word),
            Self::Flag => serializer.serialize_bool(true),
        }
    }
}
