//! The tests of the library, in one program: each design is built once for all of them, not once for each.

mod allocators;
mod at_map;
mod checker;
mod chunks;
mod compile_fail;
mod completion;
mod domains;
mod errors;
mod failed_invalidations;
mod flush_queues;
mod fuzz;
#[path = "../fuzzing/mod.rs"]
mod fuzzing;
mod identity;
mod interrupted;
mod machines;
mod order;
mod ownership;
mod planted;
mod properties;
mod riding;
mod rings;
mod shared;
mod single_pages;
mod tables;
mod unawaited;
mod whole_lock;
