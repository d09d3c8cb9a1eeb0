//! The ring filled to its last slot: commits that fit are taken, commits that do not fit are refused, and all that
//! were taken are executed once, in order. A slot that is overwritten before the hardware has executed it is an
//! invalidation that never happens.

use super::fake_unit::*;
use super::host::Host;
use super::{Driver, bring_up, finish, page, page_descriptor, without_waits};
use crate::Ticket;
use crate::queue::{BURST_MAX, SLOTS};
use crate::spec::descriptors::InvalidationDescriptor;
use crate::spec::faults::status;
use portcullis::iommu::{Invalidation, Iommu, QueueError, TrySubmit};
use portcullis::platform::fake::run_on;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of commands of a commit, and how they are submitted.
#[derive(Clone, Copy, Debug)]
enum Commit {
    Alone(usize),
    Shared(usize),
    /// One command, by [`Iommu::try_invalidate`].
    AtOnce,
}

use Commit::{Alone, AtOnce, Shared};

impl Commit {
    fn count(self) -> usize {
        match self {
            Alone(count) | Shared(count) => count,
            AtOnce => 1,
        }
    }

    /// Pages of domain 7 for the commands. No other commit has these pages.
    fn pages(self, index: usize) -> std::ops::Range<u64> {
        let first = 100 * index as u64;
        first..first + self.count() as u64
    }

    /// Submits the commands to hardware that is not done with them at once. `None` if the commit does not wait for
    /// room and has found none.
    fn submit(self, unit: &Driver<'_>, index: usize) -> TrySubmit<Ticket> {
        let commands: Vec<Invalidation> = self.pages(index).map(|pfn| page(7, pfn)).collect();
        match self {
            Alone(_) => unit.submit(&commands).map(Some),
            Shared(_) => unit.submit_shared(&commands).map(Some),
            AtOnce => unit.try_invalidate(commands[0]).expect_err("nothing is executed so soon"),
        }
    }

    /// What [`submit`](Self::submit) returns where there is no room.
    fn refused(self) -> TrySubmit<Ticket> {
        match self {
            Alone(_) | Shared(_) => Err(QueueError::Timeout(1000)),
            AtOnce => Ok(None),
        }
    }
}

/// The slots of a ring from which the hardware fetches nothing, and what was written to them. All commits are made on
/// one CPU.
struct Slots {
    free: usize,
    /// What the greatest commit has found missing, if it was not taken since.
    wanted: usize,
    /// Shared submissions.
    in_flight: usize,
    /// The page that is posted.
    posted: Option<u64>,
    /// Whether the cell is in use: by the post, or by the submission that it was taken into.
    has_posted: bool,
    /// The pages in the ring, in order.
    pages: Vec<u64>,
}

impl Slots {
    /// One slot always stays free, because a full ring would look empty.
    fn empty() -> Self {
        Self { free: SLOTS - 1, wanted: 0, in_flight: 0, posted: None, has_posted: false, pages: Vec::new() }
    }

    /// Takes the slots for a commit, if there are enough, or its post.
    fn take(&mut self, commit: Commit, index: usize) -> bool {
        let (count, is_shared) = (commit.count(), matches!(commit, Shared(_) | AtOnce));
        if is_shared && count == 1 && self.in_flight >= 2 && !self.has_posted {
            (self.posted, self.has_posted) = (Some(commit.pages(index).start), true);
            return true;
        }
        let needed = count + 1;
        if needed >= self.wanted || self.free == SLOTS - 1 {
            self.wanted = if self.free < needed { needed } else { 0 };
        }
        if self.free < needed + self.wanted {
            return false;
        }
        self.free -= needed;
        self.pages.extend(commit.pages(index));
        if is_shared {
            self.in_flight += 1;
            if count < BURST_MAX
                && self.free > self.wanted
                && let Some(page) = self.posted.take()
            {
                self.free -= 1;
                self.pages.push(page);
            }
        }
        true
    }
}

fn descriptors(pages: impl Iterator<Item = u64>) -> Vec<InvalidationDescriptor> {
    pages.map(|pfn| page_descriptor(7, pfn)).collect()
}

/// Submits `commits` to a ring that begins at slot `turned` and from which nothing is fetched. A commit that finds no
/// room within the time limit makes the queue refuse all later ones. Stops after three commits that are not taken.
fn fill(turned: usize, commits: &[Commit]) {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    for _ in 0..turned {
        assert_eq!(unit.submit(&[]).and_then(|ticket| finish(&unit, &host, ticket)), Ok(()));
    }
    fake.take_executed();
    fake.behave(Behaviour::Silent);

    let mut slots = Slots::empty();
    let (mut tickets, mut refused, mut is_overdue) = (Vec::new(), 0, false);
    for (index, commit) in commits.iter().enumerate() {
        let fits = !is_overdue && slots.take(*commit, index);
        let submitted = commit.submit(&unit, index);
        let place = format!("number {index} of {commits:?}, in a ring turned by {turned}");
        if is_overdue {
            let refused = if matches!(commit, AtOnce) { Ok(None) } else { Err(QueueError::Unresponsive) };
            assert_eq!(submitted, refused, "{place}");
        } else if fits {
            assert!(matches!(submitted, Ok(Some(_))), "{place}: {submitted:?}");
            tickets.extend(submitted.ok().flatten());
            continue;
        } else {
            assert_eq!(submitted, commit.refused(), "{place}");
            is_overdue = submitted.is_err();
        }
        refused += 1;
        if refused == 3 {
            break;
        }
    }
    assert!(tickets.iter().all(|ticket| unit.is_done(*ticket) == Ok(false)));
    assert_eq!(fake.take_executed(), []);

    fake.behave(Behaviour::Slow(0));
    for ticket in tickets {
        assert_eq!(finish(&unit, &host, ticket), Ok(()), "{commits:?}, in a ring turned by {turned}");
    }
    let pages = slots.pages.into_iter().chain(slots.posted);
    assert_eq!(without_waits(fake.take_executed()), descriptors(pages));
    // A command that is not to wait is taken once one that may wait has found the queue at work again.
    if !is_overdue {
        assert_eq!(unit.try_invalidate(page(7, 0)), Ok(()), "the ring is free again");
    }
    let next = Alone(BURST_MAX).submit(&unit, 1000).map(|ticket| ticket.expect("it waits for room"));
    assert_eq!(next.and_then(|ticket| finish(&unit, &host, ticket)), Ok(()), "the ring is free again");
    assert_eq!(unit.try_invalidate(page(7, 0)), Ok(()), "the ring is free again");
}

/// Two shared submissions in flight, and all slots taken but 56.
const NEARLY_FULL: [Commit; 5] = [Shared(1), Shared(1), Alone(BURST_MAX), Alone(BURST_MAX), Alone(BURST_MAX)];

/// First slots of the ring: at its beginning, in the middle, and where the last commits wrap around.
const TURNED: [usize; 6] = [0, 1, 77, 190, 253, 256];

#[test]
fn the_slot_of_a_wait_is_given_to_nothing_else() {
    for turned in TURNED {
        for left in 0..4 {
            // A post may take the last slot, or find none.
            let taken = [&NEARLY_FULL[..], &[AtOnce, Shared(55 - left)]].concat();
            for last in [Shared(left), Shared(left + 1), Alone(left), Alone(left.saturating_sub(1)), AtOnce] {
                fill(turned, &[&taken[..], &[last, Shared(left + 1), Alone(left)]].concat());
                fill(turned, &[&taken[..], &[last, AtOnce, AtOnce, AtOnce, AtOnce]].concat());
            }
        }
    }
}

#[test]
fn a_commit_that_cannot_have_a_wait_of_its_own_finds_no_room() {
    for turned in TURNED {
        for left in 1..4 {
            let taken = [&NEARLY_FULL[..], &[Alone(55 - left)]].concat();
            for last in [Shared(left), Shared(left - 1), Alone(left), Alone(left - 1), AtOnce] {
                fill(turned, &[&taken[..], &[last, Shared(0), Alone(0), Shared(1)]].concat());
                fill(turned, &[&taken[..], &[last, AtOnce, Alone(0), AtOnce]].concat());
                // No commit was shared before, so the first shared one has nothing to wait for.
                let unshared = [Alone(63), Alone(63), Alone(63), Alone(62 - left), last];
                fill(turned, &[&unshared[..], &[Shared(0), Alone(0)]].concat());
                fill(turned, &[&unshared[..], &[AtOnce, Alone(0), AtOnce]].concat());
            }
        }
    }
}

/// The queue stops at its first descriptor, which is noticed only when no room is left. All others continue.
#[test]
fn a_full_ring_that_has_stopped_goes_on_whole() {
    for turned in TURNED {
        for left in 0..4 {
            let host = Host::new(true);
            let fake = FakeUnit::new(&host);
            let unit = bring_up(&fake, &host);
            for _ in 0..turned {
                assert_eq!(unit.submit(&[]).and_then(|ticket| finish(&unit, &host, ticket)), Ok(()));
            }
            fake.take_executed();
            fake.with(|state| state.refuse = Some(page_descriptor(7, 0).encode()));
            let commits = [&NEARLY_FULL[..], &[Shared(55 - left), Shared(left), Shared(1), Alone(2)]].concat();
            let submit =
                |(index, commit): (usize, &Commit)| commit.submit(&unit, index).ok().flatten().expect("room is made");
            let tickets: Vec<Ticket> = commits.iter().enumerate().map(submit).collect();
            assert_eq!(finish(&unit, &host, tickets[0]), Err(QueueError::Descriptor));
            for ticket in &tickets[1..] {
                assert_eq!(finish(&unit, &host, *ticket), Ok(()), "{left} left of a ring turned by {turned}");
            }
            let pages = commits.iter().enumerate().flat_map(|(index, commit)| commit.pages(index));
            let executed = without_waits(fake.take_executed());
            assert_eq!(executed.len(), pages.clone().count() - 1, "each once");
            assert!(descriptors(pages.skip(1)).iter().all(|descriptor| executed.contains(descriptor)));
        }
    }
}

/// A unit whose ring has no room for another [`BURST_MAX`] commands. Its hardware behaves as `behaviour` says.
fn full_unit(behaviour: Behaviour) -> (&'static Host, &'static FakeUnit<'static>, Driver<'static>) {
    let host: &'static Host = Box::leak(Box::new(Host::new(true)));
    let fake: &'static FakeUnit<'static> = Box::leak(Box::new(FakeUnit::new(host)));
    let unit = bring_up(fake, host);
    fake.behave(behaviour);
    (0..3).for_each(|index| _ = Alone(BURST_MAX).submit(&unit, index).expect("room"));
    (host, fake, unit)
}

/// An error that stops nothing, and that a device may cause as often as it likes.
#[test]
fn an_error_that_comes_again_and_again_does_not_keep_a_commit() {
    let (host, fake, unit) = full_unit(Behaviour::Silent);
    let fail = || fake.with(|state| state.faults |= status::COMPLETION_ERROR);
    fail();
    // Each turn takes a microsecond, and the time limit is a second.
    const TURNS_MAX: usize = 2_000_000;
    let turns = AtomicUsize::new(0);
    host.on_pause(move || {
        assert!(turns.fetch_add(1, Ordering::Relaxed) < TURNS_MAX, "S7: the wait has no end");
        fail();
    });
    assert_eq!(Alone(BURST_MAX).submit(&unit, 3), Err(QueueError::Timeout(1000)));
}

/// Other callers take what room they can get, whenever some becomes free. The one that needs more of it comes first.
#[test]
fn small_callers_leave_room_for_a_great_one() {
    let (host, fake, unit) = full_unit(Behaviour::Holding);
    let unit: &'static Driver<'static> = Box::leak(Box::new(unit));
    let take_all = || while unit.try_invalidate(page(8, 0)) != Err(Ok(None)) {};
    take_all();
    let held = || fake.with(|state| state.held.len());
    let before = held();
    host.on_pause(move || {
        land_one(fake);
        take_all();
    });
    assert!(matches!(Alone(BURST_MAX).submit(unit, 3), Ok(Some(_))), "S7: others have taken its room");
    assert_eq!(held(), before, "S7: it has waited for more than the room of one like it");
    // No caller waits now, so the small ones have all of it.
    take_all();
    land_one(fake);
    assert!(matches!(unit.try_invalidate(page(8, 0)), Err(Ok(Some(_)))), "S7: room is kept for no caller");
}

/// Other callers that need as much are always first. The one that has no luck fails alone, because the queue moves.
#[test]
fn a_caller_that_others_leave_no_room_fails_alone() {
    let (host, fake, unit) = full_unit(Behaviour::Holding);
    let unit: &'static Driver<'static> = Box::leak(Box::new(unit));
    let commands: Vec<Invalidation> = Alone(BURST_MAX).pages(4).map(|pfn| page(7, pfn)).collect();
    host.on_pause(move || {
        land_one(fake);
        while unit.try_submit_shared(&commands) != Ok(None) {}
    });
    assert_eq!(Alone(BURST_MAX).submit(unit, 3), Err(QueueError::Timeout(1000)));
    assert!(matches!(unit.try_submit_shared(&pair()), Ok(Some(_))), "S7: room is kept for one that has given up");
    (0..3).for_each(|_| land_one(fake));
    assert!(matches!(unit.try_invalidate(page(8, 0)), Err(Ok(Some(_)))), "others are refused too");
}

/// A commit leaves what a great caller wants, and so does what others have posted, which it takes along.
#[test]
fn posts_leave_room_for_a_great_caller() {
    let (_, fake, unit) = full_unit(Behaviour::Holding);
    // With two of them in flight, those that follow are posted.
    (0..2).for_each(|_| assert!(matches!(Shared(1).submit(&unit, 4), Ok(Some(_)))));
    assert!(matches!(Alone(52).submit(&unit, 5), Ok(Some(_))), "three slots are left");
    let commands: Vec<Invalidation> = Alone(BURST_MAX).pages(6).map(|pfn| page(7, pfn)).collect();
    assert_eq!(unit.try_submit_shared(&commands), Ok(None));
    for cpu in [1, 2] {
        run_on(cpu);
        assert!(matches!(unit.try_invalidate(page(8, cpu.into())), Err(Ok(Some(_)))), "it posts");
    }
    run_on(3);
    land_one(fake);
    assert!(matches!(unit.try_submit_shared(&pair()), Ok(Some(_))), "three slots, and those that are wanted");
    assert!(matches!(unit.try_submit_shared(&commands), Ok(Some(_))), "S7: posts have taken its room");
    run_on(0);
}

/// A caller that has found no room does not come back. The others go on.
#[test]
fn a_caller_that_does_not_come_back_for_its_room_stops_nobody() {
    let (_, fake, unit) = full_unit(Behaviour::Holding);
    let commands: Vec<Invalidation> = Alone(BURST_MAX).pages(4).map(|pfn| page(7, pfn)).collect();
    assert_eq!(unit.try_submit_shared(&commands), Ok(None));
    while fake.with(|state| !state.held.is_empty()) {
        fake.land(0);
    }
    for count in [1, BURST_MAX - 1, 2, BURST_MAX, 1] {
        assert!(matches!(Alone(count).submit(&unit, 5), Ok(Some(_))), "{count} commands");
    }
}

/// A commit of two commands, which is never posted.
fn pair() -> [Invalidation; 2] {
    [page(9, 0), page(9, 1)]
}

/// Lands the oldest submission that is held, if there is one.
fn land_one(fake: &FakeUnit<'_>) {
    if fake.with(|state| !state.held.is_empty()) {
        fake.land(0);
    }
}

/// A CPU that was held up past the time limit polls once more, and takes the room that has become free.
#[test]
fn a_cpu_that_was_stopped_while_it_waited_for_room_looks_once_more() {
    let (host, fake, unit) = full_unit(Behaviour::Holding);
    host.on_pause(|| {
        host.fake.advance_us(1_000_000);
        while fake.with(|state| !state.held.is_empty()) {
            fake.land(0);
        }
    });
    assert!(Alone(BURST_MAX).submit(&unit, 3).is_ok());
}

/// Commands that are not to wait fill the ring: two go alone, one posts, and the others take the ring. At last they are
/// refused, and are taken again when the hardware has caught up.
#[test]
fn a_full_ring_takes_no_command_at_once() {
    for turned in TURNED {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let unit = bring_up(&fake, &host);
        for _ in 0..turned {
            assert_eq!(unit.submit(&[]).and_then(|ticket| finish(&unit, &host, ticket)), Ok(()));
        }
        fake.take_executed();
        fake.behave(Behaviour::Silent);
        let (mut tickets, mut slots) = (Vec::new(), Slots::empty());
        while slots.take(AtOnce, tickets.len()) {
            match AtOnce.submit(&unit, tickets.len()) {
                Ok(Some(ticket)) => tickets.push(ticket),
                other => panic!("{other:?}: number {} in a ring turned by {turned}", tickets.len()),
            }
        }
        assert_eq!(tickets.len(), SLOTS / 2, "one of them shares a wait");
        for _ in 0..2 {
            assert_eq!(unit.try_invalidate(page(8, 0)), Err(Ok(None)), "in a ring turned by {turned}");
        }
        assert!(tickets.iter().all(|ticket| unit.is_done(*ticket) == Ok(false)));

        fake.behave(Behaviour::Slow(0));
        for ticket in tickets {
            assert_eq!(finish(&unit, &host, ticket), Ok(()), "in a ring turned by {turned}");
        }
        assert_eq!(without_waits(fake.take_executed()), descriptors(slots.pages.into_iter().chain(slots.posted)));
        assert_eq!(unit.try_invalidate(page(8, 1)), Ok(()), "it has made room itself");
    }
}

/// Each command takes two slots. The ring is full of what is done several times over, and is reclaimed by the commands
/// themselves.
#[test]
fn commands_at_once_wrap_with_the_ring() {
    for coherent in [true, false] {
        for turned in [0, 1] {
            let host = Host::new(coherent);
            let fake = FakeUnit::new(&host);
            let unit = bring_up(&fake, &host);
            for _ in 0..turned {
                assert_eq!(unit.submit(&[]).and_then(|ticket| finish(&unit, &host, ticket)), Ok(()));
            }
            fake.take_executed();
            let before = unit.queue_use();
            for pfn in 0..2 * SLOTS as u64 {
                assert_eq!(unit.try_invalidate(page(7, pfn)), Ok(()), "page {pfn} in a ring turned by {turned}");
                assert_eq!(without_waits(fake.take_executed()), [page_descriptor(7, pfn)]);
            }
            let after = unit.queue_use();
            assert_eq!([after.commits - before.commits, after.waits - before.waits], [2 * SLOTS as u64; 2]);
        }
    }
}

/// The status of a command whose wait has not landed is not given to a command that is not to wait.
#[test]
fn a_command_at_once_does_not_overtake_a_wait_that_has_not_landed() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Holding);
    let first = unit.submit(&[page(7, 0)]).expect("room");
    let mut taken = 0;
    let refused = loop {
        match unit.try_invalidate(page(7, 1 + taken)) {
            Err(Ok(Some(ticket))) => {
                // All later submissions land at once.
                fake.land(1);
                assert_eq!(unit.is_done(ticket), Ok(true));
            }
            other => break other,
        }
        taken += 1;
        assert!(taken < SLOTS as u64, "the ring was overrun");
    };
    assert_eq!(refused, Err(Ok(None)));
    assert_eq!(taken, (SLOTS as u64 - 1) / 2 - 1);
    assert_eq!(unit.is_done(first), Ok(false));
    fake.land(0);
    assert_eq!(unit.is_done(first), Ok(true));
    fake.behave(Behaviour::Prompt);
    assert_eq!(unit.try_invalidate(page(7, 9000)), Ok(()));
    assert_eq!(without_waits(fake.take_executed()).len() as u64, 1 + taken + 1, "each was executed once");
}

fn commit() -> impl Strategy<Value = Commit> {
    prop_oneof![
        (0..=BURST_MAX).prop_map(Alone),
        (0..=BURST_MAX).prop_map(Shared),
        (0..4usize).prop_map(Alone),
        (0..4usize).prop_map(Shared),
        Just(AtOnce),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn what_fits_is_taken_and_executed_once(turned in 0..SLOTS, commits in vec(commit(), 1..60)) {
        fill(turned, &commits);
    }
}
