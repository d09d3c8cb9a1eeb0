//! Writing translations: the IO page table of a domain.

mod counted;
mod entry;
mod freed;
mod second_level;

pub use entry::{ADDRESS_MASK, ENTRIES, Entry, EntryValue, Frame, LEVEL_BITS, Rights};
pub use freed::FreedTables;
pub(crate) use freed::release;
pub use second_level::{SecondLevelTable, TableRule};
