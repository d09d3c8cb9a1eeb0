//! The IO page table of a domain, and how translations are written to it.

mod cursor;
mod freed;
mod leaf_pages;
mod marks;
mod second_level;
mod shared;
mod walker;

pub use crate::entry::{ADDRESS_MASK, ENTRIES, Entry, EntryValue, Frame, LEVEL_BITS, Rights, SHARES_MAX};
pub use cursor::{Cursor, LEVELS_MAX, index, span};
pub(crate) use freed::release;
pub use freed::{FreedTables, release_page};
pub use second_level::{SecondLevelTable, TableRule};
pub use shared::{Share, SharedRun, Unshare};
pub(crate) use walker::TableReserve;
pub use walker::Walker;
