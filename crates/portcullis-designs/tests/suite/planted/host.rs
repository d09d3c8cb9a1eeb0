//! A host with a flaw.

use portcullis::Platform;
use portcullis::forward_platform;
use portcullis::platform::WordLines;
use portcullis::platform::fake::FakeHost;
use portcullis::table::{ENTRIES, Entry};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The flaw.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostFlaw {
    None,
    /// Never makes an entry visible to a page walker that does not snoop.
    ForgetsToFlush,
    /// Makes only written entries visible, and not cleared ones.
    ForgetsToFlushWhatIsCleared,
    /// Makes only the entries of the first cache line visible.
    FlushesOneLine,
    /// Moves a cursor to its next chunk, but reports a failure: another stream gets the chunk as well.
    ForgetsACursor,
    /// Spends the first page of a cleared mapping at the next map, before the invalidation.
    SpendsWhatIsCleared,
}

/// The fake, with a flaw.
pub(crate) struct PlantedHost<'h> {
    fake: &'h FakeHost,
    flaw: HostFlaw,
    /// The first entry of the mapping that was written last; null, or in a table that has not been given back.
    written: AtomicPtr<Entry>,
}

impl<'h> PlantedHost<'h> {
    pub(crate) fn new(fake: &'h FakeHost, flaw: HostFlaw) -> Self {
        Self { fake, flaw, written: AtomicPtr::default() }
    }
}

/// Set in the first entry of a mapping in a chunk while the mapping is cleared.
const CLEARED: u64 = 1 << 9;
/// The bits of that entry that change when its page is spent.
const END: u64 = CLEARED | 1 << 10;

// SAFETY: forwards to the fake, which keeps the promises. With a flaw it breaks one on purpose, so that the checker
// finds out. The fakes panic before memory is harmed.
unsafe impl Platform for PlantedHost<'_> {
    type Lock<T: Send> = <FakeHost as Platform>::Lock<T>;
    type CpuWords = WordLines;

    forward_platform!(self => self.fake;
        locks, cpu, cpus, cpu_words, allocate_frame, allocate_frames, frame, free_frame, now_us, pause);

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        if self.flaw == HostFlaw::ForgetsToFlush {
            return;
        }
        let first = &entries[0];
        let is_written = first.load().is_present();
        match self.flaw {
            HostFlaw::SpendsWhatIsCleared if is_written => {
                self.written.store(ptr::from_ref(first).cast_mut(), Ordering::Relaxed);
            }
            // A flush of a whole table page is that of a new page, and not of a cleared one.
            HostFlaw::ForgetsToFlushWhatIsCleared if !is_written && entries.len() < ENTRIES => return,
            HostFlaw::FlushesOneLine if entries.len() < ENTRIES => {
                return self.fake.table_barrier(&entries[..1], coherent);
            }
            _ => {}
        }
        self.fake.table_barrier(entries, coherent);
    }

    fn add_here(&self, words: &WordLines, word: usize, amount: u64) -> (usize, u64) {
        // SAFETY: see `written`; a script with this flaw is too short for tables to be given back.
        if let Some(first) = unsafe { self.written.load(Ordering::Relaxed).as_ref() }
            && first.load_bits() & CLEARED != 0
        {
            first.store_bits(first.load_bits() ^ END);
        }
        self.fake.add_here(words, word, amount)
    }

    fn exchange_at(&self, words: &WordLines, line: usize, word: usize, old: u64, new: u64) -> bool {
        let done = self.fake.exchange_at(words, line, word, old, new);
        done && self.flaw != HostFlaw::ForgetsACursor
    }
}
