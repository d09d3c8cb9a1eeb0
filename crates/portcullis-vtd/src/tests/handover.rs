//! Several units change hands: all of them, or none.

use super::fake_unit::*;
use super::foreign::{FOREIGN, LATE, PAGES, REMAPS, THEIR_TAIL, assert_handed_back, assert_untouched, remapping};
use super::host::Host;
use super::{CONFIG, page, page_descriptor, without_waits};
use crate::spec::registers::*;
use crate::{BringUpError, ForeignQueue, Handover, NotSwitched, RegisterError, TakeOver, Unit, Units, switch_all};
use portcullis::iommu::{AttachError, Iommu, QueueError, SourceId};

type Fake<'a> = Handover<&'a FakeUnit<'a>, &'a Host>;

impl AsMut<Self> for Fake<'_> {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

/// Units that remap interrupts for another driver.
fn fakes(host: &Host) -> [FakeUnit<'_>; 3] {
    [(); 3].map(|()| remapping(host))
}

fn prepare<'a>(host: &'a Host, fake: &'a FakeUnit<'a>) -> Fake<'a> {
    Handover::Prepared(Unit::prepare(fake, host, FOREIGN, TakeOver::Never, |_| Ok(())).expect("a sound unit"))
}

fn switch(units: &mut [Fake<'_>]) -> Result<(), NotSwitched> {
    // SAFETY: no test drives a unit by other means after taking it over, and no memory is behind a fake unit.
    unsafe { switch_all(units) }
}

fn hand_back(unit: &mut Fake<'_>) -> Result<(), RegisterError> {
    // SAFETY: as above.
    unsafe { unit.hand_back() }
}

/// The queue of the other driver, if the unit was left.
fn left(unit: &Fake<'_>) -> Option<ForeignQueue> {
    if let Handover::Left(queue) = unit { Some(*queue) } else { None }
}

#[test]
fn all_units_are_taken_and_handed_back() {
    let host = Host::new(true);
    let fakes = fakes(&host);
    let mut units = fakes.each_ref().map(|fake| prepare(&host, fake));
    assert!(units.iter().all(|unit| unit.unit().is_none()));
    host.fake.limit_frames(0);
    switch(&mut units).expect("sound units");
    for fake in &fakes {
        fake.with(|state| assert_eq!(state.status & !global::ROOT_TABLE, REMAPS | global::TRANSLATION));
    }
    // Once more: each is this driver's, and stays so.
    assert_eq!(switch(&mut units), Err(NotSwitched { index: 0, error: BringUpError::Changing }));
    for (unit, fake) in units.iter_mut().zip(&fakes) {
        assert!(unit.unit().is_some());
        hand_back(unit).expect("it stops");
        hand_back(unit).expect("nothing to do");
        assert_eq!(left(unit), Some(ForeignQueue::Restarted));
        assert_handed_back(fake, 0);
    }
    assert_eq!(host.fake.frames_lent(), 0);
}

/// One unit does not answer, at any step of its switch: the unit before it is given back, and the one after it is never
/// touched.
#[test]
fn no_unit_is_taken_if_one_does_not_answer() {
    type Fault = fn(&mut State);
    let no_table: Fault = |state| state.stuck = global::ROOT_TABLE;
    let no_translation: Fault = |state| state.stuck = global::TRANSLATION;
    for (fault, pages_lost) in [(no_table, 0), (no_translation, PAGES)] {
        let host = Host::new(true);
        let fakes = fakes(&host);
        let mut units = fakes.each_ref().map(|fake| prepare(&host, fake));
        fakes[1].with(fault);
        assert_eq!(switch(&mut units), Err(NotSwitched { index: 1, error: LATE.into() }));
        assert_handed_back(&fakes[0], 0);
        assert_handed_back(&fakes[1], 0);
        assert_untouched(&fakes[2], THEIR_TAIL);
        assert_eq!([0, 1].map(|index| left(&units[index])), [Some(ForeignQueue::Restarted); 2]);
        assert!(matches!(units[2], Handover::Prepared(_)));
        hand_back(&mut units[2]).expect("nothing to do");
        assert_eq!(left(&units[2]), Some(ForeignQueue::Untouched));
        assert_eq!((host.fake.frames_lent(), fakes[2].with(|state| state.commands.len())), (pages_lost, 0));
    }

    // It fetches nothing, so that its queue cannot be taken.
    let host = Host::new(true);
    let fakes = fakes(&host);
    let mut units = fakes.each_ref().map(|fake| prepare(&host, fake));
    fakes[1].behave(Behaviour::Silent);
    fakes[1].with(|state| state.tail += 0x10);
    let late = RegisterError::Timeout { offset: IQH, limit_us: CONFIG.wait_us_max };
    assert_eq!(switch(&mut units), Err(NotSwitched { index: 1, error: BringUpError::NotTaken(late) }));
    assert_handed_back(&fakes[0], 0);
    assert_untouched(&fakes[1], THEIR_TAIL + 0x10);
    assert_eq!(left(&units[1]), Some(ForeignQueue::Untouched));
}

/// What could not be given back is known unit by unit.
#[test]
fn a_unit_that_is_not_given_back_is_known() {
    let host = Host::new(true);
    let fakes = fakes(&host);
    let mut units = fakes.each_ref().map(|fake| prepare(&host, fake));
    fakes[2].with(|state| state.dead = global::ROOT_TABLE | global::QUEUED_INVALIDATION);
    assert_eq!(switch(&mut units), Err(NotSwitched { index: 2, error: BringUpError::NotRestored(LATE) }));
    let expected = [ForeignQueue::Restarted, ForeignQueue::Restarted, ForeignQueue::Unknown].map(Some);
    assert_eq!([0, 1, 2].map(|index| left(&units[index])), expected);
    assert_handed_back(&fakes[1], 0);

    // It goes away before it is switched, and the first one after that.
    let fakes = self::fakes(&host);
    let mut units = fakes.each_ref().map(|fake| prepare(&host, fake));
    fakes[1].with(|state| state.gone = true);
    let gone = BringUpError::NotTaken(RegisterError::Gone { offset: GSTS });
    assert_eq!(switch(&mut units), Err(NotSwitched { index: 1, error: gone }));
    assert_eq!([0, 1].map(|index| left(&units[index])), [ForeignQueue::Restarted, ForeignQueue::Untouched].map(Some));
    let mut again = prepare(&host, &fakes[0]);
    switch(core::slice::from_mut(&mut again)).expect("a sound unit");
    assert_eq!(again.foreign_queue(), ForeignQueue::Unknown, "it is ours");
    fakes[0].with(|state| state.gone = true);
    assert!(hand_back(&mut again).is_err());
    assert_eq!(left(&again), Some(ForeignQueue::Unknown));

    // Translation does not go off, and the other driver has its queue all the same: after a hand-over that has failed,
    // and after one that has not.
    for stuck in [false, true] {
        let fake = remapping(&host);
        fake.with(|state| state.undying = global::TRANSLATION);
        if stuck {
            fake.with(|state| {
                state.capability = CAPABILITY.with_plmr(true).0;
                state.protected = protected_memory::ENABLE | protected_memory::ENABLED;
                state.stuck_protected = true;
            });
        }
        let mut unit = prepare(&host, &fake);
        assert_eq!(switch(core::slice::from_mut(&mut unit)).is_err(), stuck);
        if !stuck {
            assert_eq!(hand_back(&mut unit), Err(LATE));
        }
        assert_eq!(left(&unit), Some(ForeignQueue::Restarted));
        assert_handed_back(&fake, global::TRANSLATION);
    }
    let text = NotSwitched { index: 2, error: BringUpError::NotRestored(LATE) }.to_string();
    assert!(text.starts_with("unit 2 of those that were to change hands has not: the unit could not be given back"));
}

/// Two of three units are taken, and the third stays with the other driver: a domain over the two waits for both, and
/// the excluded one sees nothing.
#[test]
fn a_domain_over_shared_units_waits_for_each() {
    let host = Host::new(true);
    let fakes = fakes(&host);
    let mut units = [prepare(&host, &fakes[0]), prepare(&host, &fakes[1])];
    switch(&mut units).expect("sound units");
    let taken = units.each_ref().map(|unit| unit.unit().expect("it was taken"));
    let route = |device: SourceId| Some(usize::from(device.requester() >> 8)).filter(|index| *index < 2);
    let both = Units::new(&taken, &host, route, 1000).expect("two units");
    let domain = super::open(&both, super::domains::TABLES).expect("an id");
    assert_eq!(both.attach(domain, SourceId::new(2, 2, 0)), Err(AttachError::Unsupported));
    fakes.iter().for_each(|fake| drop(fake.take_executed()));

    // Neither unit alone is an answer.
    for late in [0, 1] {
        fakes[late].behave(Behaviour::Holding);
        let ticket = both.submit(&[page(domain.0, 7)]).expect("room");
        assert_eq!(both.is_done(ticket), Ok(false), "unit {late} has not answered");
        // The other driver is not held up by that on the other unit, and its commands are in order with ours.
        let words = super::foreign::interrupt(7).encode();
        taken[1 - late].submit_words(&[words]).expect("the hardware is prompt");
        assert_eq!(taken[late].submit_words(&[words]), Err(QueueError::Timeout(CONFIG.wait_us_max)));
        fakes[late].behave(Behaviour::Prompt);
        fakes[late].land(0);
        assert_eq!(both.is_done(ticket), Ok(true));
        fakes[late].land(0);
        for fake in &fakes[..2] {
            let executed = without_waits(fake.take_executed());
            assert_eq!(executed, [page_descriptor(domain.0, 7), super::foreign::interrupt(7)]);
        }
    }
    assert_untouched(&fakes[2], THEIR_TAIL);
    super::close(&both, domain).expect("it is open");
    for (unit, fake) in units.iter_mut().zip(&fakes) {
        hand_back(unit).expect("it stops");
        assert_handed_back(fake, 0);
    }
}
