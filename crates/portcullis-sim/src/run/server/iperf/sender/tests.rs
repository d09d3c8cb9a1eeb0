#![expect(clippy::single_range_in_vec_init, reason = "a list of blocks may have one")]

use super::*;
use smallvec::SmallVec;

const US: u64 = 1_000_000;
const MS: u64 = 1_000 * US;

fn acknowledgement(next: u64, sacked: &[Range<u64>], window: u64) -> Acknowledgement {
    Acknowledgement { next, sacked: sacked.iter().cloned().collect::<SmallVec<_>>(), window }
}

fn sender(receive_window: u64) -> Sender {
    Sender::new(&TcpParameters { receive_window, ..TcpParameters::default() }, u64::MAX)
}

/// Sends what it can, a packet per microsecond. Returns the numbers, and those that were sent again.
fn send(sender: &mut Sender, now_ps: &mut u64) -> (Vec<u64>, Vec<u64>) {
    let (mut fresh, mut again) = (Vec::new(), Vec::new());
    while let Some(packet) = sender.next(*now_ps) {
        *now_ps += US;
        if packet.is_again { &mut again } else { &mut fresh }.push(packet.number);
    }
    (fresh, again)
}

#[test]
fn ten_packets_leave_first_and_each_acknowledged_one_opens_the_window_by_one() {
    let (mut sender, mut now_ps) = (sender(250), 0);
    assert_eq!(send(&mut sender, &mut now_ps), ((0..10).collect(), vec![]));
    sender.acknowledge(40 * US, &acknowledgement(4, &[], 250));
    assert_eq!(sender.congestion_window(), 14);
    assert_eq!(send(&mut sender, &mut now_ps).0, (10..18).collect::<Vec<_>>());
    sender.acknowledge(50 * US, &acknowledgement(30, &[], 250));
    assert_eq!(sender.una, 4, "packets that were not sent");
}

#[test]
fn the_receiver_limits_what_is_out() {
    let (mut sender, mut now_ps) = (sender(7), 0);
    assert_eq!(send(&mut sender, &mut now_ps).0.len(), 7);
    sender.acknowledge(40 * US, &acknowledgement(7, &[], 3));
    assert_eq!(send(&mut sender, &mut now_ps).0, [7, 8, 9]);
}

#[test]
fn what_is_not_written_is_not_sent_and_a_frame_has_new_packets_alone() {
    let mut sender = Sender::new(&TcpParameters::default(), 0);
    assert_eq!((sender.next(0), sender.queued()), (None, 0));
    sender.write(6);
    assert_eq!(
        [sender.next_frame(0, 4), sender.next_frame(0, 4), sender.next_frame(0, 4)],
        [Some(0..4), Some(4..6), None]
    );
    sender.write(100);
    assert_eq!(sender.next_frame(US, 16), Some(6..10), "ten packets are out");
    sender.acknowledge(40 * US, &acknowledgement(0, &[1..10], 250));
    assert_eq!(sender.next_frame(40 * US, 16), Some(0..1), "a lost packet leaves by itself");
    assert_eq!(sender.queued(), 106);
    sender.acknowledge(80 * US, &acknowledgement(10, &[], 250));
    assert_eq!(sender.queued(), 96);
}

#[test]
fn three_later_packets_prove_a_loss_and_the_window_falls_once() {
    let (mut sender, mut now_ps) = (sender(250), 0);
    send(&mut sender, &mut now_ps);
    let before = sender.congestion_window();
    sender.acknowledge(40 * US, &acknowledgement(0, &[1..4], 250));
    now_ps = 40 * US;
    let (fresh, again) = send(&mut sender, &mut now_ps);
    assert_eq!((fresh, again), (vec![10], vec![0]), "three arrived, and half as many leave, rounded up");
    sender.acknowledge(50 * US, &acknowledgement(0, &[1..10], 250));
    now_ps = 50 * US;
    let (fresh, again) = send(&mut sender, &mut now_ps);
    assert!(again.is_empty() && !fresh.is_empty());
    let end = sender.end();
    sender.acknowledge(80 * US, &acknowledgement(end, &[], 250));
    assert_eq!(sender.state, State::Open);
    let (low, after) = (before / 2, sender.congestion_window());
    assert!((low..=low + 1).contains(&after), "half, and a first step of growth: {after}");
    assert_eq!((sender.sent().again, sender.sent().timeouts, sender.sent().probes), (1, 0, 0));
}

#[test]
fn what_is_sent_again_and_lost_again_is_sent_a_third_time() {
    let (mut sender, mut now_ps) = (sender(250), 0);
    send(&mut sender, &mut now_ps);
    sender.acknowledge(40 * US, &acknowledgement(0, &[1..10], 250));
    now_ps = 40 * US;
    let (fresh, again) = send(&mut sender, &mut now_ps);
    assert_eq!((again, fresh.first()), (vec![0], Some(&10)));
    let window = sender.window.clone();
    sender.acknowledge(81 * US, &acknowledgement(0, &[1..11], 250));
    now_ps = 81 * US;
    assert_eq!(send(&mut sender, &mut now_ps).1, [0], "a packet that was sent later arrived");
    assert!(sender.congestion_window() >= window.packets() - 1, "the same recovery");
}

#[test]
fn a_packet_that_is_only_late_is_not_sent_again_before_the_timer() {
    let (mut late, mut now_ps) = (sender(250), 0);
    send(&mut late, &mut now_ps);
    late.acknowledge(38 * US, &acknowledgement(4, &[], 250));
    late.acknowledge(39 * US, &acknowledgement(4, &[5..6], 250));
    now_ps = 39 * US;
    assert!(send(&mut late, &mut now_ps).1.is_empty());
    let end_ps = late.timer_ps().expect("a timer for reordering");
    assert_eq!(end_ps, 16 * MS, "a jiffy, two more, and one of the timer wheel");

    let mut lost = late.clone();
    lost.expire(end_ps - 1);
    assert_eq!(lost.next(end_ps - 1), None);
    lost.expire(end_ps);
    assert_eq!(lost.next(end_ps), Some(Packet { number: 4, is_again: true }));

    late.acknowledge(43 * US, &acknowledgement(10, &[], 250));
    assert!(send(&mut late, &mut now_ps).1.is_empty());
    assert!(late.has_reordered);
    late.acknowledge(82 * US, &acknowledgement(11, &[12..15], 250));
    now_ps = 82 * US;
    assert!(send(&mut late, &mut now_ps).1.is_empty(), "three packets prove nothing any more");
}

#[test]
fn a_probe_repairs_the_loss_of_the_last_packet() {
    let (mut sender, mut now_ps) = (sender(10), 0);
    send(&mut sender, &mut now_ps);
    sender.acknowledge(40 * US, &acknowledgement(8, &[], 2));
    let end_ps = sender.timer_ps().expect("a probe");
    assert_eq!(end_ps, 16 * MS, "2 srtt are a jiffy, two more, and one of the timer wheel");
    sender.expire(end_ps);
    assert_eq!(sender.next(end_ps), Some(Packet { number: 9, is_again: true }));
    assert_eq!(sender.next(end_ps), None, "a single packet");
    let mut twice = sender.clone();

    sender.acknowledge(end_ps + 40 * US, &acknowledgement(10, &[], 10));
    let before = sender.congestion_window();
    assert_eq!(sender.next(end_ps + 40 * US), Some(Packet { number: 10, is_again: false }));
    sender.acknowledge(end_ps + 80 * US, &acknowledgement(11, &[], 10));
    assert_eq!(sender.congestion_window(), before, "it was a loss, and no packet was marked");
    assert!(!sender.window.is_slow_start());

    twice.acknowledge(end_ps + 40 * US, &acknowledgement(10, &[9..10], 10));
    assert!(twice.congestion_window() >= before, "the packet had arrived");
    assert!(twice.probe.is_none());
    assert_eq!((sender.sent().timeouts, sender.sent().probes, sender.sent().again), (0, 1, 1));
}

#[test]
fn a_probe_is_new_if_the_window_allows_and_waits_for_a_delayed_acknowledgement() {
    let (mut sender, mut now_ps) = (sender(11), 0);
    send(&mut sender, &mut now_ps);
    let end_ps = sender.timer_ps().expect("a probe");
    sender.expire(end_ps);
    assert_eq!(sender.next(end_ps), Some(Packet { number: 10, is_again: false }));

    sender.acknowledge(end_ps + US, &acknowledgement(10, &[], 1));
    let single_ps = sender.timer_ps().expect("a probe");
    assert!((200 * MS..210 * MS).contains(&(single_ps - end_ps)), "a single packet is out: {single_ps}");
}

#[test]
fn if_everything_is_lost_the_timeout_doubles() {
    let (mut sender, mut now_ps) = (sender(10), 0);
    send(&mut sender, &mut now_ps);
    let mut ends_ps = Vec::new();
    for round in 0..5 {
        let end_ps = sender.timer_ps().expect("a timer");
        sender.expire(end_ps);
        let packet = sender.next(end_ps).expect("a packet");
        assert_eq!((packet.number, packet.is_again), (if round == 0 { 9 } else { 0 }, true));
        assert_eq!(sender.next(end_ps), None);
        ends_ps.push(end_ps);
    }
    let waits_ms: Vec<_> = ends_ps.windows(2).map(|ends_ps| (ends_ps[1] - ends_ps[0]) / MS).collect();
    assert_eq!(waits_ms, [208, 408, 808, 1608], "200 ms and the round trip, in ticks, and one tick");
    assert_eq!((sender.sent().timeouts, sender.congestion_window()), (4, 1));

    let now_ps = ends_ps[4] + 40 * US;
    sender.acknowledge(now_ps, &acknowledgement(9, &[], 10));
    assert_eq!(sender.next(now_ps), Some(Packet { number: 9, is_again: true }));
    sender.acknowledge(now_ps + 40 * US, &acknowledgement(10, &[], 10));
    assert_eq!((sender.state, sender.backoff), (State::Open, 0));
    assert_eq!(sender.congestion_window(), 6, "slow start ends at half of the window, and five more make one");
}

#[test]
fn a_timeout_spares_what_was_sent_just_now() {
    let (mut sender, mut now_ps) = (sender(10), 0);
    send(&mut sender, &mut now_ps);
    sender.acknowledge(40 * US, &acknowledgement(0, &[1..10], 10));
    now_ps = 40 * US;
    assert_eq!(send(&mut sender, &mut now_ps), (vec![], vec![0]));
    assert!(sender.has_timer(Timer::Retransmission), "there is no probe during a recovery");
    let end_ps = sender.timer_ps().expect("a timeout");
    now_ps = end_ps - 10 * US;
    sender.acknowledge(now_ps, &acknowledgement(0, &[1..10], 20));
    assert_eq!(send(&mut sender, &mut now_ps).0, [10, 11, 12, 13], "the receiver's window opened");
    sender.expire(end_ps);
    assert_eq!((sender.sent().timeouts, sender.lost, sender.in_flight()), (1, 1, 4));
    assert_eq!(sender.next(end_ps), Some(Packet { number: 0, is_again: true }));
    assert_eq!(sender.next(end_ps), None);
}

#[test]
fn a_closed_window_is_asked_for_and_opens() {
    let (mut sender, mut now_ps) = (sender(10), 0);
    send(&mut sender, &mut now_ps);
    sender.acknowledge(40 * US, &acknowledgement(10, &[], 0));
    assert_eq!(sender.next(41 * US), None);
    let first_ps = sender.timer_ps().expect("a timer");
    sender.expire(first_ps);
    assert_eq!(sender.next(first_ps), Some(Packet { number: 9, is_again: true }), "old, so that it is answered");
    let second_ps = sender.timer_ps().expect("a timer");
    assert!(second_ps - first_ps > 390 * MS && first_ps > 200 * MS);
    sender.acknowledge(first_ps + 40 * US, &acknowledgement(10, &[9..10], 125));
    assert_eq!(sender.next(first_ps + 41 * US), Some(Packet { number: 10, is_again: false }));
}
