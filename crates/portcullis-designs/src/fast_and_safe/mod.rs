//! Fast & Safe: windows of neighbouring addresses, one invalidation per window, and cached table pointers that stay
//! cached (SOSP'24, §3).
//!
//! ```text
//! free: in a window that no stream has --open--> the next pages of the stream's window --write--> mapped
//! mapped --claim by its mark in the window's record, clear--> cleared --one command for neighbours--> out of window
//! a window that is sealed, and whose pages are all back, is free as a whole, and kept in a magazine
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/assembled.rs`, `fast_and_safe/windows.rs`, `fast_and_safe/window.rs`, `space.rs`,
//! `table/second_level.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/assembled.rs`, `fast_and_safe/windows.rs`, `fast_and_safe/window.rs`,
//! `space.rs`, `table/second_level.rs`, `invalidation/policy.rs`, `invalidation/strict.rs`.

mod radix_tree;
mod window;
mod windows;

pub use windows::WindowAllocator;

use core::mem::MaybeUninit;
use portcullis::Protection;
use portcullis::error::NewDomainError;
use portcullis::invalidation::{Commands, Deferral, Submissions};
use portcullis::iommu::Iommu;
use portcullis::mapper::{
    AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info, LockFree, OptionInfo,
    OptionKind, Parts,
};
use portcullis::platform::Platform;
use portcullis::table::TableRule;

/// Pages of a window unless the user sets another number: those of a receive descriptor of the paper's device. The
/// model checker uses small windows, so that it sees them end.
const WINDOW_PAGES: u64 = if cfg!(loom) { 4 } else { 64 };

/// The design of the paper, with two things that its published patch lacks: transmit descriptors share windows in
/// order, and every window comes back, however it was used.
#[derive(Debug)]
pub struct FastAndSafe;

impl DesignInfo for FastAndSafe {
    const INFO: Info = Info {
        id: "fast-and-safe",
        source: "Fast & Safe (SOSP'24 §3)",
        allocator: "windows of 64 pages, one for each stream of requests (a ring, else a CPU and a direction), handed out in order; magazines per CPU of such windows; larger ranges from the tree of `stock`",
        invalidation: "one page-selective and a wait for all neighbours in a window that a batch unmaps, leaf only",
        tables: "kept unless one unmap covers them, then all levels",
        protections: &[Protection::Strict],
        breaches: &[],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead { grain_pages: 64, ..AddressOverhead::NONE }),
        batch_default: 1,
        options: &[OptionInfo {
            key: "window",
            kind: OptionKind::Word(&["8", "16", "32", "64"]),
            default: "64",
            description: "pages of a window",
        }],
    };
}

// SAFETY: an assembled mapper of sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for FastAndSafe {
    type Mapper = AssembledMapper<WindowAllocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let within_pages = match setup.options.word("window") {
            Some("8") => 8,
            Some("16") => 16,
            Some("32") => 32,
            _ => WINDOW_PAGES,
        };
        let parts = Parts {
            commands: Commands::PerRun { within_pages },
            submissions: Submissions::Alone,
            deferral: Deferral::PER_CPU,
            rule: TableRule::FreedWhenCovered,
            locking: LockFree,
        };
        AssembledMapper::build_in(
            to,
            |to, setup| Ok(to.write(WindowAllocator::new(&setup.platform, setup.width, setup.reserved, within_pages)?)),
            parts,
            setup,
        )
    }
}
