//! Addresses from the host's general memory allocator: a block of one byte per page, whose address is used as a page
//! number (ATC'15, §4.2, "IOVA-kmalloc").
//!
//! Blocks in use do not overlap, so neither do the ranges that they stand for. The host's allocator is already fast
//! on many CPUs. But it does not pack addresses: which addresses it returns depends on all its users, and the table
//! grows with every new one.

use alloc::vec::Vec;
use portcullis::error::{MapError, NoMemory, UnmapError};
use portcullis::iova::{Claim, IovaAllocator, IovaRequest, never_handed_out};
use portcullis::platform::memory::{move_into, push_within, try_reserve, with_spare};
use portcullis::platform::{Context, Lock, LockClass, PerCpuCount, Phase, Platform, Step};
use portcullis::proof::Proof;
use portcullis::table::{SecondLevelTable, Walker};
use portcullis::{IovaRange, PAGE_SHIFT, PhysAddr};

/// The allocator.
pub struct KmallocAllocator<P: Platform> {
    /// Ranges that are never handed out, as first and end page numbers.
    reserved: Vec<(u64, u64)>,
    /// Blocks whose addresses stand for such pages. They are kept, so that the host does not return them again.
    withheld: P::Lock<Vec<IovaRange>>,
    live: PerCpuCount,
    /// Addresses are below `2^width`.
    width: u8,
}

impl<P: Platform> KmallocAllocator<P> {
    /// Makes an allocator of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9). The
    /// zone of the blocks ends where the page numbers end, so that no two page numbers collide.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        Ok(Self {
            reserved: never_handed_out(platform, reserved)?,
            withheld: platform.lock(LockClass::IovaAllocator, Vec::new()),
            live: PerCpuCount::new(platform)?,
            width,
        })
    }

    fn is_reserved(&self, range: IovaRange) -> bool {
        self.reserved.iter().any(|(first, end)| *first < range.end_pfn() && range.first_pfn() < *end)
    }

    /// Withholds the block of `range` from further use.
    fn withhold(&self, platform: &P, range: IovaRange) -> Result<(), NoMemory> {
        with_spare(
            |room| try_reserve(platform, Context::Atomic, room),
            |spare| {
                self.withheld.with(|withheld| {
                    if withheld.len() == withheld.capacity() {
                        move_into(withheld, &mut spare.take((2 * withheld.len()).max(4))?);
                    }
                    push_within(withheld, range);
                    Ok(())
                })
            },
        )
    }

    /// Gives the block of `range` back to the host.
    fn give_back(platform: &P, range: IovaRange) {
        // SAFETY: ranges are the blocks of `allocate`. Each arrives here once: after it was freed, after it was
        // withheld, or, if it is still mapped, when the domain is closed.
        unsafe { platform.free_bytes(PhysAddr::new(range.first_pfn()), range.pages()) };
    }
}

// SAFETY: by the platform's contract, blocks in use do not overlap and lie below the limit, so their ranges do not
// overlap either. Claims are left to the table.
unsafe impl<P: Platform> IovaAllocator<P> for KmallocAllocator<P> {
    const TABLE_CLAIM_PAGES_MAX: u64 = u64::MAX;

    fn allocate(&self, platform: &P, &IovaRequest { pages, .. }: &IovaRequest) -> Result<IovaRange, MapError> {
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let below = PhysAddr::new(1 << (u32::from(self.width) - PAGE_SHIFT));
        let exhausted = MapError::Exhausted { pages, limit_bits: self.width };
        loop {
            platform.probe(Step::ListPop);
            let block = platform.allocate_bytes(pages, below).map_err(|NoMemory| exhausted)?;
            let range = IovaRange::new(block.as_u64(), pages).ok_or(exhausted)?;
            if !self.is_reserved(range) {
                self.live.add(platform);
                return Ok(range);
            }
            // This happens at most once for each block of a reserved page.
            self.withhold(platform, range).inspect_err(|_| Self::give_back(platform, range))?;
        }
    }

    fn claim(&self, platform: &P, _range: IovaRange) -> Result<Claim, UnmapError> {
        platform.probe(Step::Enter(Phase::IovaFind));
        Ok(Claim::ByTable)
    }

    fn free(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        platform.probe(Step::ListPush);
        self.live.subtract(platform);
        Self::give_back(platform, range);
    }

    fn live(&self) -> usize {
        self.live.sum()
    }

    fn close(&self, walker: Walker<'_, P>, table: &SecondLevelTable) {
        let platform = walker.platform();
        for range in self.withheld.with(core::mem::take) {
            Self::give_back(platform, range);
        }
        // SAFETY: the domain is being closed, so this call alone uses the table.
        unsafe { table.for_each_marked(walker, &mut |range| Self::give_back(platform, range)) };
    }
}
