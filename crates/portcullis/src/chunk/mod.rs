//! The design `portcullis`. Each stream of requests allocates consecutive addresses from a chunk of its own, and the
//! entries of the leaf tables themselves record which pages are free.
//!
//! # Terms
//!
//! - A *page* is 4 KiB of IOVA space. Its entry in a leaf table holds its translation and its state.
//! - A *unit* is 16 pages with adjacent entries. A leaf table has 32 units.
//! - A *chunk* is the run of pages that a stream receives at a time. It has 4 units (64 pages) for most streams, and 1
//!   unit for slow ones. Requests of more than 32 pages use separate chunks of a whole leaf table.
//! - A *stream* is one direction of a ring or, if the driver names no ring, of a CPU. Its *cursor* is the position in
//!   its chunk.
//! - A *table* is here always a leaf table, of 512 pages. Tables are numbered from the first page of the upper half of
//!   the address space; chunks lie only there.
//!
//! All other addresses are managed as in the design `magazine`, preferring the lower half. They are for requests of
//! more than 511 pages, for persistent mappings, and for all mappings if the address space is too narrow for chunks or
//! if no further table can be added. The addresses of a table are *held* for chunks from when it is added until they
//! are *lent*: given to the other allocator, because it has none left and nothing is mapped in the table. Requests with
//! a [placement](crate::Placement) never use chunks.
//!
//! # The life of a page
//!
//! A page is handed out again and again; each time is a *generation*. One bit of the entry tells the current generation
//! from the next. In each generation, the page goes through these states:
//!
//! - *fresh*: not handed out yet, or handed out and not yet written;
//! - *mapped*: a device may use it;
//! - *cleared*: unmapped, but the device may still have the translation cached;
//! - *spent*: finished in this generation. For the first page of a mapping this means that the device has lost the
//!   mapping.
//!
//! ```text
//!                  taken             written              unmapped              the invalidation has completed
//!              Chunks::take    page_states::write    page_states::clear    Cleared::spend, page_states::spend
//!
//! first page        fresh ----------> mapped ------------> cleared ------------> spent (fresh in the next generation)
//! other pages       fresh ----------> mapped ------------> spent
//! unused tail       fresh ------------------------------> spent (Chunks::give_up, when the chunk is replaced)
//! ```
//!
//! Only the first page of a mapping waits for the invalidation. The other pages are marked spent at once, which is safe
//! because a mapping lies in one chunk, and a chunk comes back as a whole. No page of a mapping is therefore handed out
//! again before the first page of that mapping is spent.
//!
//! Handing out a page writes nothing. The stream that a chunk is out to finds that all of its pages are spent, and
//! gives the chunk back. The record of the table then has its units in the next generation, in which the same entries
//! mean *fresh*. There is one exception: if the units of a chunk are in different generations, `TableRecord::open`
//! rewrites some of them, so that all begin in the same one.
//!
//! `page_states.rs` shows the bits of an entry in each state.
//!
//! # The life of a table
//!
//! 1. A stream needs a chunk and no table has one. The table gets a number (`TablePool::number`), its addresses are
//!    taken from the other allocator (`Halves::hold`), its page is allocated and put into the domain's table
//!    (`AddressSpace::add_leaf_table`), the number is linked to the page (`ChunkTables::link`), and the table is added
//!    to the idle ones (`TablePool::add`).
//! 2. It is opened for a log (`ChunkSource::ask_log`). Streams take its chunks one by one (`OpenTables::take`). A
//!    stream with large requests takes the whole table instead.
//! 3. A stream keeps its chunks in a list (`OutChunks::add`), and gives them back when they are spent. With three
//!    quarters of the table given back, it is ready, and queues behind the other ready tables of its log (`TableLog`).
//! 4. When its turn comes it is opened again, without the chunks that stragglers keep.
//! 5. If it is not needed for a while, it is unlinked (`reclaim.rs`). Its page waits until an all-levels invalidation
//!    has completed and all software walks that might have found it have ended. Then the page is freed, and the number
//!    can be used again.
//!
//! # What a map and an unmap do
//!
//! A map of one page advances the cursor of its stream by one atomic addition, finds the table by its number with two
//! loads, each of which depends on the one before, and stores the entry. An unmap finds the entry in the same way,
//! after a bounds check, verifies that a mapping of the given length begins there, clears it, invalidates it, and
//! spends it. Neither takes a lock in this folder. When a chunk ends, about once in 64 pages, the stream takes the next
//! one from the open table by one atomic operation, and gives back older ones by another. When the open table has no
//! chunk left, the next one is opened under the lock of the log.
//!
//! # Where to read
//!
//! `designs/portcullis.rs` lists the files that a map and an unmap go through, in order. In this folder:
//!
//! - `mapper.rs`: the mapper of the design, with the fast paths of map, unmap and commit;
//! - `general_maps.rs`: maps that find no place there;
//! - `general_unmaps.rs`: all other unmaps and commits;
//! - `two_halves.rs`: the allocators of the two halves of the address space, as one allocator, and what one lends to
//!   the other;
//! - `geometry.rs`: the sizes of units, chunks and tables, and how many tables there can be;
//! - `chunks.rs`: cursors, taking pages, and replacing a chunk;
//! - `page_states.rs`: the states of a page and the bits of its entry;
//! - `tables.rs`: finding a table by its number, without a lock;
//! - `chunk_source.rs`: where the next chunk comes from, and sweeps;
//! - `open_tables.rs`: the open tables, from which streams take chunks without a lock;
//! - `out_chunks.rs`: the chunks that a stream has, and which of them are spent;
//! - `table_record.rs`, `table_records.rs`: which units of a table have been given back, and all records by number;
//! - `table_log.rs`, `table_list.rs`: the ready tables of a log, in the order in which they are filled again;
//! - `table_pool.rs`: idle tables, and the numbers of tables;
//! - `rate.rs`: which streams are slow;
//! - `leaving.rs`: the pages of tables that are being freed;
//! - `reclaim.rs`: freeing the pages of tables that are not needed.
//!
//! `table/leaf_pages.rs` adds a leaf table to the domain's table and removes it.

mod chunk_source;
mod chunks;
mod general_maps;
mod general_unmaps;
mod geometry;
mod leaving;
mod mapper;
mod open_tables;
mod out_chunks;
mod page_states;
mod rate;
mod reclaim;
mod table_list;
mod table_log;
mod table_pool;
mod table_record;
mod table_records;
mod tables;
mod two_halves;

pub use chunk_source::TABLE_IDLE_US;
pub use chunks::CHUNKED_PAGES_MAX;
pub use geometry::CHUNK_PAGES;
pub use mapper::Chunked;
pub use table_pool::TABLE_RESERVE;
