//! What misses alone do to the rate of a card: a device that draws as many as were published for Linux (Fast & Safe,
//! Figure 3, rings of 512) is as slow as published, and with half of them it is not.

use super::common::*;
use super::nic::{AT_ONCE, config, parameters};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{Descriptor, Direction, Frame, Nic, NicParameters, Parameters, RingConfig};

const FRAMES: u32 = 3072;
const FRAME_BYTES: u32 = 4014;
const PAYLOAD_BYTES: f64 = 3948.0;
const RING: u64 = 0x10_0000;
const COMPLETIONS: u64 = 0x20_0000;
const RECORD: u64 = 0x30_0000;
/// Pages of the ring and of its completions.
const RING_PAGES: u64 = 16;

/// Pages that lie together: more than the IOTLB holds, in one region of 2 MiB.
const NEAR: u64 = 0x4000_0000;
const NEAR_PAGES: u64 = 500;
/// Pages in a region of their own each: more than PTcache-L3 holds.
const REGIONS: u64 = 0x80_0000_0000;
const REGION_BYTES: u64 = 1 << 21;
const REGION_PAGES: u64 = 200;
/// Pages in a table of the first level of their own each: more than PTcache-L1 holds.
const SLOT_BYTES: u64 = 1 << 39;
const SLOT_PAGES: u64 = 40;

/// Misses per page: of the IOTLB, of PTcache-L3, and of L2 and L1 each.
#[derive(Clone, Copy)]
struct Rates {
    iotlb: f64,
    l3: f64,
    l1: f64,
}

impl Rates {
    fn half(self) -> Self {
        let Self { iotlb, l3, l1 } = self;
        Self { iotlb: iotlb / 2.0, l3: l3 / 2.0, l1: l1 / 2.0 }
    }
}

/// Whether an event of this rate happens at this index: the events are spread evenly.
fn happens(rate: f64, index: u64) -> bool {
    (rate * (index + 1) as f64).floor() > (rate * index as f64).floor()
}

/// The rate at which frames that arrive at 100 Gb/s get to memory, in Gb/s of payload, and the misses per frame.
fn measured(rates: Rates) -> (f64, Rates) {
    let (mut machine, top) = Machine::with_pages(Parameters::cascadelake(), NEAR, NEAR_PAGES + 2);
    let memory = [RING, COMPLETIONS, RECORD].map(|iova| {
        let run = machine.ram.allocate_run(RING_PAGES as usize).unwrap();
        (0..RING_PAGES).for_each(|page| machine.map(top, iova + page * PAGE_SIZE, run.as_u64() + page * PAGE_SIZE));
        run
    });
    let region = |number: u64| REGIONS + number % REGION_PAGES * REGION_BYTES;
    let slot = |number: u64| (4 + number % SLOT_PAGES) * SLOT_BYTES;
    (0..REGION_PAGES).for_each(|number| machine.map(top, region(number), NEAR));
    (0..SLOT_PAGES).for_each(|number| machine.map(top, slot(number), NEAR));

    let config = RingConfig { entries: FRAMES, pieces: 1, ..config(Direction::Receive, AT_ONCE) };
    let card = NicParameters { link_gbps: 100.0, fetch_entries: 64, receive_buffer_bytes: 1 << 24, ..parameters() };
    let wire_ps = card.wire_ps(FRAME_BYTES);
    let mut nic = Nic::new(DEVICE, card, machine.vtd.clone());
    nic.open(config);
    // Of the frames that are neither far nor apart: how many miss, and how many miss twice.
    let near_rate = (rates.iotlb.min(1.0) - rates.l3) / (1.0 - rates.l3);
    let twice_rate = (rates.iotlb - 1.0).max(0.0) / (1.0 - rates.l3);
    let (mut near, mut place, mut regions, mut slots) = (0, 0, 0, 0);
    for index in 0..u64::from(FRAMES) {
        let (is_far, is_apart) = (happens(rates.l1, index), happens(rates.l3 - rates.l1, index));
        let iova = if is_far {
            slots += 1;
            slot(slots)
        } else if is_apart {
            regions += 1;
            region(regions)
        } else {
            near += 1;
            // Across the end of a page, whose successor misses too.
            let crosses = happens(twice_rate, near);
            let unused = place;
            place += if crosses { 2 } else { u64::from(happens(near_rate, near)) };
            let first = if place > unused { unused } else { unused.saturating_sub(1) };
            NEAR + first % NEAR_PAGES * PAGE_SIZE + if crosses { PAGE_SIZE / 2 } else { 0 }
        };
        let descriptor = Descriptor { iova: Iova::new(iova), bytes: FRAME_BYTES, ..Descriptor::default() };
        let at = memory[0].as_u64() + config.entry_offset(index as u32);
        for (at, word) in (at..).step_by(8).zip(descriptor.words()) {
            machine.poke(PhysAddr::new(at), word);
        }
    }
    machine.ram.frame(memory[2])[0].store_bits(FRAMES.into());
    nic.doorbell(0, 0);
    let begin_ps = 100_000_000;
    (0..u64::from(FRAMES)).for_each(|frame| {
        nic.receive(begin_ps + frame * wire_ps, 0, Frame { bytes: FRAME_BYTES, cookie: 0 });
    });
    let before = machine.vtd.counters();
    while let Some(at_ps) = [nic.next_event_ps(), machine.vtd.next_event_ps()].into_iter().flatten().min() {
        machine.now_ps = at_ps;
        machine.vtd.advance(at_ps);
        nic.advance(at_ps);
        while nic.take_output().is_some() {}
    }
    let (after, frames) = (machine.vtd.counters(), f64::from(FRAMES));
    assert_eq!((nic.counters().received, nic.counters().bus.faults), (FRAMES.into(), 0));
    let drawn = Rates {
        iotlb: (after.iotlb_misses - before.iotlb_misses) as f64 / frames,
        l3: (after.ptcache_l3_misses - before.ptcache_l3_misses) as f64 / frames,
        l1: (after.ptcache_l1_misses - before.ptcache_l1_misses) as f64 / frames,
    };
    let seconds = (machine.now_ps - begin_ps) as f64 / 1e12;
    (frames * PAYLOAD_BYTES * 8.0 / seconds / 1e9, drawn)
}

#[test]
fn misses_at_the_published_rates_give_the_published_throughput() {
    // Not 5 flows with rings of 256, where the misses are of the IOTLB: the second miss of a frame overlaps its first,
    // as the window of the bus has room for both, and the published fit adds all of them up. Ours is 16 % faster there.
    let (gbps, rates) = (69.0, Rates { iotlb: 1.344, l3: 0.694, l1: 0.053 });
    let (ours, drawn) = measured(rates);
    let is_near = |ours: f64, wanted: f64| (ours / wanted - 1.0).abs() < 0.1;
    assert!(is_near(drawn.iotlb, rates.iotlb), "{} IOTLB misses, {} wanted", drawn.iotlb, rates.iotlb);
    assert!(is_near(drawn.l3, rates.l3), "{} misses of PTcache-L3, {} wanted", drawn.l3, rates.l3);
    assert!(is_near(drawn.l1, rates.l1), "{} misses of PTcache-L1, {} wanted", drawn.l1, rates.l1);
    assert!((ours / gbps - 1.0).abs() <= 0.15, "{ours} Gb/s, {gbps} published");
    let (half, _) = measured(rates.half());
    assert!((half / gbps - 1.0).abs() > 0.15, "{half} Gb/s with half of the misses");
    assert!(half >= 1.1 * ours, "{half} Gb/s with half of the misses, {ours} with all");
}
