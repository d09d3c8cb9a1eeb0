//! A DMAR table that reserves memory for devices and names a device that is not on PCI. QEMU's own table does neither,
//! so the kernel is made to use this table instead.

use std::ops::Range;

/// The place in the initramfs where a kernel looks for the table.
pub(super) const PLACE: &str = "kernel/firmware/acpi/dmar.aml";

/// The address of QEMU's only unit, and the number of address bits that the unit supports.
const UNIT: u64 = 0xfed9_0000;
const ADDRESS_BITS: u8 = 39;
const HEADER_BYTES: usize = 48;

/// A device scope of one hop.
const SCOPE_BYTES: u8 = 8;
/// The number by which a scope refers to the device that `MASTER_NAME` names.
const MASTER: u8 = 1;
const MASTER_NAME: &[u8] = b"\\_SB.DMA0\0";

/// A table with one unit for all devices, which also serves a device that is not on PCI: `master` is the path of its
/// requests, which begins on bus 0. The table reserves the memory `reserved` for `devices`, which are on bus 0.
/// Devices and path elements are given by slot and function.
pub(super) fn table(reserved: Range<u64>, devices: &[(u8, u8)], master: &[(u8, u8)]) -> Vec<u8> {
    let mut structures = unit(master);
    structures.extend(name());
    structures.extend(region(reserved, devices));
    let mut table = b"DMAR".to_vec();
    table.extend(((HEADER_BYTES + structures.len()) as u32).to_le_bytes());
    // The revision and the checksum. A kernel takes this table for a newer version of QEMU's, because it has the same
    // OEM ids and a higher revision.
    table.extend([1, 0]);
    table.extend(b"BOCHS BXPC    ");
    table.extend(2u32.to_le_bytes());
    table.extend(b"BXPC");
    table.extend(1u32.to_le_bytes());
    table.extend([ADDRESS_BITS - 1, 0]);
    table.resize(HEADER_BYTES, 0);
    table.extend(structures);
    table[9] = table.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
    table
}

/// The unit that serves the master and every device that no other unit serves.
fn unit(master: &[(u8, u8)]) -> Vec<u8> {
    let scope_bytes = 6 + 2 * master.len() as u8;
    let mut unit = Vec::new();
    unit.extend(0u16.to_le_bytes());
    unit.extend((16 + u16::from(scope_bytes)).to_le_bytes());
    // It serves all of segment 0.
    unit.extend([1, 0, 0, 0]);
    unit.extend(UNIT.to_le_bytes());
    // The path begins on bus 0.
    unit.extend([5, scope_bytes, 0, 0, MASTER, 0]);
    unit.extend(master.iter().flat_map(|(slot, function)| [slot, function]));
    unit
}

/// The name of the master.
fn name() -> Vec<u8> {
    let mut name = Vec::new();
    name.extend(4u16.to_le_bytes());
    name.extend((8 + MASTER_NAME.len() as u16).to_le_bytes());
    name.extend([0, 0, 0, MASTER]);
    name.extend(MASTER_NAME);
    name
}

fn region(reserved: Range<u64>, devices: &[(u8, u8)]) -> Vec<u8> {
    let mut region = Vec::new();
    region.extend(1u16.to_le_bytes());
    region.extend((24 + u16::from(SCOPE_BYTES) * devices.len() as u16).to_le_bytes());
    region.extend([0; 4]);
    region.extend(reserved.start.to_le_bytes());
    region.extend((reserved.end - 1).to_le_bytes());
    for (slot, function) in devices {
        // An endpoint of bus 0.
        region.extend([1, SCOPE_BYTES, 0, 0, 0, 0, *slot, *function]);
    }
    region
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn the_table_adds_up() {
        let table = table(0x1000..0x3000, &[(1, 0), (0x10, 2)], &[(0x11, 0)]);
        assert_eq!(table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        assert_eq!(table[4..8], (table.len() as u32).to_le_bytes());
        assert_eq!(
            (table.len(), &table[48..52], &table[72..76]),
            (48 + 24 + 18 + 40, &[0, 0, 24, 0][..], &[4, 0, 18, 0][..])
        );
        assert_eq!(table[64..72], [5, 8, 0, 0, 1, 0, 0x11, 0]);
        assert_eq!(table[79..90], *b"\x01\\_SB.DMA0\0");
        assert_eq!(table[90..94], [1, 0, 40, 0]);
        assert_eq!(table[98..114], [0, 0x10, 0, 0, 0, 0, 0, 0, 0xff, 0x2f, 0, 0, 0, 0, 0, 0]);
        assert_eq!(table[122..], [1, 8, 0, 0, 0, 0, 0x10, 2]);
    }
}
