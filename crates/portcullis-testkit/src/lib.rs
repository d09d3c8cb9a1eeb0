//! Takes a design, an allocator or a host that another crate has written through the tests of Portcullis.
//!
//! A design goes through all of them by one line in a test of its crate:
//!
//! ```text
//! portcullis_testkit::suite!(MyDesign);
//! ```
//!
//! That makes a test of each of these, for every protection that the design offers:
//!
//! | module | what it does | feature |
//! |---|---|---|
//! | [`properties`] | random scripts of operations on the fakes; after every step a device tries all addresses, and a plain model says what it may reach | |
//! | [`replay`] | a recorded trace, and synthetic rings, on virtual cores over a modelled VT-d | `lab` |
//! | [`attack`] | the same with a malicious device beside the driver | `lab` |
//! | [`mod@bench`] | the design on the CPUs of this machine; each map and unmap is checked, and what they take is printed | `bench` |
//! | [`conformance`] | its tables and invalidations through the VT-d driver, on the model and, where there is one, on QEMU | `conformance` |
//!
//! What fails names the safety rule that is broken (`S3`, say; see [`portcullis::Rule`]). A rule that the design declares to break
//! ([`Info::breaches`](portcullis::design::Info::breaches)) has to be found broken, and no other may be. A run in which the hardware
//! held fewer than 1,000 translations when their unmap began has shown nothing, and fails.
//!
//! An allocator by itself goes through [`allocator::check`], a host through [`host::check`].
//!
//! Below them is the [`checker`], for tests of one's own: it runs a script on any design, over any host and IOMMU that end in the fakes.
#![deny(missing_docs)]
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "addresses are freed that no hardware has")]
pub mod allocator;
#[cfg(feature = "lab")]
pub mod attack;
#[cfg(feature = "bench")]
pub mod bench;
#[allow(unsafe_code, reason = "maps memory that is not there")]
pub mod checker;
#[cfg(feature = "conformance")]
pub mod conformance;
#[allow(unsafe_code, reason = "table pages are used, and given back")]
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

/// Makes a test of each part of the kit for the design that is named. It needs all features of the kit, which are on by default.
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
