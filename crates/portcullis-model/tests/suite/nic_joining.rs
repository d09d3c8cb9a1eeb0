//! A ring of a network card that joins segments of TCP streams: how many, where they lie, and what ends a packet.

use super::nic::{AT_ONCE, BUFFERS, Bench, config, parameters};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{
    Completion, DESCRIPTOR_BYTES, Descriptor, Direction, Frame, Joined, Joins, PagesOfPacket, RingConfig, RingFormat,
    RingNumber, TcpSegment,
};

const HEADER_BYTES: u32 = 66;
const PAYLOAD_BYTES: u32 = 1448;
const SILENCE_PS: u64 = 24_000_000;
/// The rings, in the order in which they are opened.
const PAGES: RingNumber = 0;
const RING: RingNumber = 1;
/// What the second ring adds to the addresses of the first one.
const OFFSETS: [u64; 3] = [0x1000, 0, 8];

/// A ring of pages, and one that joins at most `packets_max` packets of at most 32 KiB.
struct Joiner {
    bench: Bench,
    filled: [u32; 2],
}

impl Joiner {
    fn new(packets_max: u32) -> Self {
        let pages = RingConfig { pieces: 1, ..config(Direction::Receive, AT_ONCE) };
        let mut bench = Bench::with(parameters(), pages);
        let joins = Joins { pages: PAGES, page_bytes: 4096, bytes_max: 32_768, packets_max, silence_ps: SILENCE_PS };
        let format =
            RingFormat { completion_bytes: 64, completions_per_entry: 2, joins: Some(joins), ..RingFormat::default() };
        let behind = |iova: Iova, offset: u64| Iova::new(iova.as_u64() + offset);
        let ring = RingConfig {
            descriptors: behind(pages.descriptors, OFFSETS[0]),
            completions: behind(pages.completions, OFFSETS[1]),
            record: behind(pages.record, OFFSETS[2]),
            format,
            ..pages
        };
        assert_eq!(bench.nic.open(ring), RING);
        let mut joiner = Self { bench, filled: [0; 2] };
        joiner.fill(RING, 8);
        joiner
    }

    /// Fills entries of a ring with pages: those of the first ring from the beginning, those of the second behind.
    fn fill(&mut self, ring: RingNumber, entries: u32) {
        let config = *self.bench.nic.ring(ring);
        let bench = &mut self.bench;
        let [descriptors, _, record] = [0, 1, 2].map(|part| bench.memory[part].as_u64() + OFFSETS[part] * ring as u64);
        for _ in 0..entries {
            let number = self.filled[ring];
            let iova = Iova::new(BUFFERS + (32 * ring as u64 + u64::from(number)) * PAGE_SIZE);
            let at = descriptors + config.entry_offset(number);
            assert_eq!(config.entry_bytes(), DESCRIPTOR_BYTES);
            let words = Descriptor { iova, bytes: 4096, ..Descriptor::default() }.words();
            (at..).step_by(8).zip(words).for_each(|(at, word)| bench.machine.poke(PhysAddr::new(at), word));
            self.filled[ring] += 1;
        }
        bench.machine.poke(PhysAddr::new(record), self.filled[ring].into());
        bench.nic.doorbell(bench.machine.now_ps, ring);
        bench.settle();
    }

    /// Receives a full segment, without waiting for anything.
    fn receive(&mut self, connection: u64, number: u32, ends: bool) {
        let frame = Frame { bytes: HEADER_BYTES + PAYLOAD_BYTES, cookie: 100 + number };
        let segment = TcpSegment { connection, number, header_bytes: HEADER_BYTES, ends };
        self.bench.nic.receive_segment(self.bench.machine.now_ps, RING, frame, segment);
        // Long enough for the bus, and no silence.
        self.let_pass(1_300_000);
    }

    fn let_pass(&mut self, ps: u64) {
        let Bench { machine, nic, .. } = &mut self.bench;
        let until_ps = machine.now_ps + ps;
        while let Some(at_ps) = nic.next_event_ps().filter(|at_ps| *at_ps <= until_ps) {
            machine.now_ps = at_ps.max(machine.now_ps);
            machine.vtd.advance(machine.now_ps);
            nic.advance(machine.now_ps);
        }
        machine.now_ps = until_ps;
        machine.vtd.advance(until_ps);
    }

    /// The completions so far: entry, bytes, cookie, and what they stand for.
    fn completions(&self) -> Vec<(u32, u32, u32, Joined)> {
        let Bench { machine, memory, nic, .. } = &self.bench;
        let word = |offset| machine.ram.read_u64(PhysAddr::new(memory[1].as_u64() + OFFSETS[1] + offset));
        let all = (0..).map_while(|number| nic.ring(RING).completion(number, word));
        all.map(|Completion { entry, bytes, cookie, joined, .. }| (entry, bytes, cookie, joined)).collect()
    }

    /// Of each completion, how many segments it ends and how many pages these have. Nothing of a first segment.
    fn ends(&self) -> Vec<(u16, usize)> {
        let end = |joined| match joined {
            Joined::Alone => Some((1, 0)),
            Joined::Start => None,
            Joined::End { segments, pages } => Some((segments, pages.entries().len())),
        };
        self.completions().into_iter().filter_map(|(.., joined)| end(joined)).collect()
    }
}

fn entries(pages: PagesOfPacket) -> Vec<u16> {
    pages.entries().to_vec()
}

#[test]
fn a_packet_has_as_many_segments_as_fit_in_its_length_and_no_gaps_in_its_pages() {
    // 66 bytes of headers and 22 times 1,448 are 31,922 bytes. With one more they would be more than 32 KiB.
    // 21 segments lie in pages: 30,408 bytes, in eight pages, 2.83 in each.
    let mut joiner = Joiner::new(4);
    joiner.fill(PAGES, 20);
    (0..44).for_each(|number| joiner.receive(1, number, false));
    joiner.bench.settle();
    let [first, second, third, fourth] = joiner.completions()[..] else { panic!("{:?}", joiner.completions()) };
    assert_eq!((first, third), ((0, 1514, 100, Joined::Start), (1, 1514, 122, Joined::Start)));
    let (0, 31_922, 121, Joined::End { segments: 22, pages }) = second else { panic!("{second:?}") };
    assert_eq!(entries(pages), (0..8).collect::<Vec<u16>>());
    let (1, 31_922, 143, Joined::End { segments: 22, pages }) = fourth else { panic!("{fourth:?}") };
    assert_eq!(entries(pages), (8..16).collect::<Vec<u16>>(), "a packet begins with a page of its own");
    assert_eq!(joiner.bench.nic.counters().received, 44, "each segment has left the receive buffer");
    assert_eq!(joiner.bench.nic.counters().bus.faults, 0);
}

#[test]
fn pages_hold_what_follows_the_first_segment() {
    // A page that is not mapped shows which bytes reach it: of the second to the fourth segment, the last 248 bytes are
    // in page 1.
    for (page, is_used) in [(0, true), (1, true), (2, false)] {
        let mut joiner = Joiner::new(4);
        joiner.fill(PAGES, 3);
        let entry = joiner.bench.machine.entry(joiner.bench.top, 4, BUFFERS + page * PAGE_SIZE, 1);
        joiner.bench.machine.poke(entry, 0);
        (0..4).for_each(|number| joiner.receive(1, number, number == 3));
        assert_eq!(joiner.ends(), [(4, 2)]);
        let faults = joiner.bench.nic.counters().bus.faults;
        assert_eq!(faults > 0, is_used, "{faults} faults of page {page}");
    }
}

#[test]
fn a_push_ends_a_packet_and_stays_alone_if_none_is_open() {
    let mut joiner = Joiner::new(4);
    joiner.fill(PAGES, 8);
    joiner.receive(1, 0, true);
    (1..4).for_each(|number| joiner.receive(1, number, number == 3));
    joiner.receive(1, 4, false);
    assert_eq!(joiner.ends(), [(1, 0), (3, 1)]);
    let begun: Vec<u32> = joiner.completions().iter().map(|(entry, ..)| *entry).collect();
    assert_eq!(begun, [0, 1, 1, 2], "a packet takes one entry");
}

#[test]
fn a_missing_segment_ends_a_packet_and_another_connection_does_not() {
    let mut joiner = Joiner::new(4);
    joiner.fill(PAGES, 16);
    for (connection, number) in [(1, 0), (2, 0), (1, 1), (2, 1), (1, 3), (2, 2)] {
        joiner.receive(connection, number, false);
    }
    assert_eq!(joiner.ends(), [(2, 1)], "the third one of the first connection is missing");
    joiner.bench.settle();
    let mut ends = joiner.ends();
    ends.sort_unstable();
    assert_eq!(ends, [(1, 0), (2, 1), (3, 1)]);
}

#[test]
fn silence_ends_a_packet_and_each_segment_puts_it_off() {
    let mut joiner = Joiner::new(4);
    joiner.fill(PAGES, 8);
    for number in 0..3 {
        joiner.receive(1, number, false);
        joiner.let_pass(SILENCE_PS - 2_000_000);
        assert_eq!(joiner.ends(), [], "segment {number}");
    }
    joiner.let_pass(2_000_000);
    assert_eq!(joiner.ends(), [(3, 1)]);
    joiner.receive(1, 3, false);
    joiner.let_pass(SILENCE_PS - 2_000_000);
    assert_eq!(joiner.ends(), [(3, 1)], "the silence of the packet before does not count");
}

#[test]
fn only_so_many_packets_are_open_and_frames_that_are_no_segments_stay_alone() {
    let mut joiner = Joiner::new(2);
    joiner.fill(PAGES, 8);
    (1..=3).for_each(|connection| joiner.receive(connection, 0, false));
    assert_eq!(joiner.completions().last().map(|last| last.3), Some(Joined::Alone), "the third connection");
    joiner.bench.nic.receive(joiner.bench.machine.now_ps, RING, Frame { bytes: 1514, cookie: 7 });
    joiner.let_pass(1_300_000);
    assert_eq!(joiner.completions().last(), Some(&(3, 1514, 7, Joined::Alone)));
}

#[test]
fn segments_wait_for_pages() {
    let mut joiner = Joiner::new(2);
    joiner.fill(PAGES, 1);
    (0..6).for_each(|number| joiner.receive(1, number, number == 5));
    assert_eq!(joiner.bench.nic.counters().received, 3, "the third segment in a page does not fit");
    assert_eq!(joiner.ends(), []);
    joiner.fill(PAGES, 1);
    assert_eq!(joiner.ends(), [(6, 2)]);
    assert_eq!(joiner.bench.nic.counters().received, 6);
}

#[test]
fn rings_that_cannot_join_are_refused() {
    let joiner = Joiner::new(2);
    let sound = *joiner.bench.nic.ring(RING);
    let with = |format: RingFormat| RingConfig { format, ..sound };
    for (what, config) in [
        ("short completions", with(RingFormat { completion_bytes: 32, ..sound.format })),
        ("strides", with(RingFormat { stride_bytes: Some(256), ..sound.format })),
        ("a transmit ring", RingConfig { direction: Direction::Transmit, ..sound }),
    ] {
        let mut joiner = Joiner::new(2);
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| joiner.bench.nic.open(config)));
        assert!(opened.is_err(), "{what}");
    }
}
