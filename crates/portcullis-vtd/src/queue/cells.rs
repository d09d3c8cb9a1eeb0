//! Where CPUs post commands for the holder of the ring.
//!
//! ```text
//!            word, a line                        hints, a line
//! cell[cpu]  the CPU: a post                     of the CPU alone
//!            the holder: what became of it
//! ```
//!
//! The word of a cell is a [`Post`] or a [`Fate`]. It is a fate at first, then a post and a fate in turn. Only the CPU
//! of the cell turns a fate into a post, and only the holder of the ring turns a post into a fate. A post replaces a
//! fate only if the submission of that has landed well, or if its failure was seen. A fate changes if its owner has
//! seen a failure, or if the holder of the ring has seen a landing.

use super::{Submission, Words};
use crate::sorted::{OnLines, try_defaults, try_on_lines};
use crate::sync::{AtomicU64, Hint, Ordering, beside, fence_of_sequential_accesses};
use alloc::boxed::Box;
use core::cmp::Ordering::{Equal, Greater, Less};
use portcullis::platform::{CpuHint, Padded};
use portcullis::{NoMemory, Platform, QueueError};

/// The most cells. CPUs beyond them share cells with others.
const CELLS_MAX: usize = 256;
const WORDS: usize = CELLS_MAX / u64::BITS as usize;

const NOT_YET: u32 = u32::MAX;

/// A set of cells, by their numbers.
pub(super) type CellSet = [u64; WORDS];
pub(super) const NO_POSTS: CellSet = [0; WORDS];

/// So many CPUs are faster if they take turns at the ring than if they post.
const CROWD: u32 = 2;

/// A page-selective command in one word.
///
/// ```text
///  59        24 23     8  7    6     1    0
/// |  page      | domain |leaf| mask    |  1  |
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Post(u64);

const IS_POST: u64 = 1;
/// The bits of a descriptor that posts carry: the domain in the low quadword; the mask, the hint for leaves and the
/// page in the high one.
const DOMAIN: u64 = 0xffff << 16;
const SELECTION: u64 = 0x7f;
const PAGE: u64 = ((1 << 48) - 1) & !0xfff;
/// What lies where in a post.
const MASK_AT: u32 = 1;
const MASK: u64 = 0x3f;
const LEAF_ONLY: u64 = 1 << 7;
const DOMAIN_HERE: u64 = 0xffff << 8;
const PAGE_AT: u32 = 24;

impl Post {
    /// The post of a descriptor, if it is page-selective. `form` is the low quadword of such descriptors, without a
    /// domain.
    #[inline]
    pub(super) const fn of([low, high]: Words, form: u64) -> Option<Self> {
        if low & !DOMAIN == form && high & !(SELECTION | PAGE) == 0 {
            Some(Self((high & PAGE) << 12 | (low & DOMAIN) >> 8 | (high & SELECTION) << 1 | IS_POST))
        } else {
            None
        }
    }

    /// The descriptor.
    #[inline]
    pub(super) const fn descriptor(self, form: u64) -> Words {
        [form | self.0 << 8 & DOMAIN, self.0 >> 12 & PAGE | self.0 >> 1 & SELECTION]
    }

    /// Whether it says that only leaves have changed.
    pub(super) const fn is_leaf_only(self) -> bool {
        self.0 & LEAF_ONLY != 0
    }

    /// The command that covers the pages of both, if they are of one domain and it needs a mask of `mask_max` at most.
    pub(super) const fn covering(self, other: Self, mask_max: u8) -> Option<Self> {
        let both = [self.0, other.0];
        let open = [self.open(), other.open()];
        let differing = (both[0] ^ both[1]) >> PAGE_AT | open[0] | open[1];
        let mask = u64::BITS - differing.leading_zeros();
        if (both[0] ^ both[1]) & DOMAIN_HERE != 0 || mask > mask_max as u32 {
            return None;
        }
        let above = u64::MAX << PAGE_AT << mask;
        Some(Self(both[0] & (above | DOMAIN_HERE | LEAF_ONLY) | (mask as u64) << MASK_AT | IS_POST))
    }

    /// The bits of the number of its page that its mask leaves open.
    const fn open(self) -> u64 {
        (1 << (self.0 >> MASK_AT & MASK)) - 1
    }
}

/// What became of a post. The word is even.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fate(u64);

impl Fate {
    const IS_ON_DUTY: u64 = 2;
    const HAS_FAILED: u64 = 4;
    const SHIFT: u32 = 3;

    /// It was taken into `submission`; `None` if that has landed well.
    pub(super) fn taken(submission: Option<Submission>) -> Self {
        Self(submission.map_or(0, |submission| submission.word() << Self::SHIFT))
    }

    fn failed(error: QueueError) -> Self {
        Self(super::failure::number_of(error) << Self::SHIFT | Self::HAS_FAILED)
    }

    /// The same for the post whose CPU goes on duty.
    pub(super) const fn on_duty(self) -> Self {
        Self(self.0 | Self::IS_ON_DUTY)
    }

    pub(super) const fn is_on_duty(self) -> bool {
        self.0 & Self::IS_ON_DUTY != 0
    }

    /// The submission that the post was taken into, `None` if that has landed.
    ///
    /// # Errors
    /// The error with which it has failed, if its owner has seen that.
    #[inline]
    pub(super) fn submission(self) -> Result<Option<Submission>, QueueError> {
        let value = self.0 >> Self::SHIFT;
        if self.0 & Self::HAS_FAILED != 0 {
            return Err(super::failure::error_of(value));
        }
        Ok(Submission::of_word(value))
    }
}

/// Where a command was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// The number of the cell.
    pub(super) cell: u8,
    /// How many posts had failed there before.
    failures: u32,
    post: Post,
}

/// What a cell tells the owner of a post.
pub(super) enum Answer {
    /// It was not taken.
    Waits,
    /// It was taken into this submission, or had landed when the cell was told.
    Told(Option<Submission>, Fate),
    /// The post is not the last one there. It was done, or a post failed since.
    Over(Result<(), QueueError>),
}

/// The cell of a CPU.
#[derive(Default)]
#[repr(C)]
pub(super) struct Cell {
    word: AtomicU64,
    /// The rest of the line.
    _line: [u64; 7],
    /// Whether the next commit posts before it looks at the ring.
    posts_first: Hint,
    /// When the CPU has first polled its last post, or has looked since then at the ring or for errors, in
    /// microseconds, modulo 2^32. [`NOT_YET`] between a post and its first poll.
    waits_since_us: Hint,
    /// Posts whose failure was seen.
    failures: AtomicU64,
}

impl Cell {
    #[inline(always)]
    pub(super) fn posts_first(&self) -> bool {
        self.posts_first.load(Ordering::Relaxed) != 0
    }

    /// Whether the last post was not taken.
    pub(super) fn is_posted(&self) -> bool {
        self.word.load(Ordering::Relaxed) & IS_POST != 0
    }

    pub(super) fn set_posts_first(&self, posts_first: bool) {
        if self.posts_first() != posts_first {
            self.posts_first.store(u32::from(posts_first), Ordering::Relaxed);
        }
    }

    /// Whether `patience_us` have passed since the post of the CPU was first polled, or since this was last so.
    pub(super) fn has_waited<P: Platform>(&self, platform: &P, patience_us: u32) -> bool {
        let now_us = platform.now_us() as u32;
        let since_us = self.waits_since_us.load(Ordering::Relaxed);
        let has_waited = since_us != NOT_YET && now_us.wrapping_sub(since_us) >= patience_us;
        if has_waited || since_us == NOT_YET {
            self.waits_since_us.store(now_us, Ordering::Relaxed);
        }
        has_waited
    }

    /// What became of a post.
    ///
    /// Late callers may learn of the failure of a later post, but never that a post was done which has failed (S11).
    #[inline]
    pub(super) fn answer(&self, place: Place) -> Answer {
        // Acquire: of the status, which was reset before the holder told of the submission; or of the landing of the
        // submission, which the holder has seen, or the CPU that posted the next command. Also of the failures that
        // were counted before.
        let word = self.word.load(Ordering::Acquire);
        if word == place.post.0 {
            return Answer::Waits;
        }
        let is_sound = self.failures.load(Ordering::Relaxed) as u32 == place.failures;
        match Fate(word).submission() {
            _ if word & IS_POST != 0 => Answer::Over(if is_sound { Ok(()) } else { Err(QueueError::Descriptor) }),
            Err(error) => Answer::Over(Err(error)),
            Ok(_) if !is_sound => Answer::Over(Err(QueueError::Descriptor)),
            Ok(submission) => Answer::Told(submission, Fate(word)),
        }
    }

    /// Whether the cell names no submission. If it names one that has landed well, it does not any more: the CPU may
    /// not come back before the status of that submission is out of the reach of comparison.
    fn is_settled(&self, has_landed: impl FnOnce(Submission) -> bool) -> bool {
        let word = self.word.load(Ordering::Acquire);
        let fate = Fate(word);
        match fate.submission() {
            _ if word & IS_POST != 0 => false,
            Ok(Some(submission)) if has_landed(submission) => {
                let landed = Fate(fate.0 & Fate::IS_ON_DUTY).0;
                // AcqRel: it hands over the landing. If it fails, the CPU has posted.
                self.word.compare_exchange(word, landed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            }
            Ok(Some(_)) => false,
            Ok(None) | Err(_) => true,
        }
    }

    /// The owner of a post has seen that it has failed. Returns the error.
    #[cold]
    #[inline(never)]
    pub(super) fn note_failed(&self, fate: Fate, error: QueueError) -> Result<bool, QueueError> {
        // Counted first, so that a caller that sees the cell change sees the count, too. Two callers may count one
        // failure.
        self.failures.fetch_add(1, Ordering::Relaxed);
        // Release: of the count.
        let _ = self.word.compare_exchange(fate.0, Fate::failed(error).0, Ordering::AcqRel, Ordering::Relaxed);
        Err(error)
    }
}

/// All cells.
pub(crate) struct Cells {
    cells: Box<[Padded<Cell>]>,
    /// The cells that were used of late. Only these are searched.
    used: OnLines<Used>,
}

/// A set of cells, and the number of its members, which is a hint. It changes rarely, and is read often.
#[derive(Default)]
struct Used {
    cells: [AtomicU64; WORDS],
    count: AtomicU64,
}

impl Cells {
    /// A cell for each CPU, whose first commit posts before it looks at the ring if `posts_first` is set.
    pub(crate) fn new<P: Platform>(platform: &P, posts_first: bool) -> Result<Self, NoMemory> {
        let count = platform.cpus().clamp(1, CELLS_MAX as u32) as usize;
        let cells: Box<[Padded<Cell>]> = try_defaults(platform, count)?;
        cells.iter().for_each(|cell| cell.0.set_posts_first(posts_first));
        Ok(Self { cells, used: try_on_lines(platform, Used::default)? })
    }

    /// The number of the cell of `cpu`.
    #[inline(always)]
    pub(super) fn number(&self, cpu: CpuHint) -> usize {
        let cpu = cpu.0 as usize;
        if cpu < self.cells.len() { cpu } else { cpu % self.cells.len() }
    }

    #[inline(always)]
    pub(super) fn get(&self, number: usize) -> &Cell {
        &self.cells[number].0
    }

    #[inline(always)]
    fn used(&self) -> &Used {
        &self.used[0].0
    }

    /// The words of the set of used cells that may have a bit set.
    #[inline(always)]
    fn used_words(&self) -> &[AtomicU64] {
        &self.used().cells[..self.cells.len().div_ceil(64)]
    }

    /// Whether no CPU has posted of late.
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        self.used_count() == 0
    }

    /// Whether more CPUs than can take turns have posted of late.
    pub(super) fn is_crowded(&self) -> bool {
        self.used_count() > CROWD
    }

    /// The number of CPUs that have posted of late.
    #[inline(always)]
    pub(super) fn used_count(&self) -> u32 {
        self.used().count.load(Ordering::Relaxed) as u32
    }

    /// The number of cells in front of cell `number` that were used of late.
    pub(super) fn used_before(&self, number: usize) -> u32 {
        let before = |word: usize| match (number / 64).cmp(&word) {
            Less => 0,
            Equal => (1 << (number % 64)) - 1,
            Greater => u64::MAX,
        };
        let used = self.used_words().iter().enumerate();
        used.map(|(word, used)| (used.load(Ordering::Relaxed) & before(word)).count_ones()).sum()
    }

    /// Whether `count` commands are posted, or more.
    pub(super) fn are_posted(&self, count: u32) -> bool {
        let mut left = count as usize;
        self.used_words().iter().enumerate().any(|(word, used)| {
            let used = used.load(Ordering::Relaxed);
            left -= beside(|| members(word, used).filter(|number| self.get(*number).is_posted()).take(left).count());
            left == 0
        })
    }

    /// Posts a command in cell `number`, if the cell is free: returns where it is. `has_landed` tells whether a
    /// submission has landed well.
    #[inline]
    pub(super) fn post(&self, number: usize, post: Post, has_landed: impl FnOnce(Submission) -> bool) -> Option<Place> {
        let cell = self.get(number);
        let before = cell.word.load(Ordering::Acquire);
        let failures = cell.failures.load(Ordering::Relaxed) as u32;
        let is_free = before & IS_POST == 0
            && match Fate(before).submission() {
                Ok(Some(submission)) => has_landed(submission),
                Ok(None) | Err(_) => true,
            };
        // AcqRel: the release hands the cleared entry over to the CPU that takes the post. With the acquiring load of a
        // late caller that asks for the post before this one, it also hands over that this one has landed. Sequentially
        // consistent, as the three accesses in `use_no_more` and below: either this CPU sees that its cell is left out,
        // or the holder of the ring sees the post.
        if !is_free || cell.word.compare_exchange(before, post.0, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return None;
        }
        cell.waits_since_us.store(NOT_YET, Ordering::Relaxed);
        fence_of_sequential_accesses();
        let (word, bit) = (number / 64, 1 << (number % 64));
        if self.used().cells[word].load(Ordering::SeqCst) & bit == 0 {
            self.use_cell(word, bit);
        }
        Some(Place { cell: number as u8, failures, post })
    }

    #[cold]
    fn use_cell(&self, word: usize, bit: u64) {
        // Relaxed, here and for the count: a hint of where to search. A post that no search finds is submitted by its
        // owner.
        if self.used().cells[word].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.used().count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls `take` for each post that is not in `taken`, from cell `from` on, and puts it into `taken`. Ends before
    /// the first post for which `take` returns false, and returns the number of its cell.
    ///
    /// Only the holder of the ring may call this.
    #[inline(always)]
    pub(super) fn search(&self, from: usize, taken: &mut CellSet, mut take: impl FnMut(Post) -> bool) -> Option<usize> {
        let words = self.used_words().len();
        // The first word is visited twice: from the bit of `from` on, and up to it.
        for turn in 0..words + 1 {
            let word = (from / 64 + turn) % words;
            let below = (1 << (from % 64)) - 1;
            let visited = match turn {
                0 => !below,
                _ if turn == words => below,
                _ => u64::MAX,
            };
            let candidates = self.used().cells[word].load(Ordering::Relaxed) & visited & !taken[word];
            let left = beside(|| {
                for number in members(word, candidates) {
                    // Acquire: of the entry that was cleared before the post.
                    let posted = self.get(number).word.load(Ordering::Acquire);
                    if posted & IS_POST != 0 {
                        if !take(Post(posted)) {
                            return Some(number);
                        }
                        taken[word] |= 1 << (number % 64);
                    }
                }
                None
            });
            if left.is_some() {
                return left;
            }
        }
        None
    }

    /// Takes cell `number`, if there is one, out of the set of used ones, unless it has a post, or its submission is in
    /// flight or has failed. `has_landed` tells whether a submission has landed well.
    ///
    /// Only the holder of the ring may call this.
    #[inline(always)]
    pub(super) fn leave_out(&self, number: usize, has_landed: impl FnOnce(Submission) -> bool) {
        let (word, bit) = (number / 64, 1 << (number % 64));
        let is_used = self.used_words().get(word).is_some_and(|used| used.load(Ordering::Relaxed) & bit != 0);
        if is_used && self.get(number).is_settled(has_landed) {
            self.use_no_more(number, word, bit);
        }
    }

    #[cold]
    #[inline(never)]
    fn use_no_more(&self, number: usize, word: usize, bit: u64) {
        if self.used().cells[word].fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
            self.used().count.fetch_sub(1, Ordering::Relaxed);
        }
        fence_of_sequential_accesses();
        // Sequentially consistent: see `post`.
        if self.get(number).word.load(Ordering::SeqCst) & IS_POST != 0 {
            self.use_cell(word, bit);
        }
    }

    /// Tells those whose posts were taken what became of them. The first of them goes on duty if `needs_duty`.
    #[inline(never)]
    pub(super) fn tell(&self, taken: &CellSet, fate: Fate, mut needs_duty: bool) {
        for number in taken.iter().enumerate().flat_map(|(word, bits)| members(word, *bits)) {
            self.set_fate(number, if needs_duty { fate.on_duty() } else { fate });
            needs_duty = false;
        }
    }

    fn set_fate(&self, number: usize, fate: Fate) {
        // Release: see `answer`. A store is enough, because only the holder changes a post.
        self.get(number).word.store(fate.0, Ordering::Release);
    }
}

/// The numbers of the cells in word `word` of a set.
#[inline(always)]
fn members(word: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (bit < 64).then_some(word * 64 + bit)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::spec::descriptors::{InvalidationDescriptor, IotlbScope, OnePage};
    use portcullis::Iova;
    use portcullis::iommu::DomainId;
    use proptest::prelude::*;

    proptest! {
        /// A post carries the whole command.
        #[test]
        fn a_post_is_its_descriptor(domain: u16, pfn in 0u64..1 << 36, mask in 0u8..64, leaf_only: bool, drains: bool) {
            let first = Iova::from_pfn(pfn);
            let scope = IotlbScope::Pages { domain: DomainId(domain), first, mask, leaf_only };
            let words = InvalidationDescriptor::Iotlb { scope, drain_writes: drains, drain_reads: true }.encode();
            let form = OnePage::new(true, drains, true).form();
            let post = Post::of(words, form).expect("it is page-selective");
            prop_assert_eq!(post.descriptor(form), words);
            prop_assert_eq!(Post::of(words, OnePage::new(true, !drains, true).form()), None);
        }
    }

    #[test]
    fn what_no_post_can_carry_is_not_posted() {
        let form = OnePage::new(true, true, true).form();
        let iotlb = |scope| InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true }.encode();
        let wide = IotlbScope::Pages { domain: DomainId(1), first: Iova::new(1 << 48), mask: 0, leaf_only: true };
        for scope in [IotlbScope::Domain(DomainId(1)), IotlbScope::Global, wide] {
            assert_eq!(Post::of(iotlb(scope), form), None, "{scope:?}");
        }
    }
}
