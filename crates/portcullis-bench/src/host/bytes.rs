//! Memory that only has an address: what the design `kmalloc` asks a host for.
//!
//! Nobody touches it, so there is none: addresses of a range that no table page has, by powers of two, the last one freed
//! first, as slabs do it. A kernel's allocator does that without a lock; this one has one, and is not what a benchmark is about.

use super::SpinLock;
use portcullis::platform::Lock;
use portcullis::{NoMemory, PhysAddr};

/// The addresses: below those of a program's memory.
const FIRST: u64 = 1 << 30;
const END: u64 = 1 << 36;
/// The smallest piece, in bytes: 8, as in `kmalloc`.
const SMALLEST: u64 = 8;

struct Pieces {
    /// Never handed out from here on.
    fresh: u64,
    /// Pieces that were, by the binary logarithm of their size.
    free: [Vec<u64>; END.ilog2() as usize],
}

static PIECES: SpinLock<Pieces> =
    SpinLock::new(Pieces { fresh: FIRST, free: [const { Vec::new() }; END.ilog2() as usize] });

/// The size of a piece of so many bytes, and its logarithm; `None` for more than there are.
fn size(bytes: u64) -> Option<(u64, usize)> {
    let size = bytes.checked_next_power_of_two().filter(|size| *size < END)?.max(SMALLEST);
    Some((size, size.ilog2() as usize))
}

/// Addresses of `bytes` bytes, aligned to the power of two that they round up to, below `below`.
pub(super) fn allocate(bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
    let (size, class) = size(bytes).ok_or(NoMemory)?;
    let fits = |at: u64| at + size <= below.as_u64();
    PIECES.with(|pieces| {
        if let Some(at) = pieces.free[class].pop_if(|at| fits(*at)) {
            return Ok(PhysAddr::new(at));
        }
        let at = pieces.fresh.next_multiple_of(size);
        if at + size > END || !fits(at) {
            return Err(NoMemory);
        }
        pieces.fresh = at + size;
        Ok(PhysAddr::new(at))
    })
}

/// Takes them back.
pub(super) fn free(at: PhysAddr, bytes: u64) {
    if let Some((_, class)) = size(bytes) {
        PIECES.with(|pieces| pieces.free[class].push(at.as_u64()));
    }
}

#[cfg(test)]
mod tests {
    use super::{allocate, free};
    use portcullis::PhysAddr;

    #[test]
    fn pieces_are_aligned_apart_and_below() {
        let anywhere = PhysAddr::new(1 << 40);
        let mut taken = Vec::new();
        for bytes in (1..200).chain([4096, 5000, 1 << 20]) {
            let (at, size) = (allocate(bytes, anywhere).expect("room").as_u64(), bytes.next_power_of_two().max(8));
            assert_eq!(at % size, 0);
            assert!(taken.iter().all(|&(other, of)| at + size <= other || other + of <= at), "{bytes} at {at:#x}");
            taken.push((at, size));
        }
        for (at, size) in taken {
            free(PhysAddr::new(at), size);
        }
        assert!(allocate(64, PhysAddr::new(1 << 20)).is_err());
        assert!(allocate(1 << 36, anywhere).is_err());
    }
}
