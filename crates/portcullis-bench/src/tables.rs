//! A look at tables, as a walker takes it: what a benchmark checks its work with.

use super::host::look;
use portcullis::iommu::Translation;
use portcullis::table::{EntryValue, LEVEL_BITS};
use portcullis::{Iova, PAGE_SHIFT};

/// The tables of a domain on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables(pub(super) Translation);

impl Tables {
    /// The translation of a page, if there is one. Passed through, there is none.
    pub(super) fn leaf(&self, iova: Iova) -> Option<EntryValue> {
        let Translation::Tables { root, levels } = self.0 else { return None };
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
