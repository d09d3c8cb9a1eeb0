//! Tests the kit with allocators of the library, and with flawed ones.

use super::fails;
use portcullis::iova::{Claim, IovaAllocator, IovaRequest, MagazineAllocator, TreeAllocator};
use portcullis::platform::fake::FakeHost;
use portcullis::proof::Proof;
use portcullis::{IovaRange, MapError, Platform, UnmapError};
use portcullis_designs::eiovar::FreeListAllocator;
use portcullis_designs::freebsd::GapTreeAllocator;
use portcullis_designs::macos::BuddyAllocator;
use portcullis_designs::solaris::VmemAllocator;
use portcullis_testkit::allocator::check;
use std::sync::Mutex;

#[test]
fn those_of_the_library_keep_their_word() {
    check(|host: &'static FakeHost, width, reserved| TreeAllocator::new(&host, width, reserved).expect("memory"));
    check(|host: &'static FakeHost, width, reserved| {
        FreeListAllocator::new(&host, width, reserved, Some(64)).expect("memory")
    });
    check(|host: &'static FakeHost, width, reserved| MagazineAllocator::new(&host, width, reserved).expect("memory"));
    check(|host: &'static FakeHost, width, reserved| GapTreeAllocator::new(&host, width, reserved).expect("memory"));
    check(|host: &'static FakeHost, width, reserved| VmemAllocator::new(&host, width, reserved).expect("memory"));
    check(|host: &'static FakeHost, width, reserved| BuddyAllocator::new(&host, width, reserved).expect("memory"));
}

/// The flaws, as numbers because they are type parameters.
const NONE: u8 = 0;
/// Hands out a claimed range again, before it is freed.
const REUSES: u8 = 1;
/// Hands out reserved addresses.
const IGNORES_WHAT_IS_RESERVED: u8 = 2;
/// Hands out addresses that the device cannot use.
const IGNORES_WIDTH: u8 = 3;
/// Grants claims of ranges that are no mapping.
const CLAIMS_ANYTHING: u8 = 4;
/// Reports one range in use too few.
const MISCOUNTS: u8 = 5;
/// Never reuses a freed range.
const LEAKS: u8 = 6;

/// The red-black tree, with a flaw.
struct Flawed<P: Platform, const FLAW: u8> {
    tree: TreeAllocator<P>,
    claimed: Mutex<Option<IovaRange>>,
}

impl<P: Platform, const FLAW: u8> Flawed<P, FLAW> {
    fn new(host: &P, width: u8, reserved: &[IovaRange]) -> Self {
        let reserved = if FLAW == IGNORES_WHAT_IS_RESERVED { &[] } else { reserved };
        let width = if FLAW == IGNORES_WIDTH { width + 1 } else { width };
        Self { tree: TreeAllocator::new(host, width, reserved).expect("memory"), claimed: Mutex::default() }
    }
}

// SAFETY: it breaks its promises on purpose, so that the kit finds out. It has no memory behind it.
unsafe impl<P: Platform, const FLAW: u8> IovaAllocator<P> for Flawed<P, FLAW> {
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        let early = self.claimed.lock().expect("not poisoned").take_if(|range| range.pages() == request.pages);
        early.map_or_else(|| self.tree.allocate(platform, request), Ok)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        let claim = self.tree.claim(platform, range);
        if FLAW == REUSES && claim.is_ok() {
            *self.claimed.lock().expect("not poisoned") = Some(range);
        }
        if FLAW == CLAIMS_ANYTHING { Ok(Claim::Held) } else { claim }
    }

    fn free(&self, platform: &P, range: IovaRange, proof: &Proof) {
        self.claimed.lock().expect("not poisoned").take_if(|claimed| *claimed == range);
        if FLAW != LEAKS {
            self.tree.free(platform, range, proof);
        }
    }

    fn live(&self) -> usize {
        self.tree.live().saturating_sub(usize::from(FLAW == MISCOUNTS))
    }
}

fn check_flaw<const FLAW: u8>() {
    check(|host: &'static FakeHost, width, reserved| Flawed::<_, FLAW>::new(&host, width, reserved));
}

#[test]
fn without_a_flaw_it_passes() {
    check_flaw::<NONE>();
}

#[test]
fn a_flaw_is_found_by_its_rule() {
    fails("S3: ", check_flaw::<REUSES>);
    fails("S9: ", check_flaw::<IGNORES_WHAT_IS_RESERVED>);
    fails("S13: ", check_flaw::<IGNORES_WIDTH>);
    fails("S6: ", check_flaw::<CLAIMS_ANYTHING>);
    fails("S7: ", check_flaw::<MISCOUNTS>);
    fails("S7: ", check_flaw::<LEAKS>);
}
