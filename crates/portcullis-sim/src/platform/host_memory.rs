//! The host's memory apart from the tables: the pages for buffers, and the general allocator with its zone. Other
//! programs use both, if the workload lets them.
//!
//! A job of another program takes pages and small objects one by one, keeps them for a while, and frees all of them at
//! once. That leaves holes: the next buffer lies elsewhere, and the next object is in another slab (ATC'15, §6.1: what
//! makes the tables of IOVA-kmalloc grow is "system-wide allocation activity").

use portcullis::{NoMemory, PAGE_SIZE, PhysAddr};
use portcullis_model::{PagePool, Slab};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;

/// The zone of the general allocator. It is low, so that its addresses are page numbers that every device can address.
const ZONE_BASE: PhysAddr = PhysAddr::new(1 << 20);
const ZONE_BYTES: u64 = 63 << 20;
/// The lowest address of buffers.
pub(crate) const BUFFERS_BASE: PhysAddr = PhysAddr::new(1 << 32);
/// The size of the memory for buffers: 4 GiB.
const BUFFERS_BYTES: u64 = 1 << 32;
/// The size of other programs' objects. It is that of the objects that stand for a page, so that both lie in the same
/// slabs.
const OBJECT_BYTES: u64 = 8;
/// The most objects that a job takes. Assumed.
const JOB_OBJECTS_MAX: u64 = 4096;
/// A job takes one page for this many objects. Assumed.
const OBJECTS_PER_PAGE: u64 = 8;
/// The number of jobs that have all that they need and keep it. Assumed.
const JOBS_MAX: usize = 16;

/// The memory that a job has taken.
#[derive(Default)]
struct Job {
    /// The number of objects that it will still take.
    wanted: u64,
    objects: Vec<PhysAddr>,
    zone_pages: Vec<PhysAddr>,
    buffer_pages: Vec<PhysAddr>,
}

/// The memory and its users.
pub(crate) struct HostMemory {
    buffers: PagePool,
    slab: Slab,
    random: Pcg64Mcg,
    /// The job that is taking memory.
    current: Job,
    /// The jobs that have what they need. If there are too many, the oldest ends, or one of them at random.
    jobs: VecDeque<Job>,
}

impl HostMemory {
    /// Memory that is not yet used.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            buffers: PagePool::new(BUFFERS_BASE, BUFFERS_BYTES),
            slab: Slab::new(PagePool::new(ZONE_BASE, ZONE_BYTES)),
            // This sequence differs from the one from which workloads draw.
            random: Pcg64Mcg::seed_from_u64(seed ^ 0x6d65_6d6f_7279),
            current: Job::default(),
            jobs: VecDeque::new(),
        }
    }

    /// Allocates from the general allocator.
    ///
    /// # Errors
    /// Returns [`NoMemory`] if there is no room.
    pub(crate) fn allocate_bytes(&mut self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        self.slab.allocate(bytes, below)
    }

    /// Frees such memory.
    pub(crate) fn free_bytes(&mut self, at: PhysAddr) {
        self.slab.free(at);
    }

    /// A page for a buffer.
    pub(crate) fn take_buffer(&mut self) -> Option<PhysAddr> {
        self.buffers.take()
    }

    /// Frees such a page.
    pub(crate) fn give_buffer(&mut self, page: PhysAddr) {
        self.buffers.give(page);
    }

    /// One step of the other programs: they take an object, and sometimes a page of each kind. If there is none, they
    /// continue without it.
    pub(crate) fn background_step(&mut self) {
        let no_limit = PhysAddr::new(u64::MAX);
        self.current.objects.extend(self.slab.allocate(OBJECT_BYTES, no_limit).ok());
        if self.random.random_range(0..OBJECTS_PER_PAGE) == 0 {
            self.current.zone_pages.extend(self.slab.zone().take());
            self.current.buffer_pages.extend(self.buffers.take());
        }
        self.current.wanted = self.current.wanted.saturating_sub(1);
        if self.current.wanted > 0 {
            return;
        }
        let next = Job { wanted: self.random.random_range(1..=JOB_OBJECTS_MAX), ..Job::default() };
        self.jobs.push_back(std::mem::replace(&mut self.current, next));
        if self.jobs.len() > JOBS_MAX {
            let ending = self.random.random_range(0..self.jobs.len());
            let job = self.jobs.swap_remove_back(ending).expect("there are so many");
            self.end(job);
        }
    }

    fn end(&mut self, job: Job) {
        job.objects.into_iter().for_each(|object| self.slab.free(object));
        job.zone_pages.into_iter().for_each(|page| self.slab.zone().give(page));
        job.buffer_pages.into_iter().for_each(|page| self.buffers.give(page));
    }
}

/// One past the last byte of the memory for buffers.
pub(crate) const fn buffers_end() -> u64 {
    BUFFERS_BASE.as_u64() + BUFFERS_BYTES
}

const _: () = assert!(ZONE_BYTES.is_multiple_of(PAGE_SIZE));

#[cfg(test)]
mod tests {
    use super::*;

    /// Other programs make the addresses wander. Without them the addresses stay in place.
    #[test]
    fn objects_wander_only_where_others_use_the_slab() {
        let pages_touched = |background: bool| {
            let mut memory = HostMemory::new(1);
            let (mut in_use, mut pages) = (VecDeque::new(), std::collections::BTreeSet::new());
            for step in 0..200_000 {
                if background {
                    memory.background_step();
                }
                let object = memory.allocate_bytes(1, PhysAddr::new(1 << 30)).expect("there is room");
                pages.insert(object.pfn());
                in_use.push_back(object);
                if step > 1000 {
                    memory.free_bytes(in_use.pop_front().expect("in use"));
                }
            }
            pages.len()
        };
        assert!(pages_touched(false) < 10, "{} pages", pages_touched(false));
        assert!(pages_touched(true) > 100, "{} pages", pages_touched(true));
    }
}
