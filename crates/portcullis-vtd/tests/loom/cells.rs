//! The cells of posts by themselves: in larger models, so much else orders the CPUs that a weaker hand-over goes
//! unnoticed.

use cells::{Answer, Cells, Fate, NO_POSTS, Post};
use loom::sync::atomic::AtomicU64 as Word;
use loom::thread;
use portcullis::platform::CpuHint;
use portcullis::platform::fake::FakeHost;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

// The files, because the types are private.
#[allow(dead_code, reason = "a model needs few of its functions")]
#[path = "../../src/queue/cells.rs"]
mod cells;
#[allow(dead_code, reason = "a model needs few of its functions")]
#[path = "../../src/queue/failure.rs"]
mod failure;

/// What the file needs of the module around it.
pub(crate) type Words = [u64; 2];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Submission(NonZeroU64);

impl Submission {
    fn word(self) -> u64 {
        self.0.get()
    }

    fn of_word(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
    }
}

const CLEARED: u64 = 1;
const RESET: u64 = 1;

/// A CPU clears an entry and posts its command. The holder of the ring takes the post, and hands the command to the
/// hardware, which must find the entry cleared. Then it resets a status and tells the CPU of it, which must not read
/// the status as it was before.
#[test]
fn each_side_sees_what_precedes_the_hand_over() {
    static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    loom::model(|| {
        let host: &FakeHost = Box::leak(Box::default());
        let cells = Arc::new(Cells::new(&host, false).expect("memory"));
        let (entry, status) = (Arc::new(Word::new(0)), Arc::new(Word::new(0)));
        // Loom remembers only the last access to a word, so a CPU that looks at the cell again hides from it that the
        // other could have come between. These steps order nothing but show where it could.
        let steps = Arc::new(Word::new(0));
        let number = cells.number(CpuHint(0));
        let post = Post::of([0, 0x1000], 0).expect("a page");
        // The holder looks where posts have been of late.
        cells.post(number, post, |_| true).expect("a free cell");
        let mut taken = NO_POSTS;
        assert_eq!(cells.search(0, &mut taken, |_| true), None);
        cells.tell(&taken, Fate::taken(None), false);

        let other = (cells.clone(), entry.clone(), status.clone(), steps.clone());
        let poster = thread::spawn(move || {
            let (cells, entry, status, steps) = other;
            entry.store(CLEARED, Ordering::Relaxed);
            let place = cells.post(number, post, |_| true).expect("a free cell");
            (0..2).for_each(|_| _ = steps.fetch_add(1, Ordering::Relaxed));
            match cells.get(number).answer(place) {
                Answer::Told(Some(_), _) => {
                    assert_eq!(status.load(Ordering::Relaxed), RESET, "S2: told of a status that is not reset");
                    true
                }
                Answer::Waits => false,
                _ => panic!("the post was taken into a submission, or was not"),
            }
        });
        let mut taken = NO_POSTS;
        let take = |_| {
            assert_eq!(entry.load(Ordering::Relaxed), CLEARED, "S2: the hardware may find the page again");
            true
        };
        steps.fetch_add(1, Ordering::Relaxed);
        assert_eq!(cells.search(0, &mut taken, take), None);
        let is_taken = taken != NO_POSTS;
        if is_taken {
            status.store(RESET, Ordering::Relaxed);
            cells.tell(&taken, Fate::taken(Submission::of_word(1)), false);
        }
        steps.fetch_add(1, Ordering::Relaxed);
        let is_told = poster.join().expect("no panic");
        SEEN[usize::from(is_taken) + usize::from(is_told)].fetch_add(1, Ordering::Relaxed);
    });
    assert!(SEEN.iter().all(|count| count.load(Ordering::Relaxed) > 0), "{SEEN:?}");
}
