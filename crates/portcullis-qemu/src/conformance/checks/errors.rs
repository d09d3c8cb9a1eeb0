//! Queues that refuse or do not answer: no buffer is returned (S11), and other requests continue. Also faulting
//! devices (S12).

use crate::conformance::driven::{Driven, gone, page};
use crate::conformance::rig::{A, B, C};
use crate::conformance::{Check, Checked, Faults, Seen, Stage, agree, write_refused};
use portcullis::iommu::AttachError;
use portcullis::{
    Access, CommitError, INVALIDATION_TIMEOUT_US, Invalidation, Iommu, Iova, IovaRange, MapError, PAGE_SIZE,
    Protection, QueueError, RawUnmapError,
};
use portcullis_designs::{Magazine, Stock};
use portcullis_vtd::spec::faults::FaultReason;

const BOTH: Access = Access::DeviceReadsAndWrites;

pub(super) const CHECKS: &[Check] = &[
    Check::driven("refused-invalidation-returns-no-buffer", refused),
    Check::driven("refused-invalidation-poisons-its-domain", poisoned),
    Check::driven("refused-invalidation-spares-other-domains", spares_others),
    Check::driven("refused-submission-spares-the-next", spares_the_next),
    Check::driven("refused-submission-does-the-rest", does_the_rest),
    Check::driven("unanswered-invalidation-returns-no-buffer", unanswered),
    Check::driven("unanswered-detach-is-an-error", unanswered_detach),
    Check::driven("unanswered-queue-may-answer-later", answers_later),
    Check::driven("misaligned-invalidation-is-refused", misaligned),
    Check::driven("thousand-unmaps-go-round-the-queue", goes_round),
    Check::driven("two-hundred-commands-at-once", many_at_once),
    Check::driven("faults-are-told", told),
    Check::driven("lost-faults-are-told", lost),
    Check::driven("fault-storm-is-bounded", storm),
];

fn failed(error: QueueError) -> Result<(), RawUnmapError> {
    Err(RawUnmapError::Commit(CommitError(error)))
}

fn refused(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "mapped");
    driven.spoil_next();
    agree!(space.domain.unmap_raw(iova, PAGE_SIZE), failed(QueueError::Descriptor), "an unmap that the unit refuses");
    // This is why the buffer must not be returned.
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "the device still reaches it");
    Ok(())
}

fn poisoned(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let [lost, other] = [space.map(page(0), PAGE_SIZE, BOTH)?, space.map(page(1), PAGE_SIZE, BOTH)?];
    agree!(driven.write(A, other, page(1))?, Seen::Landed, "another mapping");
    driven.spoil_next();
    agree!(space.domain.unmap_raw(lost, PAGE_SIZE), failed(QueueError::Descriptor), "an unmap that the unit refuses");
    agree!(space.try_map(page(2), PAGE_SIZE, BOTH), Err(MapError::Poisoned.into()), "a map");
    space.domain.unmap_raw(other, PAGE_SIZE)?;
    agree!(driven.write(A, other, page(1))?, gone(other), "what is unmapped later is revoked");
    Ok(())
}

fn spares_others(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (one, other) = (driven.strict::<Magazine>()?, driven.open::<Stock>(Protection::Strict)?);
    other.domain.attach(C)?;
    let lost = one.map(page(0), PAGE_SIZE, BOTH)?;
    driven.spoil_next();
    agree!(one.domain.unmap_raw(lost, PAGE_SIZE), failed(QueueError::Descriptor), "an unmap that the unit refuses");
    for round in 0..3 {
        let iova = other.map(page(1), PAGE_SIZE, BOTH)?;
        agree!(driven.write(C, iova, page(1))?, Seen::Landed, "round {round}");
        other.domain.unmap_raw(iova, PAGE_SIZE)?;
        let expected = write_refused(C, iova.as_u64(), FaultReason::NoWrite);
        agree!(driven.write(C, iova, page(1))?, expected, "round {round}, unmapped");
    }
    Ok(())
}

/// The submission behind a refused one is executed, and each owner learns only of its own result.
fn spares_the_next(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    driven.spoil_next();
    let bad = driven.unit.submit(&[Invalidation::Global])?;
    let good = driven.unit.submit(&[Invalidation::Domain(space.domain.id())])?;
    agree!(finish(&driven, good), Ok(()), "the next submission");
    agree!(driven.unit.is_done(bad), Err(QueueError::Descriptor), "the refused one");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a DMA");
    Ok(())
}

/// Waits for a submission.
fn finish(driven: &Driven, ticket: portcullis_vtd::Ticket) -> Result<(), QueueError> {
    for _ in 0..100_000 {
        if driven.unit.is_done(ticket)? {
            return Ok(());
        }
        driven.rig().pause();
    }
    Err(QueueError::Timeout(0))
}

/// Only the refused descriptor is not executed.
fn does_the_rest(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    // The page between them stays mapped, because two adjacent pages would be one command.
    let iovas = [0, 1, 2].map(|index| space.map(page(index), PAGE_SIZE, BOTH));
    let [first, _, second] = [iovas[0].clone()?, iovas[1].clone()?, iovas[2].clone()?];
    agree!(driven.write(A, first, page(0))?, Seen::Landed, "one page");
    agree!(driven.write(A, second, page(2))?, Seen::Landed, "the other");
    driven.commands();
    let mut batch = space.domain.raw_batch();
    for iova in [first, second] {
        batch.unmap(IovaRange::covering(iova, PAGE_SIZE).expect("a page"))?;
    }
    driven.spoil_next();
    agree!(batch.commit(), Err(CommitError(QueueError::Descriptor)), "a batch, half of which is refused");
    agree!(driven.commands().len(), 2, "commands");
    // The failure is reported before the unit is done with the rest.
    (0..100).for_each(|_| driven.rig().pause());
    agree!(driven.write(A, first, page(0))?, Seen::Landed, "the page of the refused command");
    agree!(driven.write(A, second, page(2))?, gone(second), "the page of the command behind");
    Ok(())
}

fn unanswered(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "mapped");
    driven.stall(true);
    let expected = failed(QueueError::Timeout(INVALIDATION_TIMEOUT_US));
    agree!(space.domain.unmap_raw(iova, PAGE_SIZE), expected, "an unmap that the unit does not answer");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "the device still reaches the page");
    agree!(space.try_map(page(1), PAGE_SIZE, BOTH), Err(MapError::Poisoned.into()), "a map");
    driven.stall(false);
    Ok(())
}

fn unanswered_detach(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    driven.stall(true);
    let detached = space.domain.detach(A);
    agree!(matches!(detached, Err(AttachError::Queue(QueueError::Timeout(_)))), true, "a detach: {detached:?}");
    driven.stall(false);
    // The next caller tells the queue of the descriptors that it has not seen, and does not wait until it is through.
    for _ in 0..100 {
        match space.domain.detach(A) {
            Err(AttachError::Queue(QueueError::Unresponsive)) => driven.rig().pause(),
            answered => {
                answered?;
                break;
            }
        }
    }
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    let seen = driven.write(A, iova, page(0))?;
    agree!(seen, write_refused(A, iova.as_u64(), FaultReason::ContextNotPresent), "detached at last");
    Ok(())
}

/// A ticket that timed out is done once the unit has reached it, and its invalidation has happened.
fn answers_later(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    driven.stall(true);
    let late = driven.unit.submit(&[Invalidation::Domain(space.domain.id())])?;
    agree!(driven.unit.is_done(late), Ok(false), "the unit was not told");
    driven.stall(false);
    let next = driven.unit.submit(&[Invalidation::Global])?;
    agree!(finish(&driven, next), Ok(()), "the next submission");
    agree!(driven.unit.is_done(late), Ok(true), "the late one");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a DMA");
    Ok(())
}

fn misaligned(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let before = driven.tails();
    let command = Invalidation::Pages { domain: space.domain.id(), first: Iova::new(0x5000), mask: 1, leaf_only: true };
    agree!(driven.unit.submit(&[command]), Err(QueueError::Unsupported), "two pages from an odd one on");
    agree!(driven.tails(), before, "submissions");
    Ok(())
}

fn goes_round(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    for round in 0..1000 {
        let iova = space.map(page(round % 64), PAGE_SIZE, BOTH)?;
        // A DMA only now and then, because each costs more than everything else here.
        if round % 100 == 99 {
            agree!(driven.write(A, iova, page(round % 64))?, Seen::Landed, "round {round}");
        }
        space.domain.unmap_raw(iova, PAGE_SIZE)?;
        if round % 100 == 99 {
            agree!(driven.write(A, iova, page(round % 64))?, gone(iova), "round {round}, unmapped");
        }
    }
    Ok(())
}

/// More commands than one submission holds, nearly a whole ring.
fn many_at_once(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let mut iovas = Vec::new();
    for index in 0..8 {
        iovas.push(space.map(page(index), PAGE_SIZE, BOTH)?);
        agree!(driven.write(A, iovas[index as usize], page(index))?, Seen::Landed, "page {index}");
    }
    let domain = space.domain.id();
    let commands: Vec<_> = (0..200)
        .map(|index| Invalidation::Pages { domain, first: iovas[index % 8], mask: 0, leaf_only: true })
        .collect();
    driven.commands();
    let ticket = driven.unit.submit(&commands)?;
    agree!(finish(&driven, ticket), Ok(()), "the submission");
    agree!(driven.commands().len(), 200, "descriptors that the unit got");
    Ok(())
}

fn told(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, Access::DeviceReads)?;
    agree!(driven.write(A, iova, page(0))?, gone(iova), "the fault");
    agree!(driven.faults(), Faults::default(), "it is told once");
    Ok(())
}

fn lost(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let _space = driven.strict::<Magazine>()?;
    for device in [B, C] {
        driven.attempt(device, Iova::new(0x5000))?;
    }
    let faults = driven.faults();
    let sources: Vec<_> = faults.records.iter().map(|record| record.source).collect();
    agree!((sources, faults.lost), (vec![B], true), "one is recorded, one is lost");
    driven.attempt(C, Iova::new(0x5000))?;
    let faults = driven.faults();
    agree!((faults.records.len(), faults.lost), (1, false), "the next is recorded again");
    Ok(())
}

/// However many faults there are, one call takes at most as many as there are registers, and well-behaved devices
/// continue (S12).
fn storm(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    for round in 0..20 {
        for fault in 0..10 {
            driven.attempt(B, Iova::new(0x1_0000 + fault * PAGE_SIZE))?;
        }
        let faults = driven.faults();
        agree!((faults.records.len(), faults.lost), (1, false), "round {round}");
        agree!(driven.write(A, iova, page(0))?, Seen::Landed, "another device, in round {round}");
    }
    agree!(driven.faults(), Faults::default(), "nothing is left");
    Ok(())
}
