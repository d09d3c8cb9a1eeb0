//! CPU words that the host provides: in a kernel they lie in each CPU's own area, where one instruction changes them.

use crate::raw_face::RawFace;
use portcullis::designs::Portcullis;
use portcullis::forward_platform;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::{CPUS, FakeHost, FakeLock, run_on};
use portcullis::platform::{CPU_WORDS, CpuWords};
use portcullis::{Access, NoMemory, Open, PAGE_SIZE, PhysAddr, Platform, Protection};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The areas of the CPUs, at uneven distances, as a kernel may have them. A domain has one piece of each.
struct Areas {
    words: [AtomicU64; 256],
    in_use: AtomicUsize,
    /// Number of additions by the host's own instruction.
    added: AtomicUsize,
}

static AREAS: Areas =
    Areas { words: [const { AtomicU64::new(0) }; 256], in_use: AtomicUsize::new(0), added: AtomicUsize::new(0) };

/// Where the area of each CPU begins.
const AREA_OF: [usize; CPUS as usize] = [8, 40, 96, 200];

/// The words of a domain.
struct OwnWords;

// SAFETY: areas do not overlap, and there is one domain.
unsafe impl CpuWords for OwnWords {
    fn lines(&self) -> usize {
        AREA_OF.len()
    }

    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        &AREAS.words[AREA_OF[line]..][..CPU_WORDS][word]
    }
}

impl Drop for OwnWords {
    fn drop(&mut self) {
        AREAS.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Host<'h>(&'h FakeHost);

// SAFETY: forwards to the fake. The test has one thread, so a load and a store act as one step.
unsafe impl Platform for Host<'_> {
    type Lock<T: Send> = FakeLock<T>;
    type CpuWords = OwnWords;

    forward_platform!(self => self.0;
        lock, cpu, cpus, allocate_frame, frame, free_frame, table_barrier, now_us, pause);

    fn cpu_words(&self, value: u64) -> Result<OwnWords, NoMemory> {
        AREAS.in_use.fetch_add(1, Ordering::Relaxed);
        let words = OwnWords;
        for line in 0..words.lines() {
            (0..CPU_WORDS).for_each(|word| words.word(line, word).store(value, Ordering::Relaxed));
        }
        Ok(words)
    }

    fn add_here(&self, words: &OwnWords, word: usize, amount: u64) -> (usize, u64) {
        AREAS.added.fetch_add(1, Ordering::Relaxed);
        let line = words.line_of(self.cpu());
        let before = words.word(line, word).load(Ordering::Relaxed);
        words.word(line, word).store(before + amount, Ordering::Relaxed);
        (line, before)
    }
}

#[test]
fn streams_move_on_by_words_of_the_host() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let host = Host(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let before: Vec<u64> = AREAS.words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    // On two CPUs, each with its own chunk.
    let mapped = [0, 2].map(|cpu| {
        run_on(cpu);
        [(); 3].map(|()| domain.raw_map(PhysAddr::new(0x5000), PAGE_SIZE, Access::DeviceWrites).expect("room").pfn())
    });
    run_on(0);
    for pages in &mapped {
        assert_eq!([pages[1] - pages[0], pages[2] - pages[1]], [1, 1], "one page after the other");
    }
    let changed: Vec<usize> =
        (0..AREAS.words.len()).filter(|word| AREAS.words[*word].load(Ordering::Relaxed) != before[*word]).collect();
    let areas: Vec<usize> = [0, 2].iter().map(|cpu| AREA_OF[*cpu]).collect();
    assert!(
        changed.len() == 2 && changed.iter().zip(areas).all(|(word, area)| (area..area + CPU_WORDS).contains(word)),
        "one word of each CPU: {changed:?}"
    );
    assert!(AREAS.added.load(Ordering::Relaxed) >= 6, "the host's own instruction was used");
    for pfn in mapped.into_iter().flatten() {
        domain.unmap_raw(portcullis::Iova::from_pfn(pfn), PAGE_SIZE).expect("mapped");
    }
    assert_eq!(AREAS.in_use.load(Ordering::Relaxed), 1);
    drop(domain);
    assert_eq!(AREAS.in_use.load(Ordering::Relaxed), 0, "the words go back with the domain");
}
