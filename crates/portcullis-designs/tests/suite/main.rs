//! The tests of the library, in one program, so that each design is built once for all of them. There is one file for
//! each subject, and so more files than in other folders.

mod allocators;
mod asynchronous;
mod buffers;
mod chunks;
#[path = "../compile_fail/mod.rs"]
mod compile_fail;
mod contract;
mod counting;
mod cpu_words;
mod domains;
mod dynamic;
mod entries;
#[path = "../forwarding/mod.rs"]
mod forwarding;
mod fuzz;
#[path = "../fuzzing/mod.rs"]
mod fuzzing;
mod halves;
mod heap;
mod identity;
mod interrupted;
mod invalidation_at_map;
mod map_batch;
mod memory;
mod ownership;
mod panics;
mod placement;
mod planted;
mod properties;
mod readme;
mod rings;
mod riommu;
mod s11_completion;
mod s11_failed_invalidations;
mod s11_shared_commits;
mod s13_narrow_spaces;
mod s1_coherence;
mod s4_flush_queues;
mod s4_table_lifetimes;
mod s6_refusals;
mod shared_leaves;
mod single_pages;
mod sub_page;
mod tables;
mod waits;
mod whole_lock;

use portcullis_testkit::{checker, raw_face};
