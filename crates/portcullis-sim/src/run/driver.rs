//! A core that acts as a device driver: it maps, unmaps in batches, and checks what the device can reach.

use super::RunError;
use super::backlog::Waiting;
use super::design::{self, AnyBatch, InFlightBatch};
use super::event::RunEvent;
use super::live::{Buffer, Extent, Leaving, Live, Ranges, Slot, pieces};
use super::world::{Wanted, World};
use portcullis::platform::Step;
use portcullis::{
    Access, Iova, IovaRange, MapError, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Platform, RawMapError, RawUnmapError, Request,
    Segment, Stream, SubPage,
};
use smallvec::smallvec;
use std::cell::Cell;
use std::mem;
use std::rc::Rc;

/// One core of a run.
pub(super) struct Driver<'w> {
    world: &'w World,
    core: usize,
    batch_max: usize,
    /// The queue for which it maps, if the driver has queues.
    stream: Stream,
    /// A batch for each device. Only one of them has members.
    batches: Vec<AnyBatch>,
    /// The mappings of the uncommitted batch, all of one device.
    members: Vec<Leaving>,
    /// When each of them was unmapped.
    since_ps: Vec<u64>,
    /// Whether it commits in two halves.
    halves: bool,
    /// The batches that are submitted and not taken back.
    in_flight: Vec<Submitted>,
}

/// A batch between its halves.
pub(super) struct Submitted {
    batch: InFlightBatch,
    members: Vec<Leaving>,
    since_ps: Vec<u64>,
}

impl<'w> Driver<'w> {
    pub(super) fn new(world: &'w World, core: usize, batch_max: usize) -> Self {
        let batches = world.domains.iter().cloned().map(AnyBatch::new).collect();
        let (members, since_ps) = (Vec::with_capacity(batch_max), Vec::with_capacity(batch_max));
        let (stream, in_flight) = (Stream::default(), Vec::new());
        Self { world, core, batch_max, stream, batches, members, since_ps, halves: false, in_flight }
    }

    /// From now on, batches are submitted, and come back only when they are [taken back](Self::take_back).
    pub(super) fn commits_in_halves(&mut self, halves: bool) {
        self.halves = halves;
    }

    /// From now on, maps are for queue `ring`.
    pub(super) fn serve(&mut self, ring: u32) {
        self.stream = Stream(Some(ring));
    }

    /// Maps a buffer. The device immediately reads a buffer that it may only read.
    pub(super) fn map(&mut self, slot: Slot, segments: &Buffer, access: Access, device: usize) {
        self.map_or_wait(slot, segments, access, device, true);
    }

    /// Maps a buffer that the device does not access yet.
    pub(super) fn map_untouched(&mut self, slot: Slot, segments: &Buffer, access: Access, device: usize) {
        self.map_or_wait(slot, segments, access, device, false);
    }

    /// Maps a buffer. If its ring is full, and a commit of this core does not make room, the buffer waits for a later
    /// commit, or the run fails.
    fn map_or_wait(&mut self, slot: Slot, segments: &Buffer, access: Access, device: usize, is_read_at_once: bool) {
        let (world, stream) = (self.world, self.stream);
        let waiting = Waiting { segments: segments.clone(), access, device, stream, is_read_at_once };
        let mut full = self.map_now(slot, &waiting);
        world.tally.borrow_mut().refused_maps += u64::from(full.is_some() && !world.warm.get());
        if matches!(full, Some(MapError::RingFull { .. })) && !(self.members.is_empty() && self.in_flight.is_empty()) {
            self.commit_now();
            full = self.map_now(slot, &waiting);
        }
        match full {
            None => return,
            Some(error) if !world.waits_for_room => {
                world.fail(RunError::RingFull { error, design: world.info.id, would_do: world.ring_entries });
            }
            Some(MapError::ListTooLong { .. }) => world.backlog.borrow_mut().give_up(slot),
            Some(_) => world.backlog.borrow_mut().add(slot, waiting),
        }
        // A core that will unmap the buffer may be waiting for this map.
        world.engine.notify(Wanted::Mapping(slot).into());
    }

    /// Maps a buffer, unless its ring is full. Returns the refusal.
    fn map_now(&mut self, slot: Slot, waiting: &Waiting) -> Option<MapError> {
        let refused = self.map_only(slot, waiting);
        if refused.is_none() {
            if waiting.access == Access::DeviceReads && waiting.is_read_at_once {
                self.device_accesses(slot);
            }
            self.settled(slot);
        }
        refused
    }

    /// Maps waiting buffers, as far as there is room.
    fn work_off_backlog(&mut self, device: usize) {
        let (world, mut from) = (self.world, 0);
        if world.backlog.borrow().len() == 0 {
            return;
        }
        let mut full: Vec<(Access, Stream)> = Vec::new();
        loop {
            let next = world.backlog.borrow().next(from, device);
            let Some((place, slot, waiting)) = next else { return };
            from = place + 1;
            let kind = (waiting.access, waiting.stream);
            if full.contains(&kind) {
                continue;
            }
            world.backlog.borrow_mut().remove(slot);
            if self.map_now(slot, &waiting).is_some() {
                full.push(kind);
                world.backlog.borrow_mut().put_back(place, slot, waiting);
                world.engine.notify(Wanted::Mapping(slot).into());
            }
        }
    }

    /// Makes room for a waiting buffer that is to be unmapped next, because its request comes first. If only entries
    /// of this core's batch are in its way, the buffer is mapped when this returns. Otherwise its request is never
    /// made: a device that never got a buffer cannot be done with it.
    fn serve_waiting(&mut self, slot: Slot) {
        if self.world.is_waiting(slot) {
            self.commit_now();
        }
    }

    /// The device is done with the buffer for now, so another core may unmap it.
    pub(super) fn settled(&self, slot: Slot) {
        self.world.look(slot, |live| live.settled.set(true));
        self.world.engine.notify(Wanted::Mapping(slot).into());
    }

    /// Maps a buffer. Returns the refusal of a full ring.
    fn map_only(&mut self, slot: Slot, waiting: &Waiting) -> Option<MapError> {
        let Waiting { segments, access, device, stream, .. } = waiting;
        let (access, device, stream) = (*access, *device, *stream);
        let mut full = None;
        if self.members.iter().any(|(_, member)| member.device == device && member.access == access) {
            self.commit();
        }
        let world = self.world;
        let under_way = &world.maps[self.core];
        // An interrupt handler may map during this map.
        let outer = under_way.buffer.replace(Some((device, segments.clone())));
        let domain = &world.domains[device];
        let request = |segments: &[Segment]| {
            let mut request = Request::new(segments, access)?;
            request.stream = stream;
            design::map(domain, &request)
        };
        world.tell(&RunEvent::MapBegins { core: self.core });
        let ranges: Result<Ranges, _> = world.engine.charged(|| {
            if world.info.physical_addresses() {
                return segments.iter().map(|segment| request(std::slice::from_ref(segment))).collect();
            }
            let range = request(segments)?;
            if world.hints.map.covers(access) {
                self.ask_to_prefetch(device, range);
            }
            Ok(smallvec![range])
        });
        match ranges {
            Ok(ranges) => {
                let mut tally = world.tally.borrow_mut();
                if !world.warm.get() {
                    tally.operations += 1;
                    let bytes = segments.iter().map(|segment| segment.len).sum::<u64>();
                    let payload = world.payload(slot, access, bytes);
                    tally.payload += payload;
                    tally.transactions_min += payload.min.div_ceil(world.transaction_bytes);
                    let again = payload.max.saturating_sub(bytes);
                    tally.transactions_again += again.div_ceil(world.transaction_bytes);
                    let work = &mut tally.work_by_core[self.core];
                    work.requests += (payload.max as f64 / bytes as f64).max(1.0);
                    work.bytes += world.buffer(slot, bytes, payload);
                    tally.pages += segments.iter().map(Segment::pages).sum::<u64>();
                }
                tally.table_pages_max = tally.table_pages_max.max(world.table_pages());
                drop(tally);
                if !world.info.physical_addresses() {
                    world.mapped.borrow_mut().add(device, &ranges);
                }
                let seen = self.seen(device, segments, &ranges);
                let (segments, addressing, settled) = (segments.clone(), world.info.addressing, Cell::new(false));
                let live = Box::new(Live { segments, seen, access, device, ranges, addressing, settled });
                world.tell(&RunEvent::Mapped { slot, live: &live });
                let mut all = world.live.borrow_mut();
                if all.len() <= slot as usize {
                    all.resize_with(slot as usize + 1, || None);
                }
                all[slot as usize] = Some(live);
            }
            Err(RawMapError::Refused(error @ (MapError::RingFull { .. } | MapError::ListTooLong { .. }))) => {
                full = Some(error);
            }
            Err(error) => world.fail(RunError::Map(error)),
        }
        under_way.buffer.replace(outer);
        under_way.ended.set(under_way.ended.get() + 1);
        world.worked();
        world.engine.notify(Wanted::Map(self.core).into());
        world.engine.notify(Wanted::Mapping(slot).into());
        world.provoke(&RunEvent::MapEnds { core: self.core, slot });
        full
    }

    /// The memory that a device reaches through a new mapping. If the domain does not expose parts of pages, this is
    /// read from the tables: a bounce page there belongs to the domain, and no part of it to a neighbour.
    fn seen(&self, device: usize, segments: &Buffer, ranges: &Ranges) -> Buffer {
        let world = self.world;
        if world.domains[device].sub_page() == SubPage::Expose {
            return segments.clone();
        }
        let source = world.devices.borrow()[device].source();
        let iovas = ranges.iter().flat_map(|range| range.first_pfn()..range.end_pfn());
        let page = |(iova_pfn, (own_pfn, (from, to))): (u64, (u64, Extent))| {
            let own = PhysAddr::from_pfn(own_pfn);
            match world.vtd.in_tables(world.engine.now_ps(), source, Iova::from_pfn(iova_pfn)) {
                Some(phys) if phys != own => Segment { phys, len: PAGE_SIZE },
                _ => Segment { phys: PhysAddr::new(own.as_u64() + u64::from(from)), len: u64::from(to - from) },
            }
        };
        let all: Rc<[Segment]> = iovas.zip(pieces(segments)).map(page).collect();
        Buffer::new(&all, 0..all.len())
    }

    /// Unmaps a buffer, at the latest when the batch ends. The device writes a buffer that it may write just before.
    pub(super) fn unmap(&mut self, slot: Slot) {
        let world = self.world;
        let access = || world.look(slot, |live| live.access);
        let is_there = || access().is_some() || world.is_waiting(slot);
        world.engine.wait_until(Wanted::Mapping(slot).into(), || is_there() || world.failed());
        self.serve_waiting(slot);
        let written = access().is_some_and(|access| access != Access::DeviceReads);
        if written {
            self.device_accesses(slot);
        }
        self.unmap_only(slot);
    }

    /// Unmaps a buffer with which the device is done.
    pub(super) fn unmap_only(&mut self, slot: Slot) {
        let world = self.world;
        // If another core maps it, it may not be mapped yet, or the device may still use it.
        let settled = || world.look(slot, |live| live.settled.get());
        let may_go = || settled() == Some(true) || world.is_waiting(slot);
        world.engine.wait_until(Wanted::Mapping(slot).into(), || may_go() || world.failed());
        self.serve_waiting(slot);
        if world.backlog.borrow_mut().remove(slot) {
            world.tally.borrow_mut().given_up_maps += u64::from(!world.warm.get());
            return;
        }
        world.provoke(&RunEvent::UnmapBegins { slot });
        let Some(live) = world.live.borrow_mut().get_mut(slot as usize).and_then(Option::take) else { return };
        if world.hints.unmap && !world.info.physical_addresses() {
            world.engine.charged(|| self.say_done_with(&live));
        }
        if self.batch_max == 1 && !self.halves {
            self.unmap_at_once(slot, live)
        } else {
            self.unmap_in_batch(slot, live)
        }
    }

    /// Unmaps like a driver without batches. The buffer is handed back at once.
    fn unmap_at_once(&mut self, slot: Slot, live: Box<Live>) {
        let world = self.world;
        let (device, ranges) = (live.device, live.ranges.clone());
        let under_way = &world.unmaps[self.core];
        let outer = under_way.replace(Some((slot, live)));
        let domain = &world.domains[device];
        let unmap = || ranges.iter().try_for_each(|range| domain.unmap_raw(range.start(), range.pages() << PAGE_SHIFT));
        let (unmapped, was_told) = world.engine.unmapping(unmap);
        let (slot, live) = under_way.replace(outer).expect("the unmap that was under way here");
        if let Err(error) = unmapped {
            return world.fail(match error {
                RawUnmapError::Refused(error) => RunError::Unmap(error),
                RawUnmapError::Commit(error) => RunError::Commit(error),
            });
        }
        if !was_told {
            // No invalidation was announced: the pages are shared with other mappings, or this design announces
            // nothing.
            world.provoke(&RunEvent::Cleared { slot, live: &live, announced: None });
        }
        world.arm(device);
        self.hand_back(slot, &live);
        world.worked();
        self.work_off_backlog(device);
    }

    fn unmap_in_batch(&mut self, slot: Slot, live: Box<Live>) {
        let world = self.world;
        if self.members.first().is_some_and(|(_, first)| first.device != live.device) {
            self.commit();
        }
        let begun_ps = world.engine.now_ps();
        let batch = &mut self.batches[live.device];
        let is_watched = world.is_watched();
        let unmap = || {
            let mut any_cleared = Some(false);
            for range in &live.ranges {
                batch.unmap(*range)?;
                // This passes all unmaps of the batch, so it is asked only for those who want to know.
                if is_watched {
                    let cleared = design::leaves_within_reach(batch);
                    any_cleared = any_cleared.and_then(|any| Some(any | cleared?));
                }
            }
            Ok(any_cleared)
        };
        match world.engine.charged(unmap) {
            Ok(announced) => world.provoke(&RunEvent::Cleared { slot, live: &live, announced }),
            Err(error) => return world.fail(RunError::Unmap(error)),
        }
        self.members.push((slot, live));
        self.since_ps.push(begun_ps);
        if self.members.len() >= self.batch_max {
            self.commit();
        }
    }

    /// Ends the batch: its buffers are handed back to the driver, or submitted if it commits in two halves.
    pub(super) fn commit(&mut self) {
        let world = self.world;
        let Some(device) = self.members.first().map(|(_, first)| first.device) else { return };
        if self.halves {
            return self.submit(device);
        }
        // The members are taken even if the commit fails: their buffers are then never handed back (S11).
        let (mut members, mut since_ps) = (mem::take(&mut self.members), mem::take(&mut self.since_ps));
        let batch = &mut self.batches[device];
        if let Err(error) = world.engine.charged(|| batch.commit_so_far()) {
            return world.fail(RunError::Commit(error));
        }
        self.committed(&members, &since_ps, device);
        members.clear();
        since_ps.clear();
        (self.members, self.since_ps) = (members, since_ps);
        self.work_off_backlog(device);
    }

    /// Hands the buffers of a committed batch back to the driver.
    fn committed(&self, members: &[Leaving], since_ps: &[u64], device: usize) {
        let world = self.world;
        world.arm(device);
        self.note_waits(since_ps);
        members.iter().for_each(|(slot, live)| self.hand_back(*slot, live));
        world.worked();
    }

    /// Ends the batch, and takes back everything that is in flight.
    fn commit_now(&mut self) {
        self.commit();
        self.take_back();
    }

    /// The first half of a commit: the buffers stay with the device.
    fn submit(&mut self, device: usize) {
        let world = self.world;
        let (members, since_ps) = (mem::take(&mut self.members), mem::take(&mut self.since_ps));
        let batch = mem::replace(&mut self.batches[device], AnyBatch::new(world.domains[device].clone()));
        match world.engine.charged(|| batch.submit()) {
            Ok(batch) => self.in_flight.push(Submitted { batch, members, since_ps }),
            Err(error) => return world.fail(RunError::Commit(error)),
        }
        world.provoke(&RunEvent::Submitted);
    }

    /// The second half of the commits in flight, if all are done. If not, the core goes on.
    pub(super) fn take_back_done(&mut self) {
        let world = self.world;
        if self.in_flight.iter_mut().all(|submitted| world.engine.charged(|| submitted.batch.is_done())) {
            self.take_back();
        }
    }

    /// Ends the batch, and leaves its second half to [`take_back_those`](Self::take_back_those).
    pub(super) fn put_aside(&mut self) -> Vec<Submitted> {
        self.commit();
        mem::take(&mut self.in_flight)
    }

    /// The second half of commits that were [put aside](Self::put_aside), perhaps by another poll.
    pub(super) fn take_back_those(&mut self, aside: Vec<Submitted>) {
        self.in_flight.extend(aside);
        self.take_back();
    }

    /// Whether a buffer is between its unmap and the end of its wait, as far as this core knows.
    pub(super) fn is_unmapping(&self, slot: Slot) -> bool {
        let in_flight = self.in_flight.iter().flat_map(|submitted| &submitted.members);
        self.members.iter().chain(in_flight).any(|(member, _)| *member == slot)
    }

    /// The second half of every commit in flight: waits for the hardware, and hands the buffers back to the driver.
    pub(super) fn take_back(&mut self) {
        let world = self.world;
        for Submitted { batch, members, since_ps } in mem::take(&mut self.in_flight) {
            let Some(device) = members.first().map(|(_, first)| first.device) else { continue };
            if let Err(error) = world.engine.charged(|| batch.wait()) {
                return world.fail(RunError::Commit(error));
            }
            self.committed(&members, &since_ps, device);
            self.work_off_backlog(device);
        }
    }

    /// Counts how long the buffers of a batch have waited until now, each since its unmap.
    fn note_waits(&self, since_ps: &[u64]) {
        let world = self.world;
        if world.warm.get() {
            return;
        }
        let (now_ps, batches) = (world.engine.now_ps(), &mut world.tally.borrow_mut().batches);
        batches.commits += 1;
        batches.buffers_max = batches.buffers_max.max(since_ps.len() as u64);
        for since_ps in since_ps {
            batches.buffers += 1;
            batches.wait_ps_sum += u128::from(now_ps - since_ps);
            batches.wait_ps_max = batches.wait_ps_max.max(now_ps - since_ps);
        }
    }

    fn hand_back(&self, slot: Slot, live: &Live) {
        let world = self.world;
        // Until now the device's reach of these pages counted as this mapping's, even if others share them.
        if !world.info.physical_addresses() {
            world.mapped.borrow_mut().remove(live.device, &live.ranges);
        }
        world.provoke(&RunEvent::HandedBack { slot, live });
        let stale: u64 = live.pages().iter().map(|page| u64::from(self.is_stale(live, page.iova, page.phys))).sum();
        if !world.warm.get() {
            world.tally.borrow_mut().stale_accesses += stale;
        }
    }

    /// Whether the device can still reach the page of a buffer that was handed back.
    ///
    /// If another mapping has the same page of memory at the same address, the page is not stale but belongs to that
    /// mapping (S8). That mapping was there before, or another core made it after the address was freed. In the second
    /// case the entry is in the table, as it also is in designs whose unmaps leave it there. Such a map may still be
    /// in progress; its end is then waited for.
    fn is_stale(&self, live: &Live, iova: Iova, phys: PhysAddr) -> bool {
        let (world, device) = (self.world, live.device);
        let source = world.devices.borrow()[device].source();
        let reaches = || world.vtd.reaches(world.engine.now_ps(), source, iova, live.access.rights()) == Some(phys);
        let owned = || world.mapped.borrow().has(device, iova.pfn());
        if !reaches() {
            return false;
        }
        if world.info.physical_addresses() {
            return true;
        }
        if owned() {
            return false;
        }
        if world.vtd.in_tables(world.engine.now_ps(), source, iova).is_none() {
            return true;
        }
        let concerned = world.maps.iter().enumerate().filter(|(_, map)| map.concerns(device, phys));
        let under_way: Vec<(usize, u64)> = concerned.map(|(core, map)| (core, map.ended.get())).collect();
        for (core, ended) in under_way {
            world.engine.wait_until(Wanted::Map(core).into(), || world.maps[core].ended.get() != ended);
        }
        !owned() && reaches()
    }

    /// Announces to the hardware that the device will access `range` next, and so requests its first page: a command
    /// in a queue, and a doorbell.
    fn ask_to_prefetch(&self, device: usize, range: IovaRange) {
        let world = self.world;
        world.platform.probe(Step::QueueWrite { descriptors: 1 });
        world.platform.probe(Step::RegisterWrite);
        let source = world.devices.borrow()[device].source();
        world.vtd.prefetch(world.engine.now_ps(), source, Iova::from_pfn(range.first_pfn()));
    }

    /// Announces to the hardware that the device is done with a buffer: a command for each of its ranges, and a
    /// doorbell.
    fn say_done_with(&self, live: &Live) {
        let world = self.world;
        world.platform.probe(Step::QueueWrite { descriptors: live.ranges.len() });
        world.platform.probe(Step::RegisterWrite);
        let source = world.devices.borrow()[live.device].source();
        for pfn in live.ranges.iter().flat_map(|range| range.first_pfn()..range.end_pfn()) {
            world.vtd.unmap_hint(world.engine.now_ps(), source, Iova::from_pfn(pfn));
        }
    }

    /// Lets the device access the whole buffer. This core idles until the device is done.
    pub(super) fn device_accesses(&self, slot: Slot) {
        let world = self.world;
        let Some((device, access, segments)) =
            world.look(slot, |live| (live.device, live.access, live.segments.clone()))
        else {
            return;
        };
        let len = segments.iter().map(|segment| segment.len).sum();
        // If the payload is not known, the device moves as much as possible. The result claims no more than a range.
        let mut left = world.payload(slot, access, len).max;
        let mut done_ps = world.engine.now_ps();
        for (index, segment) in segments.iter().enumerate() {
            let start = world.look(slot, |live| {
                let range = live.ranges[if world.info.physical_addresses() { index } else { 0 }];
                world.info.addressing.segment_iova(&segments, index, range)
            });
            let Some(start) = start else { return };
            let (mut done, len) = (0, segment.len.min(left));
            while done < len {
                let at = Iova::new(start.as_u64() + done);
                let piece = (PAGE_SIZE - at.page_offset()).min(len - done);
                done_ps = self.transact(device, at, piece, access.rights());
                done += piece;
            }
            left -= len;
        }
        world.engine.sleep_until(done_ps);
    }

    /// Makes one access within a page when the device has room for it. Returns when it is done.
    pub(super) fn transact(&self, device: usize, iova: Iova, len: u64, rights: portcullis::table::Rights) -> u64 {
        let world = self.world;
        let room_ps = world.devices.borrow()[device].room_ps();
        world.engine.progress();
        world.engine.sleep_until(room_ps);
        let done = world.devices.borrow_mut()[device].access(&world.vtd, world.engine.now_ps(), iova, len, rights);
        let mut tally = world.tally.borrow_mut();
        tally.faults += u64::from(done.faults);
        if !world.warm.get() {
            tally.transactions += u64::from(done.transactions);
            tally.latency_ps_sum += u128::from(done.latency_ps_sum);
        }
        done.done_ps
    }

    /// Ends the core's part of the run: commits the last batch, and serves its timer until nothing is due.
    pub(super) fn finish(&mut self) {
        self.commit_now();
        while let Some(at_ps) = self.world.engine.own_timer_ps() {
            self.world.idle_until(at_ps);
            // The last operation may have passed that time, and then there was no sleep in which to take the interrupt.
            self.world.engine.sync();
        }
    }
}

/// Lets the remaining flushes happen after a work.
pub(super) fn close_windows(world: &Rc<World>, batch: usize) {
    if world.domains.iter().all(|domain| domain.due_us().is_none()) {
        return world.tell(&RunEvent::Ended);
    }
    let inner = world.clone();
    let body = move || {
        for domain in 0..inner.domains.len() {
            inner.armed_us[domain].set(None);
            inner.arm(domain);
        }
        Driver::new(&inner, 0, batch).finish();
    };
    world.run(vec![Box::new(body)]);
    world.tell(&RunEvent::Ended);
}
