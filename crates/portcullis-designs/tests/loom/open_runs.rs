//! The run of pages that unmaps join without a lock, by itself: in larger models, the locks of the host order so much
//! that a weaker join goes unnoticed.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use open_run::OpenRun;
use portcullis::IovaRange;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// What the file needs of the module around it.
pub(crate) struct Revoked {
    range: IovaRange,
    unmaps: usize,
}

// The file, because the type is private.
#[allow(dead_code, reason = "a model needs few of its functions")]
#[path = "../../../portcullis/src/invalidation/open_run.rs"]
mod open_run;

fn page(pfn: u64) -> IovaRange {
    IovaRange::new(pfn, 1).expect("a page")
}

/// One CPU clears a translation and joins its unmap. The other closes the run, and tells the hardware about its pages.
#[test]
fn the_cpu_that_closes_a_run_sees_what_precedes_each_join() {
    static JOINED: AtomicUsize = AtomicUsize::new(0);
    static LATE: AtomicUsize = AtomicUsize::new(0);
    super::check(|| {
        let (run, cleared) = (Arc::new(OpenRun::none()), Arc::new(AtomicU64::new(0)));
        run.begin(page(9), 8);
        let other = (run.clone(), cleared.clone());
        let unmapping = thread::spawn(move || {
            other.1.store(1, Ordering::Relaxed);
            other.0.join::<64>(page(10))
        });
        let closed = run.close().expect("a run");
        if closed.unmaps == 2 {
            assert_eq!(cleared.load(Ordering::Relaxed), 1, "S2: the hardware may find the page again");
        }
        let has_joined = unmapping.join().expect("no panic");
        assert_eq!(has_joined, closed.unmaps == 2);
        let count = if has_joined { &JOINED } else { &LATE };
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(JOINED.load(Ordering::Relaxed) > 0 && LATE.load(Ordering::Relaxed) > 0);
}
