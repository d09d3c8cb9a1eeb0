//! Published designs of I/O memory protection, for comparison with [`Portcullis`]: the same mapping interface, tables
//! and proofs, with the allocators, locks and invalidations of other systems. Each is a module; its page names the
//! source, draws the life of a page, and lists the files of a map and an unmap.
//!
//! The list of all designs has those of the crate `portcullis` too: [`DesignId`] chooses one by name, and
//! [`Choice`] reads a name with parameters.
//!
//! # To add a design
//!
//! Write its module, and add its name to the list in `registry.rs`. Every comparison, test and table then includes it.
//!
//! The page of a design lists, in reading order, the files of a raw map and of a raw unmap under strict protection, in
//! the sources of this crate or of `portcullis`. A typed call begins and ends in `domain/mapping.rs`. The lists leave
//! out the files that every design uses: `address.rs`, `entry.rs`, `error.rs`, `proof.rs` and `request.rs`; the module
//! files with the types (`mapper/mod.rs`, `iova/mod.rs`, `invalidation/mod.rs`); and the calls of `iommu/` and
//! `platform/` to hardware and host. They also leave out the parts of an `AssembledMapper` that do nothing in most
//! designs: without a lock, `mapper/locking.rs` only runs its closure, `invalidation/policy.rs` is called at the end of
//! a map, and `table/freed.rs` at the end of an unmap.
#![cfg_attr(not(any(test, loom)), no_std)]
#![deny(missing_docs)]
#![deny(unsafe_code)]

extern crate alloc;

/// The example of the README, compiled as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod choice;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod eiovar;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod fast_and_safe;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod freebsd;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod identity;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod kmalloc;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod macos;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod page_pool;
mod registry;
#[allow(unsafe_code, reason = "types cannot express who owns a table page")]
pub mod riommu;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod solaris;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod stock;
mod sync;

pub use choice::{Choice, ChoiceError, Named};
pub use registry::*;
