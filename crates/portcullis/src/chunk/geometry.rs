//! The sizes of units, chunks and tables, and how many tables there can be.

use crate::table::{ENTRIES, Entry, Frame};

/// The number of pages in a unit. Chunks consist of units. Under the model checker units are small, so that it sees
/// them end.
pub(super) const UNIT_PAGES: u64 = if cfg!(loom) { 1 } else { 16 };
/// The number of units in a leaf table.
pub(super) const TABLE_UNITS: u32 = if cfg!(loom) { 4 } else { ENTRIES as u32 / UNIT_PAGES as u32 };
/// The number of units in a chunk of most streams.
pub(super) const CHUNK_UNITS: u32 = if cfg!(loom) { 2 } else { 4 };
/// The number of units in a chunk of slow streams.
pub(super) const SLOW_UNITS: u32 = 1;
/// The number of pages in a chunk of most streams.
pub const CHUNK_PAGES: u64 = CHUNK_UNITS as u64 * UNIT_PAGES;
/// The number of pages of a table that are handed out.
pub(super) const TABLE_PAGES: u64 = TABLE_UNITS as u64 * UNIT_PAGES;
/// The largest number of tables: 512 GiB of addresses.
pub(super) const TABLES_MAX: u64 = if cfg!(loom) { 16 } else { 1 << 18 };

/// The entries of a unit in its table.
pub(super) fn unit_entries(table: &Frame, unit: u32) -> &[Entry] {
    let first = unit as usize * UNIT_PAGES as usize;
    &table[first..first + UNIT_PAGES as usize]
}
