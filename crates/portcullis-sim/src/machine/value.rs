//! The values of a machine by name: sets one, and checks whether such a machine can exist.

use super::{Machine, Server};
use portcullis_model::ParameterError;
use serde_json::Value;
use thiserror::Error;

/// The parts of a machine's JSON that have values that users may set, besides the machine itself. All names differ.
const PARTS: [&str; 3] = ["costs", "sharing", "iommu"];
/// The values of the server that users may set. It has others, and they follow from the machine or have a source.
const OF_SERVER: [&str; 7] = [
    "/server/nic/receive_buffer_bytes",
    "/server/driver/transmit_rings",
    "/server/driver/receive_rings",
    "/server/driver/fragments/fragment_bytes",
    "/server/driver/joining/joined_bytes",
    "/server/driver/joining/silence_ps",
    "/server/software/cycles_per_transaction",
];
/// The most that a step may cost, about a second, so that a typing error does not stop the clock.
const CYCLES_MAX: u64 = 1_000_000_000;

/// A value that no machine can have.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The machine has no such value.
    #[error("a machine has no value `{key}`; there are: {known}")]
    Unknown {
        /// The name that was given.
        key: String,
        /// The known names, separated by commas.
        known: String,
    },
    /// The text does not have the type of this value.
    #[error("`{value}` is no value for `{key}`: {reason}")]
    Value {
        /// The name of the value.
        key: String,
        /// The text that was given.
        value: String,
        /// What was expected.
        reason: String,
    },
    /// The value is out of its range.
    #[error("`{key}` must be {expected}")]
    Range {
        /// The name of the value.
        key: String,
        /// The range in which it must be.
        expected: String,
    },
}

impl From<ParameterError> for MachineError {
    fn from(error: ParameterError) -> Self {
        match error {
            ParameterError::Unknown { key, known } => Self::Unknown { key, known },
            ParameterError::Value { key, value, reason } => Self::Value { key, value, reason },
            ParameterError::Range { key, expected } => {
                Self::Range { key: key.to_owned(), expected: expected.to_owned() }
            }
        }
    }
}

/// Whether a value of the machine itself may be set: texts and tables may not.
fn is_plain(value: &Value) -> bool {
    value.is_number() || value.is_null()
}

impl Machine {
    /// Sets the value called `key` from text, as in `--set cores=8` or `--set iotlb_entries=64`. Call
    /// [`check`](Self::check) after all values are set, to find values that do not fit together.
    ///
    /// # Errors
    /// Returns a [`MachineError`] if there is no such value or the text is not of its type. Nothing has changed then.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), MachineError> {
        let refused = |reason: String| MachineError::Value { key: key.into(), value: value.into(), reason };
        let mut all = self.values().map_err(|error| refused(error.to_string()))?;
        let Some(place) = pointer(&all, key).and_then(|pointer| all.pointer_mut(&pointer)) else {
            return Err(MachineError::Unknown { key: key.into(), known: names(&all).join(", ") });
        };
        *place = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
        *self = serde_json::from_value(all).map_err(|error| refused(error.to_string()))?;
        // The set value is no longer an assumption.
        self.assumed.remove(key);
        Ok(())
    }

    /// The value called `key`, if it is a number.
    pub fn get(&self, key: &str) -> Option<f64> {
        let all = self.values().ok()?;
        all.pointer(&pointer(&all, key)?)?.as_f64()
    }

    /// All values, also those that are not written while they have their defaults.
    pub(super) fn values(&self) -> serde_json::Result<Value> {
        let mut all = serde_json::to_value(self)?;
        all["sharing"] = serde_json::to_value(&self.sharing)?;
        all["iommu"]["psi_drops"] = serde_json::to_value(self.iommu.psi_drops)?;
        Ok(all)
    }

    /// Checks whether such a machine can exist.
    ///
    /// # Errors
    /// Returns a [`MachineError`] that names the first value out of its range.
    pub fn check(&self) -> Result<(), MachineError> {
        let within = |value: f64, low: f64, high: f64| (low..=high).contains(&value);
        let or_none = |value: Option<f64>, low: f64, high: f64| value.is_none_or(|value| within(value, low, high));
        let checks = [
            ("core_hz", within(self.core_hz, 1e8, 1e11), "from 100 MHz to 100 GHz, in hertz"),
            ("cores", (1..=4096).contains(&self.cores), "from 1 to 4096"),
            ("link_gbps", or_none(self.link_gbps, 1e-3, 1e5), "from 0.001 to 100000, in Gb/s"),
            ("link_gbps", self.link_gbps.is_some() || self.disk_iops.is_some(), "there where `disk_iops` is not"),
            ("unprotected_cycles_per_byte", within(self.unprotected_cycles_per_byte, 0.0, 1e4), "from 0 to 10000"),
            ("disks", (1..=1024).contains(&self.disks), "from 1 to 1024"),
            ("disk_iops", or_none(self.disk_iops, 1.0, 1e12), "from 1 to 10^12 requests per second"),
            ("disk_bytes_per_second", or_none(self.disk_bytes_per_second, 1.0, 1e15), "from 1 to 10^15"),
            (
                "disk_bytes_per_second",
                self.disk_bytes_per_second.is_some() == self.disk_iops.is_some(),
                "there where `disk_iops` is, and only there",
            ),
            (
                "unprotected_cycles_per_request",
                within(self.unprotected_cycles_per_request, 0.0, 1e9),
                "from 0 to 1000000000",
            ),
            ("bytes_in_flight", (64..=1 << 40).contains(&self.bytes_in_flight), "from 64 to 2^40"),
            (
                "disk_bytes_in_flight",
                self.disk_bytes_in_flight.is_none_or(|bytes| (64..=1 << 40).contains(&bytes)),
                "from 64 to 2^40",
            ),
            ("transaction_bytes", (1..=4096).contains(&self.transaction_bytes), "from 1 to a page, 4096"),
        ];
        let range =
            |key: &str, expected: &str| MachineError::Range { key: key.to_owned(), expected: expected.to_owned() };
        if let Some((key, _, expected)) = checks.into_iter().find(|(_, holds, _)| !holds) {
            return Err(range(key, expected));
        }
        let costs = serde_json::to_value(&self.costs).unwrap_or_default();
        let dear = |(_, cycles): &(&String, &Value)| cycles.as_u64().is_none_or(|cycles| cycles > CYCLES_MAX);
        if let Some((key, _)) = costs.as_object().into_iter().flatten().find(dear) {
            return Err(range(key, "at most 1000000000 cycles"));
        }
        if let Some((key, expected)) = self.sharing.out_of_range(self.cores, self.costs.line_transfer) {
            return Err(range(key, expected));
        }
        if let Some((key, expected)) = self.server.as_ref().and_then(Server::out_of_range) {
            return Err(range(key, expected));
        }
        self.iommu.check()?;
        for (key, [low, high]) in &self.assumed {
            let value = self.get(key).ok_or_else(|| {
                range(key, "a number of the machine, because `assumed` has a range for it; or remove that range")
            })?;
            if !within(value, *low, *high) {
                return Err(range(key, "within its range in `assumed`"));
            }
        }
        Ok(())
    }
}

/// The names of the values that can be set.
pub(super) fn names(all: &Value) -> Vec<String> {
    let own = all.as_object().into_iter().flatten().filter(|(_, value)| is_plain(value));
    let parts = PARTS.into_iter().filter_map(|part| all[part].as_object()).flatten();
    let of_server = OF_SERVER.iter().filter(|at| all.pointer(at).is_some()).filter_map(|at| at.rsplit('/').next());
    own.chain(parts).map(|(key, _)| key.clone()).chain(of_server.map(str::to_owned)).collect()
}

/// Where the value called `key` is, if it may be set.
fn pointer(all: &Value, key: &str) -> Option<String> {
    let mut places = PARTS.into_iter().map(|part| format!("/{part}/{key}"));
    let own = || all.get(key).filter(|value| is_plain(value)).map(|_| format!("/{key}"));
    let of_server = || OF_SERVER.iter().find(|at| at.rsplit('/').next() == Some(key)).map(|at| (*at).to_owned());
    places
        .find(|place| all.pointer(place).is_some())
        .or_else(own)
        .or_else(of_server)
        .filter(|at| all.pointer(at).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_machine_can_be_and_comes_back_from_its_json() {
        for machine in Machine::all() {
            assert_eq!(machine.check(), Ok(()), "{}", machine.id);
            let json = serde_json::to_string(&machine).expect("JSON");
            assert_eq!(serde_json::from_str::<Machine>(&json).expect("a machine"), machine);
        }
    }

    #[test]
    fn names_of_values_differ() {
        let mut names = names(&serde_json::to_value(&Machine::all()[0]).expect("JSON"));
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn any_value_is_set_by_name() {
        let mut machine = Machine::by_id("cascadelake-cx5").expect("a machine");
        for (key, value) in [("cores", "8"), ("core_hz", "2.5e9"), ("link_gbps", "25"), ("lock", "11"), ("mamv", "9")] {
            machine.set(key, value).expect(key);
            assert_eq!(machine.get(key), value.parse().ok(), "{key}");
        }
        assert_eq!((machine.cores, machine.costs.lock, machine.check()), (8, 11, Ok(())));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let machine = Machine::by_id("cascadelake-cx5").expect("a machine");
        for (key, value) in [("cors", "8"), ("costs", "8"), ("id", "8"), ("cores", "many"), ("lock", "-1")] {
            let mut changed = machine.clone();
            let error = changed.set(key, value).expect_err(key).to_string();
            assert!(error.contains(&format!("`{key}`")) && changed == machine, "{error}");
        }
        for (key, value) in [
            ("cores", "0"),
            ("core_hz", "3.3"),
            ("core_hz", "9.9e7"),
            ("link_gbps", "-1"),
            ("unprotected_cycles_per_byte", "10001"),
            ("lock", "10000000000"),
            ("walkers", "0"),
        ] {
            let mut changed = machine.clone();
            changed.set(key, value).expect(key);
            assert!(matches!(changed.check(), Err(MachineError::Range { key: named, .. }) if named == key), "{key}");
        }
        let mut nothing = machine;
        (nothing.link_gbps, nothing.disk_iops, nothing.disk_bytes_per_second) = (None, None, None);
        assert!(nothing.check().is_err());
    }
}
