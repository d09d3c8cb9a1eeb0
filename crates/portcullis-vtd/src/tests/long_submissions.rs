//! Submissions of more commands than one piece holds. They are cut into pieces, and if one piece fails, the whole
//! fails.

use super::domains::TABLES;
use super::fake_unit::*;
use super::host::Host;
use super::units::join;
use super::{bring_up, finish, open, page, page_descriptor, without_waits};
use crate::queue::BURST_MAX;
use crate::spec::descriptors::InvalidationDescriptor;
use portcullis::Iova;
use portcullis::iommu::{DomainId, Invalidation, Iommu, QueueError};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of commands: one piece, and two to four, the last piece short or full.
const LENGTHS: [u64; 5] = [64, 65, 128, 129, 200];

const PIECE: u64 = BURST_MAX as u64;

/// Indices of commands at the beginning, in the middle and at the end of a piece.
fn places(length: u64) -> impl Iterator<Item = u64> {
    (0..length).filter(move |place| matches!(place % PIECE, 0 | 31 | 63) || *place == length - 1)
}

/// The index after the last command of the piece that contains `place`.
fn piece_end(place: u64, length: u64) -> u64 {
    ((place / PIECE + 1) * PIECE).min(length)
}

/// Submits `commands` and waits until they are done.
fn execute<I: Iommu>(iommu: &I, host: &Host, commands: &[Invalidation], shared: bool) -> Result<(), QueueError> {
    let ticket = if shared { iommu.submit_shared(commands) } else { iommu.submit(commands) };
    finish(iommu, host, ticket?)
}

/// One unit, or several joined units, as a test sees them.
struct Subject<'t, 'h> {
    /// The units, and the id of the domain on each.
    units: &'t [(&'t FakeUnit<'h>, u16)],
    /// The id of the domain for the submitter.
    domain: u16,
    execute: &'t dyn Fn(&[Invalidation]) -> Result<(), QueueError>,
}

impl Subject<'_, '_> {
    fn pages(&self, pages: impl Iterator<Item = u64>) -> Vec<Invalidation> {
        pages.map(|pfn| page(self.domain, pfn)).collect()
    }

    /// The page-selective commands that unit `index` has executed since the last call.
    fn executed(&self, index: usize) -> Vec<InvalidationDescriptor> {
        without_waits(self.units[index].0.take_executed())
    }

    /// The descriptors that unit `index` should execute for these pages.
    fn expected(&self, index: usize, pages: impl Iterator<Item = u64>) -> Vec<InvalidationDescriptor> {
        pages.map(|pfn| page_descriptor(self.units[index].1, pfn)).collect()
    }
}

/// Runs `test` with one unit and with two joined units, unshared and shared.
fn everywhere(test: impl Fn(&Subject<'_, '_>)) {
    for shared in [false, true] {
        let host = Host::new(false);
        let fakes = [FakeUnit::new(&host), FakeUnit::new(&host)];
        let units = [bring_up(&fakes[0], &host), bring_up(&fakes[1], &host)];
        test(&Subject {
            units: &[(&fakes[0], 7)],
            domain: 7,
            execute: &|commands| execute(&units[0], &host, commands, shared),
        });
        // Unit 1 has handed out one id before.
        open(&units[1], TABLES).expect("an id");
        let both = join(&units, &host);
        let domain = open(&both, TABLES).expect("an id");
        test(&Subject {
            units: &[(&fakes[0], 1), (&fakes[1], 2)],
            domain: domain.0,
            execute: &|commands| execute(&both, &host, commands, shared),
        });
    }
}

#[test]
fn a_long_submission_is_executed_whole_and_in_order() {
    everywhere(|subject| {
        for behaviour in [Behaviour::Prompt, Behaviour::Lagging] {
            subject.units.iter().for_each(|(fake, _)| fake.behave(behaviour));
            for length in LENGTHS {
                assert_eq!((subject.execute)(&subject.pages(0..length)), Ok(()));
                for index in 0..subject.units.len() {
                    assert_eq!(subject.executed(index), subject.expected(index, 0..length), "{length} commands");
                }
            }
        }
    });
}

#[test]
fn a_refused_command_fails_the_submission_whichever_piece_it_is_in() {
    everywhere(|subject| {
        for (index, (fake, id)) in subject.units.iter().enumerate() {
            for (length, refused) in LENGTHS.iter().flat_map(|length| places(*length).map(|place| (*length, place))) {
                fake.with(|state| state.refuse = Some(page_descriptor(*id, refused).encode()));
                let commands = subject.pages(0..length);
                let context = format!("{refused} of {length} refused by unit {index}");
                assert_eq!((subject.execute)(&commands), Err(QueueError::Descriptor), "{context}");
                // The rest of its piece is executed, and the later pieces are not queued.
                let pages = (0..piece_end(refused, length)).filter(|pfn| *pfn != refused);
                assert_eq!(subject.executed(index), subject.expected(index, pages), "{context}");

                fake.with(|state| state.refuse = None);
                assert_eq!((subject.execute)(&commands), Ok(()), "again, and with nothing refused");
                (0..subject.units.len()).for_each(|index| drop(subject.executed(index)));
            }
        }
    });
}

#[test]
fn a_submission_that_gets_stuck_in_any_piece_is_not_done() {
    everywhere(|subject| {
        for (index, (fake, id)) in subject.units.iter().enumerate() {
            for (length, stuck) in LENGTHS.iter().flat_map(|length| places(*length).map(|place| (*length, place))) {
                fake.with(|state| state.stall = Some(page_descriptor(*id, stuck).encode()));
                let end = piece_end(stuck, length);
                // The driver waits for all pieces but the last, and the test waits for that one.
                let limit = if end < length { 1000 } else { 100 };
                let context = format!("unit {index} stuck at {stuck} of {length}");
                assert_eq!((subject.execute)(&subject.pages(0..length)), Err(QueueError::Timeout(limit)), "{context}");
                assert_eq!(subject.executed(index), subject.expected(index, 0..stuck), "{context}");

                fake.with(|state| state.stall = None);
                assert_eq!((subject.execute)(&subject.pages(5000..5001)), Ok(()), "{context}");
                let rest = (stuck..end).chain(5000..5001);
                assert_eq!(subject.executed(index), subject.expected(index, rest), "{context}");
                (0..subject.units.len()).for_each(|index| drop(subject.executed(index)));
            }
        }
    });
}

/// The wait of one piece is dropped because a device does not answer; the waits of the others land.
#[test]
fn a_dropped_wait_fails_the_submission_whichever_piece_it_is_of() {
    for (dropped, shared) in (0..4).flat_map(|piece| [(piece, false), (piece, true)]) {
        let host: &'static Host = Box::leak(Box::new(Host::new(true)));
        let fake: &'static FakeUnit<'static> = Box::leak(Box::new(FakeUnit::new(host)));
        let unit = bring_up(fake, host);
        fake.behave(Behaviour::Holding);
        let pieces = AtomicUsize::new(0);
        host.on_pause(move || {
            let mut kept = 0;
            for _ in 0..fake.with(|state| state.held.len()) {
                if pieces.fetch_add(1, Ordering::Relaxed) == dropped {
                    kept = 1;
                } else {
                    fake.land(kept);
                }
            }
            if kept == 1 {
                fake.time_out();
            }
        });
        let commands: Vec<Invalidation> = (0..200).map(|pfn| page(7, pfn)).collect();
        let result = execute(&unit, host, &commands, shared);
        assert_eq!(result, Err(QueueError::Device), "piece {dropped}");
        let executed = (0..200.min((dropped as u64 + 1) * PIECE)).map(|pfn| page_descriptor(7, pfn));
        assert_eq!(without_waits(fake.take_executed()), executed.collect::<Vec<_>>());
    }
}

#[test]
fn a_misaligned_run_anywhere_is_refused_before_anything_is_queued() {
    let bad = Invalidation::Pages { domain: DomainId(7), first: Iova::new(0x1000), mask: 3, leaf_only: true };
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    for length in [1, 2].into_iter().chain(LENGTHS) {
        for place in places(length) {
            let commands: Vec<_> = (0..length).map(|pfn| if pfn == place { bad } else { page(7, pfn) }).collect();
            for shared in [false, true] {
                assert_eq!(execute(&unit, &host, &commands, shared), Err(QueueError::Unsupported), "{place}");
            }
        }
    }
    assert_eq!(fake.take_executed(), []);
}

#[test]
fn pieces_are_as_large_as_can_be_and_no_larger() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    for (length, shared) in LENGTHS.iter().flat_map(|length| [(*length, false), (*length, true)]) {
        let before = unit.queue_use();
        let commands: Vec<_> = (0..length).map(|pfn| page(7, pfn)).collect();
        assert_eq!(execute(&unit, &host, &commands, shared), Ok(()));
        let after = unit.queue_use();
        let pieces = length.div_ceil(PIECE);
        assert_eq!((after.commits - before.commits, after.waits - before.waits), (pieces, pieces), "{length}");
    }
}
