//! The design `portcullis`, whole: addresses that streams hand out to themselves, in tables that say themselves what is free.
//!
//! # The life of a page
//!
//! ```text
//!                 map                    unmap               the invalidation            the chunk is
//!                                                            has completed               handed out again
//!   fresh ----------------> mapped ----------------> cleared ----------------> spent ----------------> fresh
//!         cursor.fetch_add         entry: absent,            entry: the other          (from now on this
//!         entry: address, rights   length kept               generation                is the other one)
//! ```
//!
//! A table page lives longer: it is added to the log of tables, linked, opened, filled chunk by chunk, filled again as its pages
//! are spent; and one that is not needed for a while is unlinked, waits until the hardware and all walks have left it, and goes
//! back to the host.
//!
//! # Where to read
//!
//! `designs/portcullis.rs` lists the files of a map and of an unmap, in order. Both find a table by its number, in `tables.rs`: one
//! load. Once in 64 pages a map needs another chunk: from `open_tables.rs`, and once in a table from `table_log.rs`. Beside these
//! paths, `leaf_table.rs` is what the log knows of one table, and `rate.rs` which streams are slow.

mod chunks;
mod leaf_table;
mod mapper;
mod open_tables;
mod page_states;
mod rate;
mod table_log;
mod tables;

pub use chunks::{CHUNK_PAGES, CHUNKED_PAGES_MAX, TABLE_IDLE_US};
pub use mapper::{ChunkFront, Chunked, Halves, chunked};
pub use table_log::TABLE_RESERVE;
