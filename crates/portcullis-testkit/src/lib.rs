//! Runs the tests of Portcullis on a design, an allocator or a host that another crate defines.
//!
//! To test a design, write one line in a test of its crate:
//!
//! ```text
//! portcullis_testkit::suite!(MyDesign);
//! ```
//!
//! This makes one test of each of the following, for every protection that the design offers:
//!
//! | module | what it does | feature |
//! |---|---|---|
//! | [`properties`] | random scripts of operations on fakes; after every step, a device tries all addresses, and a plain reference says what it may reach | |
//! | [`replay`] | a recorded trace, and synthetic rings, on virtual cores over a modelled VT-d | `lab` |
//! | [`attack`] | synthetic work as in [`replay`], with a malicious device beside the driver | `lab` |
//! | [`mod@bench`] | the design on the CPUs of this machine; each map and unmap is checked, and the time per pair is printed | `bench` |
//! | [`conformance`] | the design's tables and invalidations through the VT-d driver, on the model and, if installed, on QEMU | `conformance` |
//!
//! A failure names the safety rule that is broken, such as `S3`; see [`portcullis::Rule`]. Each breach that the design
//! declares ([`Info::breaches`](portcullis::mapper::Info::breaches)) must be found, and no other may be. A run in which
//! the hardware held fewer than 1,000 translations when their unmap began is not conclusive, and fails.
//!
//! [`allocator::check`] tests an allocator by itself, [`host::check`] a host, and
//! [`host::check_where`] one that aborts on panics.
//!
//! [`properties`] uses the [`checker`], and other tests can use it too: it runs a script on any design, over any host
//! and IOMMU that forward to the fakes.
#![deny(missing_docs)]
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "no hardware holds the addresses that it frees")]
pub mod allocator;
#[cfg(feature = "lab")]
pub mod attack;
#[cfg(feature = "bench")]
pub mod bench;
#[allow(unsafe_code, reason = "maps memory that is not there")]
pub mod checker;
#[cfg(feature = "conformance")]
pub mod conformance;
#[allow(unsafe_code, reason = "uses and frees table pages")]
pub mod host;
mod machines;
pub mod properties;
#[allow(unsafe_code, reason = "maps memory that is not there")]
pub mod raw_face;
#[cfg(feature = "lab")]
pub mod replay;
mod subject;

pub use machines::machine;
pub use subject::Subject;

/// Makes a test of each part of the kit for the named design. It needs all features of the kit, which are on by
/// default.
#[cfg(all(feature = "lab", feature = "bench", feature = "conformance"))]
#[macro_export]
macro_rules! suite {
    ($design:ty) => {
        #[test]
        fn properties() {
            $crate::properties::check(&[$crate::Subject::of::<$design>()]);
        }

        #[test]
        fn replay() {
            $crate::replay::check($crate::replay::LabDesign::of::<$design>());
        }

        #[test]
        fn attack() {
            $crate::attack::check($crate::attack::LabDesign::of::<$design>());
        }

        #[test]
        fn bench() {
            $crate::bench::check::<$design>();
        }

        #[test]
        fn conformance() {
            $crate::conformance::check::<$design>();
        }
    };
}
