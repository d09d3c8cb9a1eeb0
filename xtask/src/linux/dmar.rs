//! A DMAR table that reserves memory for devices and names a device that is not on PCI. QEMU's own table does neither,
//! so the kernel is made to use this table instead.

use std::ops::Range;

/// The place in the initramfs where a kernel looks for the table.
pub(super) const PLACE: &str = "kernel/firmware/acpi/dmar.aml";

/// The address of QEMU's only unit, and the number of address bits that the unit supports.
const UNIT: u64 = 0xfed9_0000;
const ADDRESS_BITS: u8 = 39;
const HEADER_BYTES: usize = 48;
/// The flag of a machine whose units can remap interrupts, and the scope of its interrupt controller (IOAPIC), as in
/// QEMU's own table: number 0, on bus 0xff.
const REMAPS: u8 = 1;
const IOAPIC: [u8; 8] = [3, 8, 0, 0, 0, 0xff, 0, 0];

/// The number by which a scope refers to the device that `MASTER_NAME` names.
const MASTER: u8 = 1;
const MASTER_NAME: &[u8] = b"\\_SB.DMA0\0";

/// A table with one unit for all devices, which also serves a device that is not on PCI: `master` is the path of its
/// requests, which begins on bus 0. The table reserves the memory `reserved` for `devices`, which are on bus 0.
/// Devices and path elements are given by slot and function. As in some firmware, the region is listed twice, another
/// one ends before it begins, and the unit is near no memory (RHSA) because its address is missing.
pub(super) fn table(reserved: Range<u64>, devices: &[(u8, u8)], master: &[(u8, u8)]) -> Vec<u8> {
    // The unit serves the master and every device of segment 0 that no other unit serves. The path begins on bus 0.
    let path: Vec<u8> = master.iter().flat_map(|(slot, function)| [*slot, *function]).collect();
    let scope = [5, 6 + path.len() as u8, 0, 0, MASTER, 0];
    let unit = structure(0, &[&[1, 0, 0, 0], &UNIT.to_le_bytes(), &IOAPIC, &scope, &path]);
    let name = structure(4, &[&[0, 0, 0, MASTER], MASTER_NAME]);
    // Each device is an endpoint of bus 0.
    let scopes: Vec<u8> = devices.iter().flat_map(|(slot, function)| [1, 8, 0, 0, 0, 0, *slot, *function]).collect();
    let (first, last) = (reserved.start.to_le_bytes(), (reserved.end - 1).to_le_bytes());
    let region = structure(1, &[&[0; 4], &first, &last, &scopes]);
    let backwards = structure(1, &[&[0; 4], &last, &first, &scopes]);
    let near = structure(3, &[&[0; 4], &0u64.to_le_bytes(), &0u32.to_le_bytes()]);
    let structures = [unit, name, region.clone(), region, backwards, near].concat();
    let bytes = (HEADER_BYTES + structures.len()) as u32;
    // The revision and the checksum follow. A kernel takes this table for a newer version of QEMU's, because it has the
    // same OEM ids and a higher revision.
    let head = [b"DMAR", &bytes.to_le_bytes()[..], &[1, 0], b"BOCHS BXPC    ", &2u32.to_le_bytes()].concat();
    let mut table = [&head, &b"BXPC"[..], &1u32.to_le_bytes(), &[ADDRESS_BITS - 1, REMAPS]].concat();
    table.resize(HEADER_BYTES, 0);
    table.extend(structures);
    table[9] = table.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
    table
}

/// A structure of this type: its type and its length, then `parts`.
fn structure(of_type: u16, parts: &[&[u8]]) -> Vec<u8> {
    let parts = parts.concat();
    [&of_type.to_le_bytes(), &(4 + parts.len() as u16).to_le_bytes(), &parts[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn the_table_adds_up() {
        let table = table(0x1000..0x3000, &[(1, 0), (0x10, 2)], &[(0x11, 0)]);
        assert_eq!(table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        assert_eq!(table[4..8], (table.len() as u32).to_le_bytes());
        assert_eq!((table.len(), table[37]), (48 + 32 + 18 + 3 * 40 + 20, 1));
        let (unit, others) = table[48..].split_at(32);
        assert_eq!((&unit[..4], &unit[16..24]), (&[0, 0, 32, 0][..], &[3, 8, 0, 0, 0, 0xff, 0, 0][..]));
        assert_eq!(unit[24..], [5, 8, 0, 0, 1, 0, 0x11, 0]);
        assert_eq!((&others[..4], &others[7..18]), (&[4, 0, 18, 0][..], &b"\x01\\_SB.DMA0\0"[..]));
        assert_eq!(others[18..22], [1, 0, 40, 0]);
        assert_eq!(others[26..42], [0, 0x10, 0, 0, 0, 0, 0, 0, 0xff, 0x2f, 0, 0, 0, 0, 0, 0]);
        assert_eq!(others[50..58], [1, 8, 0, 0, 0, 0, 0x10, 2]);
        assert_eq!((&others[18..58], others[106..122] == others[26..42]), (&others[58..98], false));
        assert_eq!(others[106..114], others[34..42]);
        assert_eq!(others[138..], [3, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
