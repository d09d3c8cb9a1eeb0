//! A network card without a lab: rings in memory, what it sends and drops, the order of its writes, and its interrupts.

use super::common::*;
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{
    Completion, DESCRIPTOR_BYTES, Descriptor, Direction, Frame, Moderation, Nic, NicParameters, Output, Parameters,
    RingConfig, RingFormat,
};

/// Where the ring, its completions, its record and the buffers are for the device.
const RING: u64 = 0x10_0000;
const COMPLETIONS: u64 = 0x20_0000;
const RECORD: u64 = 0x30_0000;
pub(crate) const BUFFERS: u64 = 0x4000_0000;
const ENTRIES: u32 = 64;
/// The pages of the ring and of its completions.
const RING_PAGES: usize = 4;

pub(crate) fn parameters() -> NicParameters {
    NicParameters {
        link_gbps: 10.0,
        segment_bytes: 1448,
        header_bytes: 66,
        frame_overhead_bytes: 24,
        doorbell_ps: 100_000,
        read_ps: 500_000,
        read_window_bytes: 16_384,
        read_gbps: None,
        write_window_bytes: 4096,
        transaction_bytes: 512,
        fetch_entries: 8,
        receive_buffer_bytes: 1 << 16,
        transmit_buffer_bytes: None,
    }
}

/// A ring of packed entries of two buffers.
pub(crate) fn config(direction: Direction, moderation: Moderation) -> RingConfig {
    let [descriptors, completions, record] = [RING, COMPLETIONS, RECORD].map(Iova::new);
    RingConfig {
        direction,
        entries: ENTRIES,
        pieces: 2,
        descriptors,
        completions,
        record,
        moderation,
        vector: 7,
        format: RingFormat::default(),
        events: None,
    }
}

/// A card with one ring.
pub(crate) struct Bench {
    pub(crate) machine: Machine,
    pub(crate) top: PhysAddr,
    pub(crate) nic: Nic,
    /// The memory behind ring, completions and record.
    pub(crate) memory: [PhysAddr; 3],
    filled: u32,
    pub(crate) outputs: Vec<(u64, Output)>,
}

impl Bench {
    fn new(parameters: NicParameters, direction: Direction, moderation: Moderation) -> Self {
        Self::with(parameters, config(direction, moderation))
    }

    pub(crate) fn with(parameters: NicParameters, config: RingConfig) -> Self {
        let (machine, top) = Machine::with_pages(Parameters::cascadelake(), BUFFERS, 64);
        let memory = [RING, COMPLETIONS, RECORD].map(|iova| {
            let run = machine.ram.allocate_run(RING_PAGES).unwrap();
            for page in 0..RING_PAGES as u64 {
                machine.map(top, iova + page * PAGE_SIZE, run.as_u64() + page * PAGE_SIZE);
            }
            run
        });
        let mut nic = Nic::new(DEVICE, parameters, machine.vtd.clone());
        assert_eq!(nic.open(config), 0);
        Self { machine, top, nic, memory, filled: 0, outputs: Vec::new() }
    }

    /// Fills an entry with these buffers, and rings the doorbell.
    pub(crate) fn fill<const PIECES: usize>(&mut self, pieces: [(u64, u32); PIECES]) {
        let config = *self.nic.ring(0);
        for (piece, (iova, bytes)) in (0..).zip(pieces) {
            let descriptor = Descriptor { iova: Iova::new(iova), bytes, is_inline: false, cookie: 1000 + self.filled };
            let at = self.memory[0].as_u64() + config.entry_offset(self.filled) + piece * DESCRIPTOR_BYTES;
            for (at, word) in (at..).step_by(8).zip(descriptor.words()) {
                self.machine.poke(PhysAddr::new(at), word);
            }
        }
        self.filled += 1;
        self.machine.ram.frame(self.memory[2])[0].store_bits(self.filled.into());
        self.nic.doorbell(self.machine.now_ps, 0);
    }

    /// Receives a frame, and lets everything happen that is due.
    pub(crate) fn receive(&mut self, bytes: u32, cookie: u32) {
        self.nic.receive(self.machine.now_ps, 0, Frame { bytes, cookie });
        self.settle();
    }

    /// Lets everything happen that is due.
    pub(crate) fn settle(&mut self) {
        loop {
            let due = [self.nic.next_event_ps(), self.machine.vtd.next_event_ps()];
            let Some(at_ps) = due.into_iter().flatten().min() else { break };
            self.machine.now_ps = at_ps;
            self.machine.vtd.advance(at_ps);
            self.nic.advance(at_ps);
            self.outputs.extend(std::iter::from_fn(|| self.nic.take_output()));
        }
        self.machine.vtd.advance(self.machine.now_ps);
    }

    pub(crate) fn completion(&self, number: u32) -> Completion {
        let word = |offset| self.machine.ram.read_u64(PhysAddr::new(self.memory[1].as_u64() + offset));
        self.nic.ring(0).completion(number, word).unwrap_or_default()
    }

    pub(crate) fn sent(&self) -> Vec<(u64, Frame)> {
        let frame = |&(at_ps, output): &_| match output {
            Output::Sent(frame) => Some((at_ps, frame)),
            Output::Interrupt(_) => None,
        };
        self.outputs.iter().filter_map(frame).collect()
    }
}

pub(crate) const AT_ONCE: Moderation = Moderation { delay_ps: 0, frames: None };

#[test]
fn a_frame_of_two_buffers_is_read_sent_completed_and_announced() {
    let moderation = Moderation { delay_ps: 16_000_000, frames: Some(44) };
    let mut bench = Bench::new(parameters(), Direction::Transmit, moderation);
    bench.nic.arm(0, 0, 0);
    bench.fill([(BUFFERS, 66), (BUFFERS + PAGE_SIZE, 1448)]);
    bench.settle();
    let [(sent_ps, frame)] = bench.sent()[..] else { panic!("{:?}", bench.outputs) };
    assert_eq!(frame, Frame { bytes: 1514, cookie: 1000 });
    // The record, the descriptors and the buffers, one behind the other, each with a walk of what is not cached yet.
    let walks = (4 + 2 + 3) * 197_000;
    assert_eq!(sent_ps, 100_000 + 3 * 500_000 + walks + 1538 * 800);
    assert_eq!(
        bench.completion(0),
        Completion { entry: 0, bytes: 1514, cookie: 1000, serial: 1, ..Completion::default() }
    );
    let landed_ps = sent_ps + 197_000 + 65_000;
    assert_eq!(bench.outputs.last(), Some(&(landed_ps + 16_000_000, Output::Interrupt(7))));
    assert_eq!(bench.outputs.len(), 2, "it is not armed any more");
    assert_eq!(bench.nic.counters().bus.faults, 0);
}

#[test]
fn frames_leave_at_the_rate_of_the_link_and_no_faster() {
    let mut bench = Bench::new(parameters(), Direction::Transmit, AT_ONCE);
    for number in 0..40 {
        bench.fill([(BUFFERS + number * PAGE_SIZE, 1514), (0, 0)]);
    }
    bench.settle();
    let sent = bench.sent();
    assert_eq!(sent.iter().map(|(_, frame)| frame.cookie).collect::<Vec<_>>(), (1000..1040).collect::<Vec<_>>());
    assert!(sent.windows(2).skip(8).all(|pair| pair[1].0 - pair[0].0 == 1538 * 800), "{sent:?}");
    assert_eq!(bench.completion(39).serial, 40);
}

#[test]
fn a_card_with_a_small_buffer_reads_a_frame_when_an_earlier_one_has_left() {
    let reads_at_end = |transmit_buffer_bytes| {
        let mut bench =
            Bench::new(NicParameters { transmit_buffer_bytes, ..parameters() }, Direction::Transmit, AT_ONCE);
        for number in 0..40 {
            bench.fill([(BUFFERS + number * PAGE_SIZE, 1514), (0, 0)]);
        }
        // All descriptors are fetched long before half of the frames have left.
        let half_ps = 20 * 1538 * 800;
        while bench.nic.next_event_ps().is_some_and(|at_ps| at_ps < half_ps) {
            bench.machine.now_ps = bench.nic.next_event_ps().unwrap();
            bench.nic.advance(bench.machine.now_ps);
        }
        let transactions = bench.nic.counters().bus.transactions;
        bench.settle();
        let [.., (sent_ps, last)] = bench.sent()[..] else { panic!("nothing was sent") };
        assert_eq!((bench.sent().len(), last.cookie), (40, 1039), "each once");
        (transactions, sent_ps)
    };
    let ((small, small_ps), (none, none_ps)) = (reads_at_end(Some(4096)), reads_at_end(None));
    assert!(small + 15 * 3 <= none, "{small} and {none}: half of the frames, of three transactions each");
    assert_eq!(small_ps, none_ps, "two frames are enough for the link");
    assert!(reads_at_end(Some(1)).1 > none_ps, "with room for one at a time, the link waits for each");
}

#[test]
fn reads_are_no_faster_than_the_bus() {
    let took = |read_gbps| {
        let mut bench =
            Bench::new(NicParameters { read_gbps, link_gbps: 1e6, ..parameters() }, Direction::Transmit, AT_ONCE);
        for number in 0..40 {
            bench.fill([(BUFFERS + number * PAGE_SIZE, 4096), (0, 0)]);
        }
        bench.settle();
        bench.sent().last().expect("a frame").0
    };
    let ideal_ps = 40 * 4096 * 8 * 1000 / 10;
    let slow_ps = took(Some(10.0));
    assert!((ideal_ps..ideal_ps + 4_000_000).contains(&slow_ps), "{slow_ps}, and {ideal_ps} with nothing else");
    assert!(took(None) < ideal_ps / 2 && took(Some(1e6)) == took(None));
}

#[test]
fn reads_wait_for_a_tag() {
    let took = |read_window_bytes| {
        let parameters = NicParameters { read_window_bytes, link_gbps: 1e6, ..parameters() };
        let mut bench = Bench::new(parameters, Direction::Transmit, AT_ONCE);
        for number in 0..40 {
            bench.fill([(BUFFERS + number * PAGE_SIZE, 1514), (0, 0)]);
        }
        bench.settle();
        bench.sent()[39].0
    };
    assert!(took(512) > 39 * 500_000, "one at a time: {}", took(512));
    assert!(took(1 << 20) < 20 * 500_000, "many at once: {}", took(1 << 20));
}

#[test]
fn pages_are_written_as_fast_as_the_published_fit_says() {
    // T = p / (l0 + M * lm): a page at a time, each with a walk of one read.
    let parameters = NicParameters { link_gbps: 1e6, receive_buffer_bytes: 1 << 20, ..parameters() };
    let mut bench = Bench::new(parameters, Direction::Receive, AT_ONCE);
    (0..60).for_each(|number| bench.fill([(BUFFERS + number * PAGE_SIZE, 4096), (0, 0)]));
    bench.settle();
    let start_ps = bench.machine.now_ps;
    (0..60).for_each(|cookie| bench.nic.receive(start_ps, 0, Frame { bytes: 4096, cookie }));
    bench.settle();
    let per_page = (bench.machine.now_ps - start_ps) as f64 / 60.0;
    // A completion has a page that is cached, and lands behind its frame.
    let published = 65_000.0 + 197_000.0 + 65_000.0;
    assert!((per_page / published - 1.0).abs() < 0.05, "{per_page}");
    assert_eq!((bench.nic.counters().received, bench.nic.counters().dropped), (60, 0));
}

#[test]
fn a_completion_lands_behind_its_frame() {
    let mut bench = Bench::new(parameters(), Direction::Receive, AT_ONCE);
    bench.fill([(BUFFERS, 512), (0, 0)]);
    bench.fill([(BUFFERS, 512), (0, 0)]);
    bench.settle();
    bench.nic.arm(bench.machine.now_ps, 0, 0);
    bench.nic.receive(bench.machine.now_ps, 0, Frame { bytes: 60, cookie: 1 });
    bench.settle();
    // Now all is cached but the page of the second frame.
    bench.machine.run(pages(1, BUFFERS, 0, true));
    bench.nic.arm(bench.machine.now_ps, 0, 1);
    let at_ps = bench.machine.now_ps + 1_000_000;
    bench.nic.receive(at_ps, 0, Frame { bytes: 60, cookie: 2 });
    bench.settle();
    let announced: Vec<u64> = bench.outputs.iter().map(|(at_ps, _)| *at_ps).collect();
    assert_eq!(announced[1..], [at_ps + 197_000 + 65_000], "the completion is a hit, and waits for the frame's walk");
}

#[test]
fn what_finds_no_room_is_dropped_and_the_rest_waits_for_buffers() {
    let parameters = NicParameters { receive_buffer_bytes: 4000, ..parameters() };
    let mut bench = Bench::new(parameters, Direction::Receive, AT_ONCE);
    // The last one would fit, but when it begins it could be as long as the others.
    for (cookie, bytes) in [(1, 1514), (2, 1514), (3, 1514), (4, 1514), (5, 60)] {
        bench.nic.receive(1_000, 0, Frame { bytes, cookie });
    }
    bench.settle();
    assert_eq!((bench.nic.counters().received, bench.nic.counters().dropped), (0, 3));
    bench.nic.arm(bench.machine.now_ps, 0, 0);
    // 1514 bytes take both buffers of an entry.
    (0..2).for_each(|number| bench.fill([(BUFFERS + 2 * number * PAGE_SIZE, 510), (BUFFERS + 0x1000, 1024)]));
    bench.settle();
    assert_eq!([0, 1].map(|number| bench.completion(number).cookie), [1, 2]);
    assert_eq!((bench.nic.counters().received, bench.nic.counters().dropped), (2, 3));
    assert_eq!(bench.outputs.len(), 1, "one interrupt until it is armed again: {:?}", bench.outputs);
}

#[test]
fn rings_are_read_and_written_through_the_iommu() {
    let mut bench = Bench::new(parameters(), Direction::Transmit, AT_ONCE);
    let completions = bench.machine.entry(bench.top, 4, COMPLETIONS, 1);
    bench.machine.poke(completions, 0);
    bench.fill([(BUFFERS, 1514), (0, 0)]);
    bench.settle();
    assert_eq!(bench.sent().len(), 1);
    assert_eq!((bench.nic.counters().bus.faults, bench.completion(0).serial), (1, 0), "the completion was refused");
    assert_eq!(bench.machine.counters().lookups, 4, "record, descriptors, buffer, completion");
    // A ring that the card may not read stands still.
    let mut bench = Bench::new(parameters(), Direction::Transmit, AT_ONCE);
    let ring = bench.machine.entry(bench.top, 4, RING, 1);
    bench.machine.poke(ring, 0);
    bench.fill([(BUFFERS, 1514), (0, 0)]);
    bench.settle();
    assert_eq!((bench.sent().len(), bench.nic.counters().bus.faults), (0, 1));
}

#[test]
fn a_ring_goes_round() {
    let mut bench = Bench::new(parameters(), Direction::Transmit, AT_ONCE);
    for _ in 0..5 * ENTRIES / 2 {
        bench.fill([(BUFFERS, 60), (0, 0)]);
        bench.settle();
    }
    let cookies: Vec<u32> = bench.sent().iter().map(|(_, frame)| frame.cookie).collect();
    assert_eq!(cookies, (1000..1000 + 5 * ENTRIES / 2).collect::<Vec<_>>());
    assert_eq!(bench.completion(5 * ENTRIES / 2 - 1).serial, 5 * ENTRIES / 2);
}

#[test]
fn the_queue_has_events_of_its_own() {
    let (machine, _) = Machine::with_pages(Parameters::cascadelake(), BUFFERS, 1);
    machine.ask(DEVICE, BUFFERS, portcullis::table::Rights::READ).expect("it is mapped");
    assert!(machine.vtd.next_event_ps().is_some() && machine.vtd.next_queue_event_ps().is_none(), "a walk is none");
}
