//! The driver's state of an entry, as its high quadword encodes it. The part of it that the hardware ignores says
//! whether the entry is occupied (bit 97), and how many entries the mapping that begins there has (115:98).

use portcullis::iommu::rings::{RING_ENTRIES_MAX, RingEntry, VALID};

const OCCUPIED: u64 = VALID << 1;
const COUNT_SHIFT: u32 = 34;
const COUNT_MASK: u64 = RING_ENTRIES_MAX as u64;

/// The state of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EntryState(u64);

impl EntryState {
    /// Free: a map may take the entry.
    pub(super) const FREE: Self = Self(0);
    /// In use, but not valid for the hardware: taken and not yet written, or cleared and not yet free. The first
    /// entry of a cleared mapping also keeps its count.
    pub(super) const HELD: Self = Self(OCCUPIED);

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// A valid entry: the first of a mapping of `count` entries, or a later one if `count` is 0.
    pub(super) const fn valid(entry: RingEntry, count: u32) -> Self {
        let [_, high] = entry.encode();
        Self(high | OCCUPIED | (count as u64) << COUNT_SHIFT)
    }

    /// The first entry of a mapping, without the part that devices see.
    pub(super) const fn invalid(self) -> Self {
        Self(self.0 & (OCCUPIED | COUNT_MASK << COUNT_SHIFT))
    }

    pub(super) const fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    /// The number of entries of the mapping that begins here, or 0 if none does.
    pub(super) const fn count(self) -> u32 {
        (self.0 >> COUNT_SHIFT & COUNT_MASK) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis::PhysAddr;
    use portcullis::table::Rights;

    #[test]
    fn what_the_driver_notes_is_no_part_of_what_hardware_reads() {
        let entry = RingEntry { phys: PhysAddr::new(0x5003), size: 77, rights: Rights::WRITE };
        let state = EntryState::valid(entry, RING_ENTRIES_MAX);
        assert_eq!(RingEntry::decode([entry.phys.as_u64(), state.bits()]), Some(entry));
        assert_eq!((state.count(), state.is_valid()), (RING_ENTRIES_MAX, true));
        let invalid = state.invalid();
        assert_eq!((invalid.count(), invalid.is_valid()), (RING_ENTRIES_MAX, false));
        assert_eq!(RingEntry::decode([entry.phys.as_u64(), invalid.bits()]), None);
        assert_eq!(invalid.bits() & 0x1_ffff_ffff, 0, "nothing is left of what hardware reads");
        assert_ne!((invalid, EntryState::HELD), (EntryState::FREE, EntryState::FREE));
    }
}
