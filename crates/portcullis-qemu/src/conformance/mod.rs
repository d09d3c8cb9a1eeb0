//! One suite of checks for the model and for QEMU: both must show the same outcome of every DMA.
//!
//! A [`Check`] is a function over a [`Stage`]: a fresh unit with memory and three devices, on the model or on QEMU.
//! Raw checks write tables and descriptors by hand. They test both units against the specification and so against
//! each other. Driven checks use the driver and domains, and test these. If QEMU cannot show what is specified, the
//! check names that difference and has a second function for what QEMU shows instead. If QEMU then behaves as
//! specified, that is also a failure.

mod checks;
mod dma;
mod driven;
mod model;
mod qemu;
mod raw;
mod report;
mod rig;
pub mod sequence;
mod wiring;

pub use checks::of_design;
pub use dma::{DMA_BYTES, Faults, Seen, read_refused, write_refused};
pub use model::ModelRig;
pub use qemu::QemuRig;
pub use report::{Line, Report};
pub use rig::{A, B, BUFFER_BYTES, C, DATA_BASE, DEVICES, FETCHED, Hardware, MEMORY_END, Rig, TABLES_BASE, pattern};
pub use wiring::{Straight, Wired, WiredUnit, Wiring};

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use thiserror::Error;

/// Why a check did not pass.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The outcome differs from the specified one.
    #[error("{0}")]
    Mismatch(String),
    /// The check could not be made.
    #[error("the check could not be made: {0}")]
    Broken(String),
}

/// The result of a check.
pub type Checked = Result<(), Trouble>;

macro_rules! broken {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Trouble {
            fn from(error: $error) -> Self {
                Self::Broken(error.to_string())
            }
        }
    )*};
}

broken!(
    crate::edu::EduError,
    crate::QtestError,
    portcullis::iommu::AttachError,
    portcullis::CommitError,
    portcullis::MapError,
    portcullis::NewDomainError,
    portcullis::NoMemory,
    portcullis::QueueError,
    portcullis::RawMapError,
    portcullis::RawUnmapError,
    portcullis::UnmapError,
    portcullis_vtd::BringUpError,
    portcullis_vtd::RegisterError,
);

/// Returns from the check with an error if the observed value is not the expected one.
macro_rules! agree {
    ($seen:expr, $expected:expr, $($what:tt)+) => {{
        let (seen, expected) = ($seen, $expected);
        if seen != expected {
            let what = format!($($what)+);
            return Err($crate::conformance::Trouble::Mismatch(format!(
                "{what}: {seen:?}; expected {expected:?} ({}:{})", file!(), line!()
            )));
        }
    }};
}
use agree;

/// The unit on which a check runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The model.
    Model,
    /// QEMU.
    Qemu,
}

impl Side {
    /// Makes a fresh rig.
    ///
    /// # Errors
    /// [`Trouble::Broken`] if there is no QEMU.
    pub fn rig(self, hardware: Hardware) -> Result<Arc<dyn Rig>, Trouble> {
        Ok(match self {
            Self::Model => Arc::new(ModelRig::new(hardware)),
            Self::Qemu => Arc::new(QemuRig::start(hardware)?),
        })
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Qemu => "QEMU",
        })
    }
}

/// The subject of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The units: the check writes tables and descriptors by hand.
    Unit,
    /// The driver and domains.
    Driver,
}

/// The surroundings of a check.
pub struct Stage {
    rig: Arc<dyn Rig>,
    wiring: Arc<dyn Wiring>,
}

/// A known difference of QEMU: why it differs, and a check of what it shows.
#[derive(Clone, Copy)]
struct Difference {
    why: &'static str,
    shows: fn(&Stage) -> Checked,
}

/// A check.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name, which must not change.
    pub name: &'static str,
    /// Its subject.
    pub subject: Subject,
    hardware: Hardware,
    run: fn(&Stage) -> Checked,
    difference: Option<Difference>,
}

/// The verdict on a check on one side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The outcome is as specified.
    Pass,
    /// QEMU differs in the known way.
    Differs(&'static str),
    /// Any other outcome.
    Fail(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("pass"),
            Self::Differs(why) => write!(f, "differs: {why}"),
            Self::Fail(why) => write!(f, "fail: {why}"),
        }
    }
}

impl Check {
    const fn new(name: &'static str, subject: Subject, run: fn(&Stage) -> Checked) -> Self {
        Self { name, subject, hardware: Hardware::Standard, run, difference: None }
    }

    /// A check of the units.
    const fn raw(name: &'static str, run: fn(&Stage) -> Checked) -> Self {
        Self::new(name, Subject::Unit, run)
    }

    /// A check of the driver.
    const fn driven(name: &'static str, run: fn(&Stage) -> Checked) -> Self {
        Self::new(name, Subject::Driver, run)
    }

    /// Sets the kind of unit that the check needs.
    const fn on(mut self, hardware: Hardware) -> Self {
        self.hardware = hardware;
        self
    }

    /// Declares that QEMU fails this check, and passes `shows` instead.
    const fn differs(mut self, why: &'static str, shows: fn(&Stage) -> Checked) -> Self {
        self.difference = Some(Difference { why, shows });
        self
    }

    /// Runs the check on one side, with the driver wired by `wiring`.
    pub fn run(&self, side: Side, wiring: &Arc<dyn Wiring>) -> Verdict {
        let once = |run: fn(&Stage) -> Checked| -> Checked {
            let rig = side.rig(self.hardware)?;
            let stage = Stage { rig: rig.clone(), wiring: wiring.clone() };
            run(&stage)?;
            rig.health()
        };
        let guarded = |run| {
            catch_unwind(AssertUnwindSafe(|| once(run))).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                Err(Trouble::Broken(format!("it panicked: {text}")))
            })
        };
        let verdict =
            |result: Checked, pass| result.map_or_else(|trouble| Verdict::Fail(trouble.to_string()), |()| pass);
        match self.difference.filter(|_| side == Side::Qemu) {
            None => verdict(guarded(self.run), Verdict::Pass),
            Some(Difference { why, shows }) => match guarded(self.run) {
                // The differences are those of one QEMU series. Another series may have fixed some.
                Ok(()) if !crate::process::is_known_version() => Verdict::Pass,
                Ok(()) => Verdict::Fail(format!("QEMU agrees, although a difference is declared: {why}")),
                Err(Trouble::Broken(why)) => Verdict::Fail(format!("the check could not be made: {why}")),
                Err(Trouble::Mismatch(_)) => verdict(guarded(shows), Verdict::Differs(why)),
            },
        }
    }
}

/// Every check, sorted by subject.
pub fn checks() -> Vec<Check> {
    checks::all()
}
