//! What a ring of a network card chooses: strides, the sizes of entries and completions, events, and what happens to a
//! frame without a buffer.

use super::common::*;
use super::nic::{AT_ONCE, BUFFERS, Bench, config, parameters};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{
    Completion, Direction, EVENT_BYTES, Event, EventQueue, Frame, Nic, NicParameters, Output, RingConfig, RingFormat,
};

const EVENTS: u64 = 0x50_0000;
const STRIDE_BYTES: u32 = 256;
/// The buffers of an entry of three pages, which are not adjacent.
const PAGES: [(u64, u32); 3] = [(BUFFERS + 0x7000, 4096), (BUFFERS + 0x3000, 4096), (BUFFERS + 0x9000, 4096)];
const STRIDES: u32 = 48;

fn striding(pieces: u32) -> RingConfig {
    let format = RingFormat {
        stride_bytes: Some(STRIDE_BYTES),
        completion_bytes: 64,
        completions_per_entry: STRIDES,
        ..RingFormat::default()
    };
    RingConfig { pieces, entries: 4, format, ..config(Direction::Receive, AT_ONCE) }
}

/// Entry, first stride, strides, bytes and cookie of a completion, and whether it is a filler.
fn of(bench: &Bench, number: u32) -> (u32, u32, u32, u32, u32, bool) {
    let Completion { entry, first_stride, strides, bytes, cookie, is_filler, serial, .. } = bench.completion(number);
    assert_eq!(serial, number + 1, "it has landed");
    (entry, first_stride, strides, bytes, cookie, is_filler)
}

/// Unmaps an address.
fn unmap(bench: &Bench, iova: u64) {
    bench.machine.poke(bench.machine.entry(bench.top, 4, iova, 1), 0);
}

#[test]
fn frames_follow_one_another_in_strides() {
    let frames = [4014, 100, 300, 4014];
    let mut bench = Bench::with(parameters(), striding(3));
    bench.fill(PAGES);
    bench.settle();
    let mut transactions = bench.nic.counters().bus.transactions;
    for (cookie, (bytes, expected)) in (0..).zip(frames.into_iter().zip([8, 1, 1, 7 + 2])) {
        bench.receive(bytes, cookie);
        let before = std::mem::replace(&mut transactions, bench.nic.counters().bus.transactions);
        assert_eq!(transactions - before, expected + 1, "{bytes} bytes, cut at the end of a page, and a completion");
    }
    assert_eq!(of(&bench, 0), (0, 0, 16, 4014, 0, false));
    assert_eq!(of(&bench, 1), (0, 16, 1, 100, 1, false));
    assert_eq!(of(&bench, 2), (0, 17, 2, 300, 2, false));
    assert_eq!(of(&bench, 3), (0, 19, 16, 4014, 3, false), "across the end of a buffer");
    assert_eq!(bench.nic.counters().received, 4);
    // A page that is not mapped shows which frames touch it.
    for (page, expected) in PAGES.into_iter().zip([[1, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 1]]) {
        let mut bench = Bench::with(parameters(), striding(3));
        unmap(&bench, page.0);
        bench.fill(PAGES);
        bench.settle();
        let touched = frames.map(|bytes| {
            let before = bench.nic.counters().bus.faults;
            bench.receive(bytes, 0);
            bench.nic.counters().bus.faults - before
        });
        assert_eq!(touched, expected, "{page:x?}");
    }
}

#[test]
fn an_entry_is_given_up_when_a_frame_does_not_fit() {
    let mut bench = Bench::with(parameters(), striding(3));
    bench.fill(PAGES);
    bench.fill(PAGES);
    bench.settle();
    bench.nic.arm(bench.machine.now_ps, 0, 0);
    [8000, 3000, 1514, 8192, 2000].into_iter().zip(1..).for_each(|(bytes, cookie)| bench.receive(bytes, cookie));
    assert_eq!(of(&bench, 0), (0, 0, 32, 8000, 1, false));
    assert_eq!(of(&bench, 1), (0, 32, 12, 3000, 2, false));
    assert_eq!(of(&bench, 2), (0, 44, 4, 0, 0, true), "1514 bytes need six strides");
    assert_eq!(of(&bench, 3), (1, 0, 6, 1514, 3, false));
    assert_eq!(of(&bench, 4), (1, 6, 32, 8192, 4, false));
    assert_eq!(of(&bench, 5), (1, 38, 8, 2000, 5, false));
    let sum = (0..3).map(|number| bench.completion(number).strides).sum::<u32>();
    assert_eq!(sum, STRIDES, "every stride of an entry is accounted for");
    assert_eq!((bench.nic.counters().received, bench.nic.counters().dropped), (5, 0), "a filler is no frame");
    // There is no further entry. The rest is given up at once, and the frame waits.
    bench.receive(600, 6);
    assert_eq!(of(&bench, 6), (1, 46, 2, 0, 0, true));
    assert_eq!(bench.completion(7), Completion::default());
    bench.fill(PAGES);
    bench.settle();
    assert_eq!(of(&bench, 7), (2, 0, 3, 600, 6, false));
}

#[test]
fn an_entry_that_is_full_needs_no_filler_and_rings_go_round() {
    let mut bench = Bench::with(parameters(), striding(1));
    for cookie in 0..250 {
        if cookie % 2 == 0 {
            bench.fill([PAGES[(cookie / 2 % 3) as usize]]);
        }
        bench.receive([2500, 1500][cookie as usize % 2], cookie);
    }
    for number in 60..250 {
        let expected = [(0, 10, 2500), (10, 6, 1500)][number as usize % 2];
        assert_eq!(of(&bench, number), (number / 2, expected.0, expected.1, expected.2, number, false));
    }
    assert_eq!(bench.nic.counters().received, 250);
}

#[test]
fn a_frame_that_no_entry_holds_is_cut_off_and_the_next_goes_on() {
    let mut bench = Bench::with(parameters(), striding(1));
    (0..3).for_each(|_| bench.fill([(BUFFERS, 1000)]));
    bench.settle();
    let before = bench.nic.counters().bus.transactions;
    bench.receive(9000, 1);
    assert_eq!(bench.nic.counters().bus.transactions - before, 2 + 1, "768 bytes, and a completion");
    bench.receive(200, 2);
    bench.receive(9000, 3);
    assert_eq!(of(&bench, 0), (0, 0, 3, 9000, 1, false), "1000 bytes have three strides");
    assert_eq!(of(&bench, 1), (1, 0, 1, 200, 2, false));
    assert_eq!(of(&bench, 2), (1, 1, 2, 0, 0, true));
    assert_eq!(of(&bench, 3), (2, 0, 3, 9000, 3, false));
    // Entries without a stride end as well.
    let mut bench = Bench::with(parameters(), striding(1));
    (0..2).for_each(|_| bench.fill([(BUFFERS, 255)]));
    bench.settle();
    bench.receive(60, 1);
    bench.receive(60, 2);
    assert_eq!([0, 1].map(|number| of(&bench, number)), [(0, 0, 0, 60, 1, false), (1, 0, 0, 60, 2, false)]);
}

#[test]
fn an_entry_may_have_64_pages() {
    let mut bench = Bench::with(parameters(), striding(64));
    assert_eq!(bench.nic.ring(0).entry_bytes(), 1024);
    let pages = std::array::from_fn::<_, 64, _>(|page| (BUFFERS + page as u64 * PAGE_SIZE, 4096));
    bench.fill(pages);
    bench.fill(pages);
    bench.settle();
    // The entry has 1024 strides. 204 frames of five strides leave four.
    (0..205).for_each(|cookie| bench.receive(1280, cookie));
    // There are completions for 48 strides of each of four entries, so they have gone round once.
    assert_eq!(of(&bench, 203), (0, 1015, 5, 1280, 203, false));
    assert_eq!(of(&bench, 204), (0, 1020, 4, 0, 0, true));
    assert_eq!(of(&bench, 205), (1, 0, 5, 1280, 204, false));
    assert_eq!(bench.nic.counters().bus.faults, 0);
}

#[test]
fn completions_of_64_bytes_take_more_pages() {
    let format = RingFormat { completion_bytes: 64, ..RingFormat::default() };
    let mut bench = Bench::with(
        NicParameters { transaction_bytes: 16, ..parameters() },
        RingConfig { entries: 128, format, ..config(Direction::Transmit, AT_ONCE) },
    );
    bench.machine.poke(PhysAddr::new(bench.memory[1].as_u64() + 127 * 64 + 16), 77);
    for _ in 0..127 {
        bench.fill([(BUFFERS, 16), (0, 0)]);
        bench.settle();
    }
    let before = bench.nic.counters().bus.transactions;
    bench.fill([(BUFFERS, 16), (0, 0)]);
    bench.settle();
    assert_eq!(bench.nic.counters().bus.transactions - before, 1 + 2 + 1 + 4, "record, entry, buffer, completion");
    assert_eq!(bench.nic.ring(0).completion_offset(127), 127 * 64);
    assert_eq!((bench.completion(63).cookie, bench.completion(64).cookie), (1063, 1064));
    let raw = |at| bench.machine.ram.read_u64(PhysAddr::new(bench.memory[1].as_u64() + at)).unwrap();
    assert_eq!([0, 8, 16].map(|at| raw(127 * 64 + at)), [127 | 16 << 32, 1127 | 128 << 32, 77], "two words");
    unmap(&bench, 0x20_1000);
    bench.machine.run(global_flush());
    (0..65).for_each(|_| bench.fill([(BUFFERS, 16), (0, 0)]));
    bench.settle();
    assert_eq!(bench.completion(128).serial, 129, "the ring has gone round");
    assert_eq!(bench.nic.counters().bus.faults, 1, "completion 192 is in the second page");
}

#[test]
fn an_entry_may_be_longer_than_its_descriptors() {
    let format = RingFormat { least_entry_bytes: 64, ..RingFormat::default() };
    let long = RingConfig { format, ..config(Direction::Transmit, AT_ONCE) };
    assert_eq!((long.entry_bytes(), long.entry_offset(3)), (64, 192));
    assert_eq!(RingConfig { pieces: 5, ..long }.entry_bytes(), 128, "its descriptors need more");
    let fetched = |config| {
        let mut bench = Bench::with(NicParameters { transaction_bytes: 32, ..parameters() }, config);
        (0..8).for_each(|_| bench.fill([(BUFFERS, 30), (BUFFERS, 2)]));
        bench.settle();
        assert_eq!(bench.sent().iter().map(|(_, frame)| frame.cookie).collect::<Vec<_>>(), Vec::from_iter(1000..1008));
        assert!(bench.sent().iter().all(|(_, frame)| frame.bytes == 32));
        bench.nic.counters().bus.transactions
    };
    let packed = config(Direction::Transmit, AT_ONCE);
    assert_eq!(fetched(long) - fetched(packed), 8, "each is two transactions of 32 bytes instead of one");
}

/// A ring with events, and a frame that was received before all is cached.
fn with_events(events: Option<EventQueue>) -> (Bench, PhysAddr) {
    let mut bench = Bench::with(parameters(), RingConfig { events, ..config(Direction::Receive, AT_ONCE) });
    let page = bench.machine.ram.allocate().unwrap();
    bench.machine.map(bench.top, EVENTS, page.as_u64());
    (0..4).for_each(|_| bench.fill([(BUFFERS, 512), (0, 0)]));
    bench.settle();
    bench.receive(60, 0);
    (bench, page)
}

#[test]
fn an_event_lands_before_the_interrupt() {
    let queue = EventQueue { base: Iova::new(EVENTS), events: 2 };
    let interrupt = |events| {
        let (mut bench, page) = with_events(events);
        bench.nic.arm(bench.machine.now_ps, 0, 1);
        bench.settle();
        let (lookups, misses) = (bench.machine.counters().lookups, bench.machine.counters().iotlb_misses);
        let start_ps = bench.machine.now_ps;
        bench.receive(60, 1);
        let [(at_ps, Output::Interrupt(7))] = bench.outputs[..] else { panic!("{:?}", bench.outputs) };
        let counters = bench.machine.counters();
        (at_ps - start_ps, counters.lookups - lookups, counters.iotlb_misses - misses, bench, page)
    };
    let (landed_ps, lookups, misses, ..) = interrupt(None);
    assert_eq!((landed_ps, lookups, misses), (65_000, 2, 0), "frame and completion");
    let (at_ps, lookups, misses, mut bench, page) = interrupt(Some(queue));
    assert_eq!((lookups, misses), (3, 1), "the event is translated too");
    // The tables of the page before are shared, so its walk has two reads.
    assert_eq!(at_ps, landed_ps + 2 * 197_000 + 65_000);
    let event = |number| {
        let at = page.as_u64() + queue.offset(number);
        Event::of(bench.machine.ram.read_u64(PhysAddr::new(at)).unwrap())
    };
    assert_eq!([0, 1].map(event), [Event { ring: 0, serial: 1 }, Event::default()]);
    assert_eq!(queue.offset(1), EVENT_BYTES);
    for seen in 2..4 {
        bench.nic.arm(bench.machine.now_ps, 0, seen);
        bench.receive(60, seen);
    }
    let event = |at| Event::of(bench.machine.ram.read_u64(PhysAddr::new(page.as_u64() + at)).unwrap()).serial;
    assert_eq!([0, EVENT_BYTES].map(event), [3, 2], "the queue has gone round");
    assert_eq!((bench.nic.counters().interrupts, bench.outputs.len()), (3, 3));
}

#[test]
fn an_event_has_landed_when_its_interrupt_is_raised_and_not_before() {
    let (mut bench, page) = with_events(Some(EventQueue { base: Iova::new(EVENTS), events: 2 }));
    bench.nic.arm(bench.machine.now_ps, 0, 0);
    let mut landed = Vec::new();
    while let Some(at_ps) = [bench.nic.next_event_ps(), bench.machine.vtd.next_event_ps()].into_iter().flatten().min() {
        bench.machine.vtd.advance(at_ps);
        bench.nic.advance(at_ps);
        bench.machine.vtd.advance(at_ps);
        landed.push((bench.machine.ram.read_u64(page).unwrap() != 0, bench.nic.counters().interrupts == 1));
    }
    assert!(landed.iter().all(|(event, interrupt)| event == interrupt), "{landed:?}");
    assert!(landed.contains(&(false, false)) && landed.last() == Some(&(true, true)), "{landed:?}");
    // If it is refused, there is no interrupt.
    let (mut bench, _) = with_events(Some(EventQueue { base: Iova::new(EVENTS + PAGE_SIZE), events: 2 }));
    bench.nic.arm(bench.machine.now_ps, 0, 0);
    bench.settle();
    assert_eq!((bench.nic.counters().interrupts, bench.nic.counters().bus.faults), (0, 1));
}

#[test]
fn rings_share_an_event_queue() {
    let queue = EventQueue { base: Iova::new(EVENTS), events: 8 };
    let (mut bench, page) = with_events(Some(queue));
    let other = RingConfig { vector: 8, ..*bench.nic.ring(0) };
    assert_eq!(bench.nic.open(other), 1, "it uses the same memory, which is well for one frame");
    bench.nic.doorbell(bench.machine.now_ps, 1);
    bench.settle();
    bench.nic.receive(bench.machine.now_ps, 1, Frame { bytes: 60, cookie: 9 });
    bench.settle();
    (0..2).for_each(|ring| bench.nic.arm(bench.machine.now_ps, ring, 0));
    bench.settle();
    let event = |at| Event::of(bench.machine.ram.read_u64(PhysAddr::new(page.as_u64() + at)).unwrap());
    assert_eq!([0, EVENT_BYTES].map(event), [Event { ring: 0, serial: 1 }, Event { ring: 1, serial: 2 }]);
    let raised: Vec<Output> = bench.outputs.iter().map(|(_, output)| *output).collect();
    assert_eq!(raised, [Output::Interrupt(7), Output::Interrupt(8)]);
}

fn dropping(config: RingConfig) -> RingConfig {
    RingConfig { format: RingFormat { drops_without_buffer: true, ..config.format }, ..config }
}

/// Frames received, dropped, and out of buffer.
fn fates(bench: &Bench) -> (u64, u64, u64) {
    let counters = bench.nic.counters();
    (counters.received, counters.dropped, counters.out_of_buffer)
}

#[test]
fn a_frame_without_an_entry_is_dropped_if_the_ring_says_so() {
    let parameters = NicParameters { receive_buffer_bytes: 4000, ..parameters() };
    let mut bench = Bench::with(parameters.clone(), config(Direction::Receive, AT_ONCE));
    (0..3).for_each(|cookie| bench.receive(1514, cookie));
    assert_eq!(fates(&bench), (0, 1, 0), "two wait, and the third finds no room");
    let mut bench = Bench::with(parameters, dropping(config(Direction::Receive, AT_ONCE)));
    (0..5).for_each(|cookie| bench.receive(1514, cookie));
    assert_eq!(fates(&bench), (0, 0, 5), "they leave the receive buffer");
    bench.fill([(BUFFERS, 2048), (0, 0)]);
    bench.settle();
    // At one time: one has an entry, and one has none. The second must not wait for the first to be drained.
    let now_ps = bench.machine.now_ps;
    (5..7).for_each(|cookie| bench.nic.receive(now_ps, 0, Frame { bytes: 1514, cookie }));
    bench.settle();
    assert_eq!((fates(&bench), bench.completion(0).cookie), ((1, 0, 6), 5));
    // Larger than the receive buffer.
    bench.receive(5000, 7);
    assert_eq!(fates(&bench), (1, 1, 6), "counted once");
}

#[test]
fn an_entry_counts_as_posted_when_the_record_is_read() {
    // The doorbell, a walk of four reads, and the read of the record.
    let known_ps = 100_000 + 4 * 197_000 + 500_000;
    for (at_ps, expected) in [(known_ps - 1, (0, 0, 1)), (known_ps + 1, (1, 0, 0))] {
        let mut bench = Bench::with(parameters(), dropping(config(Direction::Receive, AT_ONCE)));
        bench.fill([(BUFFERS, 2048), (0, 0)]);
        bench.nic.receive(at_ps, 0, Frame { bytes: 60, cookie: 0 });
        bench.nic.advance(at_ps);
        assert_eq!(fates(&bench), (0, 0, expected.2), "it has its entry only after a fetch");
        bench.settle();
        assert_eq!(fates(&bench), expected);
    }
}

#[test]
fn a_striding_ring_drops_what_its_last_entry_does_not_hold() {
    let mut bench = Bench::with(parameters(), dropping(striding(1)));
    bench.fill([(BUFFERS, 4096)]);
    bench.settle();
    bench.receive(3000, 1);
    bench.receive(3000, 2);
    assert_eq!((fates(&bench), of(&bench, 1)), ((1, 0, 1), (0, 12, 4, 0, 0, true)));
    // Two frames wait for the same entry. One turns out to have no room.
    bench.fill([(BUFFERS, 4096)]);
    let now_ps = bench.machine.now_ps + 100_000 + 600_000;
    (3..5).for_each(|cookie| bench.nic.receive(now_ps, 0, Frame { bytes: 3000, cookie }));
    bench.settle();
    assert_eq!((fates(&bench), of(&bench, 2)), ((2, 0, 2), (1, 0, 12, 3000, 3, false)));
}

#[test]
fn a_ring_beyond_its_limits_is_not_opened() {
    let opens = |config: RingConfig| {
        let (machine, _) = Machine::with_pages(portcullis_model::Parameters::cascadelake(), BUFFERS, 1);
        let mut nic = Nic::new(DEVICE, parameters(), machine.vtd.clone());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| nic.open(config))).is_ok()
    };
    let (packed, strides) = (config(Direction::Receive, AT_ONCE), striding(64));
    let with = |base: RingConfig, change: fn(&mut RingConfig)| {
        let mut config = base;
        change(&mut config);
        config
    };
    let events = EventQueue { base: Iova::new(EVENTS), events: 0 };
    assert!(opens(packed) && opens(strides));
    for refused in [
        RingConfig { pieces: 19, ..packed },
        RingConfig { pieces: 65, ..strides },
        RingConfig { pieces: 0, ..strides },
        RingConfig { entries: 0, ..strides },
        RingConfig { direction: Direction::Transmit, ..strides },
        RingConfig { events: Some(events), ..packed },
        with(strides, |config| config.format.stride_bytes = Some(0)),
        with(strides, |config| config.format.completion_bytes = 16),
        with(packed, |config| config.format.completion_bytes = 8),
        with(packed, |config| config.format.completion_bytes = 48),
        with(packed, |config| config.format.completion_bytes = 8192),
        with(packed, |config| config.format.completions_per_entry = 0),
        with(packed, |config| config.format.least_entry_bytes = 4097),
    ] {
        assert!(!opens(refused), "{refused:?}");
    }
}
