//! Memory that consists of addresses only, for the design `kmalloc`, which allocates from the host.
//!
//! The memory is never touched, so there is none. Addresses come from a range without table pages, by powers of two.
//! The last one freed is reused first, as in slabs. A kernel's allocator does this without a lock. This one has a
//! lock, and no benchmark measures it.

use super::SpinLock;
use portcullis::platform::Lock;
use portcullis::{NoMemory, PhysAddr};

/// The range of addresses. It lies below a program's memory.
const FIRST: u64 = 1 << 30;
const END: u64 = 1 << 36;
/// The smallest piece, in bytes: 8, as in `kmalloc`.
const SMALLEST: u64 = 8;

struct Pieces {
    /// Addresses from here on were never handed out.
    fresh: u64,
    /// Freed pieces, by the binary logarithm of their size.
    free: [Vec<u64>; END.ilog2() as usize],
}

static PIECES: SpinLock<Pieces> =
    SpinLock::new(Pieces { fresh: FIRST, free: [const { Vec::new() }; END.ilog2() as usize] });

/// The size of a piece for `bytes` bytes, and its binary logarithm. `None` if there is no such piece.
fn size(bytes: u64) -> Option<(u64, usize)> {
    let size = bytes.checked_next_power_of_two().filter(|size| *size < END)?.max(SMALLEST);
    Some((size, size.ilog2() as usize))
}

/// Allocates `bytes` bytes below `below`. The address is aligned to the size rounded up to a power of two.
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

/// Frees such addresses.
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
