//! The Rust half of `portcullis.ko`. `host` implements the platform on Linux; [`firmware`], [`unit`], [`handover`] and
//! [`space`] are the interface for the C half, which calls nothing else. The functions that this half needs from the C
//! half are in `kernel`. `module/portcullis.h` has both lists too.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

#[allow(unsafe_code, reason = "the kernel's allocator")]
mod allocator;
#[cfg(feature = "planted-slow-unmap")]
mod delay;
mod errno;
#[allow(unsafe_code, reason = "called from C")]
pub mod firmware;
#[allow(unsafe_code, reason = "instructions without intrinsics")]
mod flush;
#[allow(unsafe_code, reason = "called from C")]
pub mod handover;
#[allow(unsafe_code, reason = "pages of the kernel, its locks and its CPUs")]
mod host;
#[allow(unsafe_code, reason = "functions in C")]
mod kernel;
#[allow(unsafe_code, reason = "the kernel's spin locks")]
mod lock;
#[allow(unsafe_code, reason = "the kernel's log")]
mod log;
#[allow(unsafe_code, reason = "room for values that are made in place")]
mod memory;
#[cfg(any(feature = "planted-no-invalidation", feature = "planted-no-answer"))]
#[allow(unsafe_code, reason = "what tests plant")]
mod planted;
#[allow(unsafe_code, reason = "called from C")]
pub mod space;
#[allow(unsafe_code, reason = "called from C")]
pub mod unit;
#[allow(unsafe_code, reason = "memory of each CPU")]
mod words;
