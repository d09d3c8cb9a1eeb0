//! A table of firmware's that reserves memory for devices, where QEMU's own reserves none: a kernel takes it in place of that.

use std::ops::Range;

/// Where a kernel looks for it in its initramfs.
pub(super) const PLACE: &str = "kernel/firmware/acpi/dmar.aml";

/// QEMU's only unit, and the bits of an address that it takes.
const UNIT: u64 = 0xfed9_0000;
const ADDRESS_BITS: u8 = 39;
const HEADER_BYTES: usize = 48;

/// A table with one unit for all devices, in which this memory is reserved for these devices of bus 0, by slot and function.
pub(super) fn table(reserved: Range<u64>, devices: &[(u8, u8)]) -> Vec<u8> {
    let mut structures = unit();
    structures.extend(region(reserved, devices));
    let mut table = b"DMAR".to_vec();
    table.extend(((HEADER_BYTES + structures.len()) as u32).to_le_bytes());
    // The revision and the checksum. A kernel takes the table for a newer one of QEMU's: by its makers and by a higher revision.
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

/// The unit that serves whatever no other does.
fn unit() -> Vec<u8> {
    let mut unit = Vec::new();
    unit.extend(0u16.to_le_bytes());
    unit.extend(16u16.to_le_bytes());
    // All of the segment, which is 0.
    unit.extend([1, 0, 0, 0]);
    unit.extend(UNIT.to_le_bytes());
    unit
}

fn region(reserved: Range<u64>, devices: &[(u8, u8)]) -> Vec<u8> {
    const SCOPE_BYTES: u8 = 8;
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
        let table = table(0x1000..0x3000, &[(1, 0), (0x10, 2)]);
        assert_eq!(table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        assert_eq!(table[4..8], (table.len() as u32).to_le_bytes());
        assert_eq!(
            (table.len(), table[48..52].to_vec(), table[64..68].to_vec()),
            (48 + 16 + 40, vec![0, 0, 16, 0], vec![1, 0, 40, 0])
        );
        assert_eq!(table[72..88], [0, 0x10, 0, 0, 0, 0, 0, 0, 0xff, 0x2f, 0, 0, 0, 0, 0, 0]);
        assert_eq!(table[96..], [1, 8, 0, 0, 0, 0, 0x10, 2]);
    }
}
