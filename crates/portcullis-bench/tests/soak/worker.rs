//! A thread of the soak.

use super::host::{Done, Host};
use super::{Soaked, within_limits};
use portcullis::{
    Access, Iova, IovaRange, Lifetime, MapError, PAGE_SIZE, PhysAddr, Platform, RawMapError, Request, Segment, Stream,
};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;
use std::mem;
use std::sync::Mutex;

/// Rings that some requests name: so many that CPUs have no logs of their own.
pub(crate) const RINGS: u32 = 16;
/// Pages of the longest request.
const PAGES_MAX: u64 = 600;
/// Mappings that a thread has at a time, without stragglers: many and few in turn, for [`WAVE`] operations each.
const LIVE: [usize; 2] = [2048, 256];
const WAVE: u64 = 250_000;
/// The most mappings that stay. One in [`STRAGGLER_IN`] does, and takes the place of an older one.
const STRAGGLERS: usize = 256;
const STRAGGLER_IN: u32 = 512;
/// One in this many is unmapped by the other thread, which gets [`PARCEL`] at a time.
const REMOTE_IN: u32 = 4;
const PARCEL: usize = 32;
/// The most mappings that wait for the other thread, which may be preempted or may have ended.
const MAIL: usize = 8 * PARCEL;
/// Unmaps of a batch.
const BATCH: usize = 16;
/// Operations between ticks of the clock, which advances by as many microseconds; and between checks of the limits.
const TICK: u64 = 64;
const LOOK: u64 = 1 << 16;

/// A mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    range: IovaRange,
    /// The physical pages of its first and of its last page.
    ends: [u64; 2],
    /// Whether it was mapped as one buffer of whole pages.
    raw: bool,
}

pub(crate) type Mailbox = Mutex<Vec<Live>>;

pub(crate) struct Worker<'a, 'h: 'a> {
    thread: u64,
    host: &'h Host,
    iommu: &'h Done,
    domain: &'a Soaked<'h>,
    mailboxes: &'a [Mailbox; 2],
    random: Pcg64Mcg,
    live: VecDeque<Live>,
    stragglers: Vec<Live>,
    parcel: Vec<Live>,
    /// The physical page of the next buffer. No other buffer uses it for a long time.
    next_pfn: u64,
    done: u64,
    pub(crate) table_pages_max: usize,
}

impl<'a, 'h> Worker<'a, 'h> {
    pub(crate) fn new(
        thread: u64,
        host: &'h Host,
        iommu: &'h Done,
        domain: &'a Soaked<'h>,
        mailboxes: &'a [Mailbox; 2],
    ) -> Self {
        Self {
            thread,
            host,
            iommu,
            domain,
            mailboxes,
            random: Pcg64Mcg::seed_from_u64(thread),
            live: VecDeque::new(),
            stragglers: Vec::new(),
            parcel: Vec::new(),
            next_pfn: 0,
            done: 0,
            table_pages_max: 0,
        }
    }

    /// Takes a first chunk without naming a ring. CPUs share logs in the order in which they do that, so those of both
    /// threads come before the rings.
    pub(crate) fn appear(&self) {
        // SAFETY: no device can be attached.
        let mapped = unsafe { self.domain.map_raw(PhysAddr::from_pfn(1), PAGE_SIZE, Access::DeviceWrites) };
        self.domain.unmap_raw(mapped.expect("room"), PAGE_SIZE).expect("mapped");
    }

    /// Makes `operations` maps and unmaps.
    pub(crate) fn run(&mut self, operations: u64) {
        let (mut tick, mut look) = (0, 0);
        while self.done < operations {
            self.step();
            if self.done >= tick {
                tick = self.done + TICK;
                self.host.pass(TICK);
                if self.domain.due_us().is_some_and(|due_us| due_us <= self.host.now_us()) {
                    self.domain.tick().expect("the hardware answers");
                }
                self.table_pages_max = self.table_pages_max.max(self.domain.table_pages());
            }
            if self.done >= look {
                look = self.done + LOOK;
                within_limits(&self.domain.usage());
            }
        }
    }

    /// Unmaps everything that is left, after both threads have ended.
    pub(crate) fn finish(mut self) {
        let mut left: Vec<Live> = mem::take(&mut self.live).into();
        left.append(&mut self.stragglers);
        left.append(&mut self.parcel);
        for mailbox in self.mailboxes {
            left.append(&mut mailbox.lock().expect("not poisoned"));
        }
        for some in left.chunks(BATCH) {
            self.unmap_together(some);
        }
    }

    fn step(&mut self) {
        if self.live.len() < self.most() {
            return self.map();
        }
        while self.live.len() > self.most() + BATCH {
            let oldest = self.pick();
            self.unmap(oldest);
        }
        let received = mem::take(&mut *self.mailboxes[self.thread as usize].lock().expect("not poisoned"));
        for some in received.chunks(BATCH) {
            self.unmap_together(some);
        }
        if self.random.random_range(0..4) == 0 {
            let count = self.random.random_range(1..=BATCH);
            let some: Vec<Live> = (0..count).map(|_| self.pick()).collect();
            return self.unmap_together(&some);
        }
        let one = self.pick();
        match self.random.random_range(0..STRAGGLER_IN) {
            0 => {
                self.stragglers.push(one);
                if self.stragglers.len() > STRAGGLERS {
                    let at = self.random.random_range(0..self.stragglers.len());
                    let gone = self.stragglers.swap_remove(at);
                    self.unmap(gone);
                }
            }
            at if at % REMOTE_IN == 1 => {
                self.parcel.push(one);
                if self.parcel.len() == PARCEL {
                    self.send();
                }
            }
            _ => self.unmap(one),
        }
    }

    fn most(&self) -> usize {
        LIVE[(self.done / WAVE) as usize % LIVE.len()]
    }

    /// Sends the parcel to the other thread. If too many mappings wait there, this thread unmaps them itself.
    fn send(&mut self) {
        let mut mail = self.mailboxes[1 - self.thread as usize].lock().expect("not poisoned");
        if mail.len() < MAIL {
            mail.append(&mut self.parcel);
        } else {
            drop(mail);
            for some in mem::take(&mut self.parcel).chunks(BATCH) {
                self.unmap_together(some);
            }
        }
    }

    /// Usually the oldest mapping.
    fn pick(&mut self) -> Live {
        let at = if self.random.random_range(0..8) == 0 { self.random.random_range(0..self.live.len()) } else { 0 };
        self.live.remove(at).expect("there are more than a batch")
    }

    fn pages(&mut self) -> u64 {
        match self.random.random_range(0..100) {
            0..60 => 1,
            60..90 => self.random.random_range(1..=8),
            90..98 => self.random.random_range(1..=64),
            _ => self.random.random_range(1..=PAGES_MAX),
        }
    }

    fn map(&mut self) {
        let pages = self.pages();
        let pfn = (1 + self.thread) << 34 | self.next_pfn;
        self.next_pfn = (self.next_pfn + pages) & ((1 << 33) - 1);
        let access =
            [Access::DeviceReads, Access::DeviceWrites, Access::DeviceReadsAndWrites][self.random.random_range(0..3)];
        let (phys, len) = (PhysAddr::from_pfn(pfn), pages * PAGE_SIZE);
        let shape = self.random.random_range(0..8);
        let mapped = if shape < 5 {
            let range = |iova: Iova| IovaRange::covering(iova, len).expect("a range");
            // SAFETY: no device can be attached.
            unsafe { self.domain.map_raw(phys, len, access) }.map(|iova| Live {
                range: range(iova),
                ends: [pfn, pfn + pages - 1],
                raw: true,
            })
        } else {
            // If there are two pages or more, two segments in reverse order.
            let half = pages.div_ceil(2);
            let first = Segment { phys: PhysAddr::from_pfn(pfn + pages - half), len: half * PAGE_SIZE };
            let second = Segment { phys, len: (pages - half) * PAGE_SIZE };
            let segments = [first, second];
            let segments = if pages > 1 { &segments[..] } else { &segments[..1] };
            let mut request = Request::new(segments, access).expect("pages");
            match shape {
                5 => request.stream = Stream(Some(self.random.random_range(0..RINGS))),
                6 if self.random.random_range(0..64) == 0 => request.lifetime = Lifetime::Persistent,
                _ => {}
            }
            let last = if pages > 1 { pfn + pages - half - 1 } else { pfn };
            let ends = [first.phys.pfn(), last];
            // SAFETY: no device can be attached.
            unsafe { self.domain.map_request(&request) }.map(|range| Live { range, ends, raw: false })
        };
        match mapped {
            Ok(live) => self.live.push_back(live),
            // There is no room, so some is made.
            Err(RawMapError::Refused(MapError::Exhausted { .. })) => {
                while let Some(live) = self.live.pop_front() {
                    self.unmap(live);
                }
            }
            Err(error) => panic!("{error}"),
        }
        self.done += 1;
    }

    /// Checks that only the owner of a mapping has changed its translations.
    fn look(&self, live: &Live) {
        let ends = [live.range.first_pfn(), live.range.end_pfn() - 1];
        let found = ends.map(|pfn| self.host.translate(self.iommu, pfn));
        assert_eq!(found, live.ends.map(Some), "S3: {live:?}");
        if live.raw {
            let middle = live.range.pages() / 2;
            let found = self.host.translate(self.iommu, live.range.first_pfn() + middle);
            assert_eq!(found, Some(live.ends[0] + middle), "S3: {live:?}");
        }
    }

    fn unmap(&mut self, live: Live) {
        self.look(&live);
        if live.raw {
            self.domain.unmap_raw(live.range.start(), live.range.pages() * PAGE_SIZE).expect("mapped");
        } else {
            let mut batch = self.domain.raw_batch();
            batch.unmap(live.range).expect("mapped");
            batch.commit().expect("the hardware answers");
        }
        self.done += 1;
    }

    fn unmap_together(&mut self, some: &[Live]) {
        let mut batch = self.domain.raw_batch();
        for live in some {
            self.look(live);
            batch.unmap(live.range).expect("mapped");
        }
        batch.commit().expect("the hardware answers");
        self.done += some.len() as u64;
    }
}
