//! Writing translations: the IO page table of a domain.

mod entry;

pub use entry::{ADDRESS_MASK, ENTRIES, Entry, EntryValue, Frame, LEVEL_BITS, Rights};
