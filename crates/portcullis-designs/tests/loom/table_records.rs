//! The record of a table by itself: in larger models, the locks of the host order so much that it goes unnoticed if
//! chunks come back unordered.

use loom::thread;
use portcullis::Platform;
use portcullis::platform::Context;
use portcullis::platform::fake::FakeHost;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use table_record::TableRecord;

// The files, because the types are private.
#[allow(dead_code, unreachable_pub, reason = "a model needs few of its items")]
#[path = "../../../portcullis/src/chunk/geometry.rs"]
mod geometry;
#[allow(dead_code, reason = "a model needs few of its functions")]
#[path = "../../../portcullis/src/chunk/table_record.rs"]
mod table_record;

/// What the file needs of the module beside it.
mod page_states {
    use portcullis::table::Entry;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Idle(bool);

    impl Idle {
        pub(crate) const FIRST: Self = Self(false);

        pub(crate) const fn next(self) -> Self {
            Self(!self.0)
        }
    }

    pub(crate) fn spend_unused(_entries: &[Entry]) {
        panic!("S3: the units of a chunk seem to be in different generations");
    }
}

/// One CPU gives back three of the four units of a table, which makes it ready, and opens it. The other gives back the
/// fourth, before that or after it. If that unit is handed out again, all that the other CPU did before is seen.
#[test]
fn the_cpu_that_opens_a_table_sees_what_precedes_each_return() {
    static HANDED_OUT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    super::check(|| {
        let host: &FakeHost = Box::leak(Box::default());
        let frame = host.allocate_frame(Context::MaySleep).expect("memory");
        let record = Arc::new(TableRecord::new());
        // SAFETY: it is freed at the end, when both threads have ended.
        let open = |record: &TableRecord| record.open(host, unsafe { host.frame(frame) }, 1, 1);
        assert_eq!(open(&record), 0b1111);
        let other = record.clone();
        let second = thread::spawn(move || {
            other.end_generation(0b1000);
            other.give_back(0b1000, 1)
        });
        record.end_generation(0b111);
        assert_eq!(record.give_back(0b111, 3), Some(1), "it is ready, whether the fourth is there or not");
        let units = open(&record);
        let is_new = |unit: &u32| record.generation(*unit) == page_states::Idle::FIRST.next();
        let seen: Vec<u32> = (0..4).filter(|unit| units & 1 << unit != 0).filter(is_new).collect();
        assert_eq!(seen.len() as u32, units.count_ones(), "S3: only {seen:?} of {units:#b} seem to be spent");
        assert_eq!(second.join().expect("no panic"), None);
        HANDED_OUT[usize::from(units == 0b1111)].fetch_add(1, Ordering::Relaxed);
        // SAFETY: nothing uses it any more.
        unsafe { host.free_frame(frame) };
    });
    assert!(HANDED_OUT.iter().all(|count| count.load(Ordering::Relaxed) > 0));
}
