//! Looks up tables like a walker. Benchmarks check their work with it.

use super::host::look;
use portcullis::iommu::Translation;
use portcullis::iommu::rings::{RingAddress, RingEntry, RingPointer, SLOT_BYTES};
use portcullis::table::{EntryValue, LEVEL_BITS};
use portcullis::{Iova, PAGE_SHIFT, PAGE_SIZE, PhysAddr};

/// The tables of a domain on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables(pub(super) Translation);

impl Tables {
    /// The translation of a page, if there is one. For a ring entry, the result is as if it led to the page at which
    /// it begins. `None` if the domain passes through.
    pub(super) fn leaf(&self, iova: Iova) -> Option<EntryValue> {
        let (root, levels) = match self.0 {
            Translation::PassThrough => return None,
            Translation::Tables { root, levels } => (root, levels),
            Translation::Rings { device } => return ring_entry(device, iova),
        };
        let mut table = root;
        for level in (0..u32::from(levels)).rev() {
            let frame = look(table)?;
            let value = frame[(iova.as_u64() >> (PAGE_SHIFT + LEVEL_BITS * level)) as usize % frame.len()].load();
            if !value.is_present() {
                return None;
            }
            if level == 0 || value.is_large() {
                return Some(value);
            }
            table = value.phys();
        }
        None
    }
}

/// The ring entry that serves `iova`, if it is valid.
fn ring_entry(device: PhysAddr, iova: Iova) -> Option<EntryValue> {
    let RingAddress { ring, entry, offset } = RingAddress::of(iova);
    let ring = RingPointer::decode(slot(device, ring.into())?)?;
    let entry = if entry < ring.size { RingEntry::decode(slot(ring.table, entry.into())?)? } else { return None };
    Some(EntryValue::leaf(entry.reach(offset)?, entry.rights, false))
}

fn slot(table: PhysAddr, index: u64) -> Option<[u64; 2]> {
    let at = table.as_u64() + index * SLOT_BYTES;
    let frame = look(PhysAddr::new(at & !(PAGE_SIZE - 1)))?;
    let word = (at % PAGE_SIZE / 8) as usize;
    Some([frame[word].load_bits(), frame[word + 1].load_bits()])
}
