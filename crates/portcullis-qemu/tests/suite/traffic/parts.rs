//! S8 on a drive: blocks in buffers that fill only parts of pages, in domains that bounce such buffers, expose the
//! rest of their pages, or refuse them.

use super::*;
use portcullis::SubPage;
use portcullis::domain::{DescriptorError, Mapping};
use portcullis::error::MapError;
use portcullis::mapper::Mapper;
use portcullis_qemu::DriverError;
use portcullis_qemu::nvme::{CommandId, Nvme, Operation};
use std::collections::BTreeMap;

/// The number of requests in the domain that bounces. Fewer are enough to see the other domains expose or refuse.
const REQUESTS: usize = 5_000;
const REQUESTS_EXPOSED: usize = 1_000;
const BLOCK_BYTES: u64 = 512;
/// Each buffer lies anywhere in a separate area, and may cross from one page into the next.
const AREA_PAGES: u64 = 2;
const AREA_BYTES: usize = (AREA_PAGES * PAGE_SIZE) as usize;
const IN_FLIGHT: usize = 16;
/// Once per this number of requests, `edu` tries the rest of a buffer's pages.
const TRIED: usize = 8;
const WRITTEN_BY_EDU: u8 = 0x99;

type Drive<'d> = Nvme<'d, dyn Mapper>;

/// A request in flight, and the expected contents of its area afterwards.
struct Flight {
    memory: Vec<u8>,
    block: u64,
    is_write: bool,
}

/// The result of all requests.
#[derive(Debug)]
struct Outcome {
    requests: usize,
    /// Bytes beside buffers that `edu` tried to reach, and those that it reached.
    tried: usize,
    reached: usize,
}

struct Parts<'w> {
    world: &'w mut World,
    /// The page into which `edu` writes what it has read, and from which it takes what it writes.
    scratch: Mapping<GuestBuffer>,
    outcome: Outcome,
}

impl Parts<'_> {
    /// Makes `edu` try the bytes beside a buffer with IOVA `iova` and physical address `phys`.
    fn try_rest(&mut self, iova: Iova, phys: PhysAddr, is_read_by_devices: bool) {
        let (start, end) = (iova.as_u64(), iova.as_u64() + BLOCK_BYTES);
        let (first, last) = (start - start % PAGE_SIZE, end.next_multiple_of(PAGE_SIZE));
        for (from, to) in [(first, start), (end, last)] {
            let len = (to - from) as usize;
            if len == 0 {
                continue;
            }
            let place = PhysAddr::new(phys.as_u64() + from - start);
            self.outcome.tried += len;
            self.outcome.reached +=
                if is_read_by_devices { self.read(from, len) } else { self.write(from, place, len) };
        }
        assert_eq!(self.world.faults(), [], "the page is mapped, whatever it holds");
    }

    /// The number of these bytes that `edu` could read.
    fn read(&self, from: u64, len: usize) -> usize {
        let scratch = self.scratch.shared();
        scratch.fill(0);
        self.world.edu.fetch(Iova::new(from), len).unwrap();
        self.world.edu.store(self.scratch.iova(), len).unwrap();
        let mut seen = vec![0; len];
        scratch.read(0, &mut seen);
        assert!(seen.iter().all(|byte| [0, UNTOUCHED].contains(byte)), "a page holds parts of two buffers");
        seen.iter().filter(|byte| **byte == UNTOUCHED).count()
    }

    /// The number of bytes written there by `edu` that arrived at `place`, where they do not belong.
    fn write(&self, from: u64, place: PhysAddr, len: usize) -> usize {
        self.scratch.shared().fill(WRITTEN_BY_EDU);
        self.world.edu.fetch(self.scratch.iova(), len).unwrap();
        self.world.edu.store(Iova::new(from), len).unwrap();
        let reached = self.world.bytes(place, len).iter().filter(|byte| **byte == WRITTEN_BY_EDU).count();
        self.world.memory.fill(place, len, UNTOUCHED);
        reached
    }

    /// Writes a block, or reads back the last one written at its place.
    fn submit(&mut self, nvme: &mut Drive<'_>, area: GuestBuffer, block: u64, is_write: bool) -> (CommandId, Flight) {
        // Multiples of 4, as the controller requires, and not of 512.
        let offset = loop {
            let offset = self.world.random.random_range(0..=(AREA_BYTES as u64 - BLOCK_BYTES) / 4) * 4;
            if !offset.is_multiple_of(BLOCK_BYTES) {
                break offset;
            }
        };
        let data = area.lending(offset, BLOCK_BYTES);
        data.fill(UNTOUCHED);
        let mut memory = vec![UNTOUCHED; AREA_BYTES];
        let in_area = offset as usize..(offset + BLOCK_BYTES) as usize;
        let on_drive = (block * BLOCK_BYTES) as usize..((block + 1) * BLOCK_BYTES) as usize;
        if is_write {
            self.world.random.fill(&mut memory[in_area.clone()]);
            data.write(offset, &memory[in_area.clone()]);
            self.world.drive[on_drive].copy_from_slice(&memory[in_area]);
        } else {
            memory[in_area].copy_from_slice(&self.world.drive[on_drive]);
        }
        let phys = data.lent().phys;
        let operation = if is_write { Operation::Write } else { Operation::Read };
        let command = nvme.submit(operation, block, data).unwrap();
        if self.outcome.requests.is_multiple_of(TRIED) {
            self.try_rest(nvme.iova(command).expect("it was just submitted"), phys, is_write);
        }
        self.outcome.requests += 1;
        (command, Flight { memory, block, is_write })
    }

    fn run(&mut self, domain: &DynDomain, requests: usize) {
        let mut nvme = Nvme::start(&self.world.machine.function(NVME), domain).unwrap();
        assert_eq!(nvme.block_bytes(), BLOCK_BYTES);
        let mut idle: Vec<(GuestBuffer, u64, bool)> =
            (0..IN_FLIGHT as u64).map(|place| (self.world.buffer(AREA_PAGES), place, true)).collect();
        let mut flying = BTreeMap::new();
        while self.outcome.requests < requests || !flying.is_empty() {
            for (area, block, is_write) in idle.drain(..) {
                if self.outcome.requests < requests {
                    let (command, flight) = self.submit(&mut nvme, area, block, is_write);
                    flying.insert(command, flight);
                }
            }
            nvme.ring();
            for done in nvme.reap().unwrap() {
                assert_eq!(done.status, 0);
                let Flight { memory, block, is_write } = flying.remove(&done.command).expect("a command in flight");
                let area = done.data.expect("its buffer");
                assert_bytes(self.world, area.all().phys, &memory, || format!("block {block}, written: {is_write}"));
                idle.push((area, block, !is_write));
            }
        }
        assert_eq!(self.world.faults(), []);
        assert!(nvme.stop().unwrap().is_empty());
    }
}

fn domain(world: &World, sub_page: SubPage) -> Box<DynDomain> {
    let config = DomainConfig { sub_page, ..DomainConfig::new(Protection::Strict) };
    let domain = DynDomain::open(DesignId::Portcullis, world.unit.clone(), world.host.clone(), &config).unwrap();
    for device in [EDU, NVME] {
        domain.attach(device).unwrap();
    }
    domain
}

#[test]
fn blocks_in_parts_of_pages_are_bounced_exposed_or_refused() {
    let mut world = World::new();
    for (sub_page, requests) in [(SubPage::Bounce, REQUESTS), (SubPage::Expose, REQUESTS_EXPOSED)] {
        let begun = Instant::now();
        let domain = domain(&world, sub_page);
        let scratch = domain.map_shared(world.buffer(1), Access::DeviceReadsAndWrites).unwrap();
        let outcome = Outcome { requests: 0, tried: 0, reached: 0 };
        let mut parts = Parts { world: &mut world, scratch, outcome };
        parts.run(&domain, requests);
        let Parts { scratch, outcome, .. } = parts;
        domain.unmap(scratch).unwrap();
        assert!(outcome.tried > requests * 3000 / TRIED, "{outcome:?}");
        println!("{sub_page}: {outcome:?}; {:.1?}", begun.elapsed());
        match sub_page {
            SubPage::Bounce => assert_eq!(outcome.reached, 0, "{}: {outcome:?}", Rule::SubPage),
            _ => assert_eq!(outcome.reached, outcome.tried, "whole pages are open: {outcome:?}"),
        }
        assert_eq!(domain.usage().bounce_pages, 0, "{}", Rule::Errors);
    }
    let refusing = domain(&world, SubPage::Refuse);
    let mut nvme = Nvme::start(&world.machine.function(NVME), &refusing).unwrap();
    let data = world.buffer(1).lending(0, BLOCK_BYTES);
    let phys = data.lent().phys;
    let refused = nvme.submit(Operation::Read, 0, data).unwrap_err();
    let expected = DriverError::Descriptor(DescriptorError::Map(MapError::PartialPage(phys)));
    assert_eq!(refused.error, expected, "{}", Rule::SubPage);
    drop(refused.buffer.expect("it comes back"));
    nvme.stop().unwrap();
    drop(refusing);
    assert_eq!(world.memory.buffer_pages_lent(), 0, "{}: buffers are lost", Rule::Errors);
}
