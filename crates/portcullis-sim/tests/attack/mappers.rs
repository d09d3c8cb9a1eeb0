//! Any design whose mapper has one flaw.

use portcullis::RawUnmapError;
use portcullis::invalidation::{Revocation, Runs};
use portcullis::mapper::{Design, DesignInfo, DomainSetup, Info, Mapper, Usage};
use portcullis::proof::{Committed, Proof};
use portcullis::{
    Access, CommitError, Departure, InFlight, Iommu, IovaRange, NewDomainError, Platform, RawMapError, Request, Space,
    UnmapError, WhenFull,
};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::Mutex;

/// The flaws are numbers, because they are part of a type.
pub(crate) const NONE: u8 = 0;
/// Every mapping may be read and written.
pub(crate) const WIDENS_RIGHTS: u8 = 1;
/// A failed commit is reported as successful.
pub(crate) const HIDES_ERRORS: u8 = 2;
/// Unmaps that wait for a flush wait until a queue is full.
pub(crate) const FORGETS_ITS_TIMER: u8 = 3;
/// Mappings for reads may be written too.
pub(crate) const LETS_READERS_WRITE: u8 = 4;
/// A single unmap is committed by the next one. Batches are sound.
pub(crate) const COMMITS_SINGLES_LATE: u8 = 5;

/// A batch counts as committed when it is submitted.
pub(crate) const HANDS_ON_AT_SUBMIT: u8 = 6;
/// The wait for a batch in flight looks once, and counts it as committed.
pub(crate) const LOOKS_IN_PLACE_OF_A_WAIT: u8 = 7;

/// Design `B` with flaw number `FLAW`.
pub(crate) struct Mapping<B, const FLAW: u8>(PhantomData<B>);

impl<B: DesignInfo, const FLAW: u8> DesignInfo for Mapping<B, FLAW> {
    const INFO: Info = B::INFO;
}

// SAFETY: its parts are sound, except for the planted flaw. Only a test's own memory is behind it.
unsafe impl<P: Platform, I: Iommu, B: Design<P, I>, const FLAW: u8> Design<P, I> for Mapping<B, FLAW> {
    type Mapper = FlawedMapper<B::Mapper, FLAW>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        Ok(to.write(FlawedMapper(unsafe { B::build(setup) }?, Mutex::default())))
    }
}

/// The mapper, and the single unmap that is not committed yet.
pub(crate) struct FlawedMapper<M, const FLAW: u8>(M, Mutex<Option<Revocation>>);

// SAFETY: it forwards to a sound mapper, except for the planted flaw. Only a test's own memory is behind it.
unsafe impl<M: Mapper, const FLAW: u8> Mapper for FlawedMapper<M, FLAW> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        if FLAW == WIDENS_RIGHTS || FLAW == LETS_READERS_WRITE && request.access() == Access::DeviceReads {
            // SAFETY: the memory is the model's.
            return unsafe { self.0.map(&Request::new(request.segments(), Access::DeviceReadsAndWrites)?) };
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.map(request) }
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        self.0.unmap(range, out)
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        match self.0.commit(revocation) {
            Err(_) if FLAW == HIDES_ERRORS => Ok(Committed::Deferred),
            committed => committed,
        }
    }

    fn submit(&self, revocation: &mut Runs, when_full: WhenFull) -> Result<Departure, CommitError> {
        let departure = self.0.submit(revocation, when_full)?;
        if FLAW == HANDS_ON_AT_SUBMIT {
            revocation.forget();
            // SAFETY: none: this is the flaw. The memory is the model's.
            return Ok(Departure::Over(Committed::Proven(unsafe { Proof::trusted() })));
        }
        Ok(departure)
    }

    unsafe fn take_back(
        &self,
        revocation: &mut Runs,
        in_flight: &InFlight,
        waits: bool,
    ) -> Result<Option<Committed>, CommitError> {
        // SAFETY: the caller's promise, passed on.
        match unsafe { self.0.take_back(revocation, in_flight, waits && FLAW != LOOKS_IN_PLACE_OF_A_WAIT) } {
            Err(_) if FLAW == HIDES_ERRORS => Ok(Some(Committed::Deferred)),
            Ok(None) if FLAW == LOOKS_IN_PLACE_OF_A_WAIT => {
                revocation.forget();
                // SAFETY: as above.
                Ok(Some(Committed::Proven(unsafe { Proof::trusted() })))
            }
            taken => taken,
        }
    }

    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        if FLAW != COMMITS_SINGLES_LATE {
            return match self.0.unmap_now(range) {
                Err(RawUnmapError::Commit(_)) if FLAW == HIDES_ERRORS => Ok(Committed::Deferred),
                unmapped => unmapped,
            };
        }
        let mut revocation = Revocation::new();
        self.0.unmap(range, &mut revocation)?;
        // The lock is not held during a call of the protection layer: another virtual core may run there.
        let before = self.1.lock().expect("no panic").replace(revocation);
        before.map_or(Ok(()), |mut before| self.0.commit(&mut before).map(drop))?;
        Ok(Committed::Deferred)
    }

    fn tick(&self) -> Result<(), CommitError> {
        if FLAW == FORGETS_ITS_TIMER { Ok(()) } else { self.0.tick() }
    }

    fn due_us(&self) -> Option<u64> {
        if FLAW == FORGETS_ITS_TIMER { None } else { self.0.due_us() }
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }

    fn space(&self) -> &dyn Space {
        self.0.space()
    }
}
