//! The design `portcullis`, whole: addresses that streams hand out to themselves, in tables that say themselves what is free.
//!
//! # The life of a page
//!
//! Pages are handed out in generations, of which the entry of a page knows two: this one and the other.
//!
//! ```text
//!                    map                    unmap              the invalidation has completed
//!              Chunks::take
//!              page_states::write     page_states::clear     Cleared::spend, page_states::spend
//!
//! first page   fresh ------> mapped ------------> cleared ------------> spent: fresh in the other generation
//! other pages  fresh ------> mapped ------------> spent
//! unused rest  fresh ------> spent, where a chunk is replaced before its end
//! ```
//!
//! To make a spent page fresh nothing is written, as a rule: `TableRecord::look` finds that all pages of a unit are spent, and
//! notes that the unit is now in the other generation. Only where a chunk is made of units in different generations does
//! `TableRecord::hand_out` write some of them over, so that all begin in the same.
//!
//! A table page lives longer. It is given a number, put into the domain's table, linked by its number, and added to the log of
//! tables; then it is opened, filled chunk by chunk, and, when its pages are spent, filled again. One that is not needed for a
//! while is unlinked, waits until the hardware and all walks of software have left it, and goes back to the host.
//!
//! # Where to read
//!
//! `designs/portcullis.rs` lists the files of a map and of an unmap, in order. Both find a table by its number in `tables.rs`,
//! by three loads, each of which needs the one before, and no lock: of the array, of where its pointers are, and of the table.
//! Once in 64 pages a map needs another chunk, from `open_tables.rs`, and once in a table another table, from `table_log.rs`.
//! Where that has none, `table/leaf_pages.rs` adds one to the domain's table; `Chunked::tick` lets `reclaim.rs` take out those
//! that are not needed. Beside these, `table_record.rs` is what the log knows of one table, and `rate.rs` which streams are
//! slow.

mod chunks;
mod general_unmaps;
mod halves;
mod mapper;
mod open_tables;
mod page_states;
mod rate;
mod reclaim;
mod table_log;
mod table_record;
mod tables;

pub use chunks::{CHUNK_PAGES, CHUNKED_PAGES_MAX, TABLE_IDLE_US};
pub use mapper::Chunked;
pub use table_log::TABLE_RESERVE;
