//! The structures of rIOMMU that the hardware reads (ASPLOS'15, §4), and the addresses that devices use. VT-d has
//! none of them.
//!
//! A context entry points to the rings of a device: a table of 128-bit slots. The first slot holds the number of
//! rings, and slot *r* describes ring *r*, so rings are numbered from 1.
//!
//! ```text
//!            127                    82 81        64 63                                  0
//!            +------------------------+------------+-------------------------------------+
//! slot 0     |           0            |     0      | 0                  rings (u16, 15:0)|   rDEVICE
//! slot r     |           0            | size (u18) | table of entries, page-aligned      |   rRING
//!            +------------------------+------------+-------------------------------------+
//!
//!            127             97  96  95 94 93         64 63                              0
//!            +-----------------+---+-----+--------------+---------------------------------+
//! entry      |     unused      | V | dir |  size (u30)  | physical address of first byte  |   rPTE
//!            +-----------------+---+-----+--------------+---------------------------------+
//!
//!             63          48 47               30 29                                     0
//!            +--------------+-------------------+----------------------------------------+
//! address    |  ring (u16)  |    entry (u18)    |              offset (u30)              |   rIOVA
//!            +--------------+-------------------+----------------------------------------+
//! ```
//!
//! `dir` has the bits of [`Rights`]: 1 to read, 2 to write. The hardware ignores the unused bits, so a driver may keep
//! its own state of an entry there.

use crate::address::{Iova, PAGE_SHIFT, PAGE_SIZE, PhysAddr};
use crate::entry::Rights;

const OFFSET_BITS: u32 = 30;
const ENTRY_BITS: u32 = 18;
/// Address bits below the ring number.
pub const RING_SHIFT: u32 = OFFSET_BITS + ENTRY_BITS;
/// Pages of address space per entry.
pub const ENTRY_PAGES: u64 = 1 << (OFFSET_BITS - PAGE_SHIFT);
/// The most entries of a ring.
pub const RING_ENTRIES_MAX: u32 = (1 << ENTRY_BITS) - 1;
/// The most bytes that an entry leads to.
pub const SEGMENT_BYTES_MAX: u64 = (1 << OFFSET_BITS) - 1;
/// The address mask of the page-selective invalidation of a ring, which covers all its addresses.
pub const RING_ADDRESS_MASK: u8 = (RING_SHIFT - PAGE_SHIFT) as u8;
/// Bytes of a slot, and of an entry.
pub const SLOT_BYTES: u64 = 16;
/// Slots, or entries, in a page.
pub const SLOTS_PER_PAGE: u32 = (PAGE_SIZE / SLOT_BYTES) as u32;

const DIRECTION_SHIFT: u32 = OFFSET_BITS;
/// The bit of the high quadword of an entry that makes it valid. The bits above it are unused.
pub const VALID: u64 = 1 << 32;

/// An address that a device uses (rIOVA).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingAddress {
    /// The ring. No ring has number 0.
    pub ring: u16,
    /// The entry of the ring, 18 bits.
    pub entry: u32,
    /// The byte within the entry, 30 bits.
    pub offset: u32,
}

impl RingAddress {
    /// Splits an address into its parts.
    pub const fn of(iova: Iova) -> Self {
        let bits = iova.as_u64();
        Self {
            ring: (bits >> RING_SHIFT) as u16,
            entry: (bits >> OFFSET_BITS) as u32 & RING_ENTRIES_MAX,
            offset: bits as u32 & SEGMENT_BYTES_MAX as u32,
        }
    }

    /// The address of these parts. Bits beyond their widths are dropped.
    pub const fn iova(self) -> Iova {
        let entry = (self.entry & RING_ENTRIES_MAX) as u64;
        let offset = self.offset as u64 & SEGMENT_BYTES_MAX;
        Iova::new((self.ring as u64) << RING_SHIFT | entry << OFFSET_BITS | offset)
    }
}

/// Slot 0: the number of rings (rDEVICE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceHeader {
    /// The highest ring number.
    pub rings: u16,
}

impl DeviceHeader {
    /// The two quadwords, low first.
    pub const fn encode(self) -> [u64; 2] {
        [self.rings as u64, 0]
    }

    /// Reads the low quadword.
    pub const fn decode(low: u64) -> Self {
        Self { rings: low as u16 }
    }
}

/// A ring, as hardware knows it (rRING).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingPointer {
    /// Its entries, in contiguous pages, page-aligned.
    pub table: PhysAddr,
    /// The number of entries, at most [`RING_ENTRIES_MAX`].
    pub size: u32,
}

impl RingPointer {
    /// The two quadwords, low first.
    pub const fn encode(self) -> [u64; 2] {
        [self.table.as_u64() & !(PAGE_SIZE - 1), (self.size & RING_ENTRIES_MAX) as u64]
    }

    /// Reads two quadwords. `None` if there is no ring, that is, a ring without entries.
    pub const fn decode([low, high]: [u64; 2]) -> Option<Self> {
        match high as u32 & RING_ENTRIES_MAX {
            0 => None,
            size => Some(Self { table: PhysAddr::new(low & !(PAGE_SIZE - 1)), size }),
        }
    }
}

/// A valid entry (rPTE): a run of bytes, and the rights of devices to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingEntry {
    /// The first byte.
    pub phys: PhysAddr,
    /// The number of bytes, at most [`SEGMENT_BYTES_MAX`].
    pub size: u32,
    /// The rights of devices.
    pub rights: Rights,
}

impl RingEntry {
    /// The two quadwords, low first.
    pub const fn encode(self) -> [u64; 2] {
        let size = self.size as u64 & SEGMENT_BYTES_MAX;
        [self.phys.as_u64(), size | self.rights.bits() << DIRECTION_SHIFT | VALID]
    }

    /// Reads two quadwords. `None` if the entry is not valid, or grants no rights.
    pub const fn decode([low, high]: [u64; 2]) -> Option<Self> {
        if high & VALID == 0 {
            return None;
        }
        match Rights::from_bits(high >> DIRECTION_SHIFT & 3) {
            Some(rights) => Some(Self { phys: PhysAddr::new(low), size: (high & SEGMENT_BYTES_MAX) as u32, rights }),
            None => None,
        }
    }

    /// The address that a device reaches with `offset`, if any.
    pub const fn reach(self, offset: u32) -> Option<PhysAddr> {
        match self.phys.as_u64().checked_add(offset as u64) {
            Some(at) if offset < self.size => Some(PhysAddr::new(at)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tested against literal values, so that the driver and the model cannot be wrong in the same way.
    #[test]
    fn structures_are_those_published_to_the_bit() {
        let address = RingAddress { ring: 0x8001, entry: 0x2_0003, offset: 0x3000_0005 };
        assert_eq!(address.iova().as_u64(), 0x8001_8000_f000_0005);
        assert_eq!(RingAddress::of(address.iova()), address);
        assert_eq!(RingAddress { ring: 1, entry: 0, offset: 0 }.iova().as_u64(), 0x0001_0000_0000_0000);
        assert_eq!(RingAddress { ring: 0, entry: 1, offset: 0 }.iova().as_u64(), 0x4000_0000);

        assert_eq!(DeviceHeader { rings: 0xffff }.encode(), [0xffff, 0]);
        assert_eq!(DeviceHeader::decode(0xdead_0003), DeviceHeader { rings: 3 });

        let ring = RingPointer { table: PhysAddr::new(0x1234_5000), size: 0x3_ffff };
        assert_eq!(ring.encode(), [0x1234_5000, 0x3_ffff]);
        assert_eq!(RingPointer::decode(ring.encode()), Some(ring));
        assert_eq!(RingPointer::decode([0x1234_5000, 0x4_0000]), None, "a ring of no entries");

        let entry = |rights| RingEntry { phys: PhysAddr::new(0x7_0000_0123), size: 0x3fff_ffff, rights };
        for (rights, high) in
            [(Rights::READ, 0x1_7fff_ffff), (Rights::WRITE, 0x1_bfff_ffff), (Rights::READ_WRITE, 0x1_ffff_ffff)]
        {
            assert_eq!(entry(rights).encode(), [0x7_0000_0123, high]);
            assert_eq!(RingEntry::decode([0x7_0000_0123, high]), Some(entry(rights)));
            assert_eq!(RingEntry::decode([0x7_0000_0123, high | 0xffff_fffe_0000_0000]), Some(entry(rights)), "unused");
        }
        assert_eq!(RingEntry::decode([0x1000, 0xffff_fffe_ffff_ffff]), None, "not valid");
        assert_eq!(RingEntry::decode([0x1000, 0x1_3fff_ffff]), None, "no direction");
        assert_eq!((SLOT_BYTES, SLOTS_PER_PAGE, ENTRY_PAGES), (16, 256, 0x4_0000));
        assert_eq!((RING_ENTRIES_MAX, SEGMENT_BYTES_MAX, RING_ADDRESS_MASK), (262_143, 0x3fff_ffff, 36));
    }

    #[test]
    fn an_entry_ends_with_its_last_byte() {
        let entry = RingEntry { phys: PhysAddr::new(0x1ff0), size: 0x20, rights: Rights::READ };
        assert_eq!(entry.reach(0), Some(PhysAddr::new(0x1ff0)));
        assert_eq!(entry.reach(0x1f), Some(PhysAddr::new(0x200f)));
        assert_eq!((entry.reach(0x20), entry.reach(0x3fff_ffff)), (None, None));
        assert_eq!(RingEntry { phys: PhysAddr::new(u64::MAX), ..entry }.reach(1), None, "memory ends");
    }
}
