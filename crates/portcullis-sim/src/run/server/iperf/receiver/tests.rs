#![expect(clippy::single_range_in_vec_init, reason = "a list of blocks may have one")]

use super::*;

const US: u64 = 1_000_000;
const MS: u64 = 1_000 * US;

/// A receiver that has no acknowledgements left to send at once.
fn receiver(change: impl FnOnce(&mut ReceiverParameters)) -> Receiver<u64> {
    let mut parameters = ReceiverParameters { quick: 0, ..ReceiverParameters::default() };
    change(&mut parameters);
    Receiver::new(&parameters)
}

/// A poll with these packets. Returns the acknowledgements.
fn poll(receiver: &mut Receiver<u64>, now_ps: u64, numbers: impl IntoIterator<Item = u64>) -> Vec<Acknowledgement> {
    for number in numbers {
        assert_eq!(receiver.receive(now_ps, number, number), None);
    }
    receiver.poll_ended(now_ps).into_vec()
}

fn blocks(acknowledgement: &Acknowledgement) -> Vec<Range<u64>> {
    acknowledgement.sacked.to_vec()
}

#[test]
fn a_new_connection_acknowledges_each_run_for_a_while() {
    let mut receiver = Receiver::new(&ReceiverParameters::default());
    let answers: usize = (0..20).map(|number| poll(&mut receiver, number * US, [number]).len()).sum();
    assert_eq!(answers, 16);
}

#[test]
fn packets_in_order_are_acknowledged_when_they_are_read() {
    let mut receiver = receiver(|_| {});
    assert_eq!(poll(&mut receiver, 0, 0..40), [], "the window would shrink");
    assert_eq!(receiver.readable(), 40);
    assert_eq!(receiver.read(100).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
    let answer = receiver.read_ended().expect("more than one packet");
    assert_eq!((answer.next, answer.window, receiver.held()), (40, 250, 0));
    assert_eq!(receiver.timer_ps(), None);
    assert_eq!(receiver.read_ended(), None);
}

#[test]
fn a_single_packet_is_acknowledged_after_the_delay() {
    let mut receiver = receiver(|_| {});
    assert_eq!(poll(&mut receiver, US, [0]), []);
    assert_eq!(receiver.read(1).count(), 1);
    assert_eq!(receiver.read_ended(), None);
    assert_eq!(receiver.timer_ps(), Some(44 * MS), "40 ms, and the tick of the timer wheel");
    assert_eq!(receiver.expire(44 * MS - 1), None);
    assert_eq!(receiver.expire(44 * MS).expect("a delayed acknowledgement").next, 1);
}

#[test]
fn an_application_that_keeps_up_lets_packets_be_acknowledged_at_once() {
    let mut receiver = receiver(|_| {});
    poll(&mut receiver, 0, 0..40);
    assert_eq!(receiver.read(20).count(), 20);
    receiver.read_ended();
    assert_eq!(receiver.read(20).count(), 20);
    assert_eq!(receiver.read_ended(), None, "nothing is new");
    // The window that was named is 230 packets, and 240 fit now.
    let answers = poll(&mut receiver, US, 40..50);
    assert_eq!((answers.len(), answers[0].next, answers[0].window), (1, 50, 240));
}

#[test]
fn gro_makes_one_of_sixteen_packets() {
    // The second run has one packet, the third is not the continuation of it.
    let mut receiver = receiver(|parameters| parameters.quick = 100);
    let answers = poll(&mut receiver, 0, (0..17).chain(20..22));
    assert_eq!(answers.iter().map(|answer| answer.next).collect::<Vec<_>>(), [16, 17, 17]);
    assert_eq!(poll(&mut receiver, US, [22]).len(), 1, "a poll ends a run");
}

#[test]
fn three_runs_out_of_order_are_acknowledged_at_once_and_further_ones_together() {
    let mut receiver = receiver(|_| {});
    let now_ps = 5 * US;
    for (index, number) in (1..11).enumerate() {
        let answers = poll(&mut receiver, now_ps, [number]);
        assert_eq!(answers.len(), usize::from(index < 3));
        assert!(answers.iter().all(|answer| answer.next == 0 && blocks(answer) == [1..number + 1]));
    }
    let end_ps = now_ps + 30 * US / 20 + 100 * US;
    assert_eq!((receiver.timer_ps(), receiver.expire(end_ps - 1)), (Some(end_ps), None));
    assert_eq!(blocks(&receiver.expire(end_ps).expect("an acknowledgement")), [1..11]);
    assert_eq!(receiver.timer_ps(), None);
    assert_eq!((receiver.received().out_of_order, receiver.received().acknowledgements), (10, 4));
}

#[test]
fn a_long_round_trip_puts_acknowledgements_off_for_a_millisecond() {
    let mut receiver = receiver(|parameters| (parameters.rtt_ps, parameters.slack_ps) = (100 * MS, 0));
    for number in 1..5 {
        poll(&mut receiver, 0, [number]);
    }
    assert_eq!(receiver.timer_ps(), Some(MS));
}

#[test]
fn forty_four_acknowledgements_are_put_off_at_most() {
    let mut receiver = receiver(|_| {});
    let answers: Vec<_> = (1..100).map(|number| poll(&mut receiver, 0, [number]).len()).collect();
    let sent: Vec<_> = (0..99).filter(|&index| answers[index] > 0).collect();
    assert_eq!(sent, [0, 1, 2, 47, 92]);
}

#[test]
fn the_switch_acknowledges_each_packet_out_of_order() {
    let mut receiver = receiver(|parameters| parameters.acknowledges_each = true);
    let answers = poll(&mut receiver, 0, 1..31);
    assert_eq!(answers.len(), 30);
    assert_eq!(blocks(&answers[7]), [1..9]);
    assert_eq!(receiver.timer_ps(), None);
}

#[test]
fn a_run_that_fills_a_gap_is_acknowledged_at_once() {
    let mut receiver = receiver(|_| {});
    let answers = poll(&mut receiver, 0, [1, 2, 4, 5, 6]);
    assert_eq!((answers.len(), blocks(&answers[1])), (2, vec![4..7, 1..3]));
    let partly = poll(&mut receiver, US, [0]);
    assert_eq!((partly.len(), partly[0].next, blocks(&partly[0])), (1, 3, vec![4..7]));
    let whole = poll(&mut receiver, US, [3]);
    assert_eq!((whole.len(), whole[0].next, blocks(&whole[0]), receiver.held()), (1, 7, vec![], 7));
    assert_eq!(receiver.read(9).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
}

#[test]
fn three_blocks_are_named_the_latest_first_and_none_is_forgotten_unheard() {
    let mut receiver = receiver(|_| {});
    let mut heard = Vec::new();
    for number in [2, 4, 6, 8, 10, 12] {
        heard.extend(poll(&mut receiver, 0, [number]));
    }
    // The first three are acknowledged at once. The fourth waits until a fifth comes.
    assert_eq!(blocks(&heard[2]), [6..7, 4..5, 2..3]);
    assert_eq!(blocks(&heard[3]), [8..9, 6..7, 4..5]);
    assert_eq!(heard.len(), 5);
    assert_eq!(blocks(&receiver.expire(MS).expect("the last one")), [12..13, 10..11, 8..9]);
}

#[test]
fn duplicates_are_acknowledged_at_once_and_dropped() {
    let mut receiver = receiver(|_| {});
    poll(&mut receiver, 0, 0..4);
    receiver.read(4).count();
    receiver.read_ended();
    assert_eq!(receiver.receive(US, 2, 2), Some(2));
    let answers = receiver.poll_ended(US);
    assert_eq!((answers.len(), answers[0].next, blocks(&answers[0])), (1, 4, vec![2..3]));
    poll(&mut receiver, US, [6]);
    assert_eq!(receiver.receive(US, 6, 6), Some(6), "out of order");
    assert_eq!(receiver.receive(US, 4 + 250, 254), Some(254), "outside the window");
    receiver.poll_ended(US);
    assert_eq!((receiver.received().dropped, receiver.held()), (3, 1));
}

#[test]
fn the_window_closes_without_moving_back_and_opens_when_much_was_read() {
    let mut receiver = receiver(|_| {});
    let mut edge = 250;
    for start in (0..240).step_by(40) {
        poll(&mut receiver, start * MS, start..start + 40);
        let answer = receiver.expire(start * MS + 60 * MS).expect("no application reads");
        assert_eq!(answer.next + answer.window, edge);
        edge = answer.next + answer.window;
    }
    poll(&mut receiver, 400 * MS, 240..250);
    assert_eq!(receiver.expire(500 * MS).expect("no application reads").window, 0);
    assert_eq!(receiver.read(10).count(), 10);
    assert_eq!(receiver.read_ended(), None, "less than a sixteenth");
    assert_eq!(receiver.read(10).count(), 10);
    assert_eq!(receiver.read_ended().expect("room").window, 20);
    assert_eq!(receiver.read(10).count(), 10);
    assert_eq!(receiver.read_ended(), None, "less than twice as much");
}
