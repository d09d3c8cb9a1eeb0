//! A commit in two halves: submit the invalidation, go on, take the buffers back.
//!
//! Most of a strict commit is the wait for the hardware. A driver that has other work submits its batch, refills its
//! ring and sends, and waits afterwards. No published system does this; ATC'15 and Fast & Safe wait at once.
//!
//! Between the halves nothing has come back: no buffer, no address and no table page. The device may reach the buffers
//! until the second half says otherwise. Batches may be waited for in any order, on any CPU.

use super::mapping::count_lost;
use super::ring::{Descriptor, DescriptorFailure, Ring};
use super::{Batch, DmaBuffer, Domain, DomainRef, GivenBack, RawBatch};
use crate::error::CommitError;
use crate::invalidation::{BATCH_MAX, Departure, InFlight, Revocation, Runs, WhenFull};
use crate::iommu::QueueError;
use crate::mapper::Mapper;
use crate::proof::{Committed, Proof};
use crate::sub_page::SubPage;
use arrayvec::ArrayVec;
use core::mem::{self, ManuallyDrop};

/// Why a batch was not submitted.
#[derive(Debug)]
pub enum SubmitFailure<U> {
    /// It would have had to wait, for room in the hardware's queue or because this CPU has
    /// [`IN_FLIGHT_MAX`](crate::IN_FLIGHT_MAX) batches in flight. Here it is, as it was.
    Full(U),
    /// The invalidation failed: the buffers are lost for good (S11).
    Commit(CommitError),
}

/// A [`RawBatch`] or a [`Batch`], or a borrowed one.
pub trait Unmaps: sealed::Unmaps {}

mod sealed {
    use super::{Domain, Mapper, Proof, Revocation};

    pub trait Unmaps {
        type Mapper: Mapper + ?Sized;

        fn parts(&mut self) -> (&Domain<Self::Mapper>, &mut Revocation);

        /// Whether there is nothing to prove.
        fn is_empty(&self) -> bool;

        /// Frees the buffers, which the device has lost.
        fn free(&mut self, proof: &Proof);

        /// The commit has failed: no buffer comes back, now or by a later commit (S11).
        fn lose(&mut self);

        /// The same if the error reaches no caller: counts what is lost, given the number of unmaps.
        fn lose_unheard(&mut self, unmaps: usize);
    }
}

impl<U: sealed::Unmaps> Unmaps for U {}

impl<H: DomainRef> sealed::Unmaps for RawBatch<H> {
    type Mapper = H::Mapper;

    #[inline(always)]
    fn parts(&mut self) -> (&Domain<H::Mapper>, &mut Revocation) {
        (&self.domain, &mut self.revocation)
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.revocation.is_empty()
    }

    fn free(&mut self, _: &Proof) {}

    fn lose(&mut self) {}

    fn lose_unheard(&mut self, unmaps: usize) {
        count_lost(unmaps);
    }
}

impl<H: DomainRef, B: DmaBuffer> sealed::Unmaps for Batch<H, B> {
    type Mapper = H::Mapper;

    #[inline(always)]
    fn parts(&mut self) -> (&Domain<H::Mapper>, &mut Revocation) {
        (&self.domain, &mut self.revocation)
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.buffers.is_empty() && self.revocation.is_empty()
    }

    fn free(&mut self, proof: &Proof) {
        self.buffers.drain(..).for_each(|lent| drop(lent.give_back(proof)));
    }

    fn lose(&mut self) {
        // Each buffer counts itself.
        self.buffers.clear();
    }

    fn lose_unheard(&mut self, _: usize) {
        self.lose();
    }
}

impl<U: sealed::Unmaps> sealed::Unmaps for &mut U {
    type Mapper = U::Mapper;

    #[inline(always)]
    fn parts(&mut self) -> (&Domain<U::Mapper>, &mut Revocation) {
        (**self).parts()
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        (**self).is_empty()
    }

    fn free(&mut self, proof: &Proof) {
        (**self).free(proof);
    }

    fn lose(&mut self) {
        (**self).lose();
    }

    fn lose_unheard(&mut self, unmaps: usize) {
        (**self).lose_unheard(unmaps);
    }
}

impl<M: Mapper + ?Sized> Domain<M> {
    fn submit(&self, revocation: &mut Runs, when_full: WhenFull) -> Result<Departure, CommitError> {
        match self.sub_page {
            SubPage::Bounce => self.submit_bounced(revocation, when_full),
            _ => self.mapper.submit(revocation, when_full),
        }
    }

    /// # Safety
    /// That of [`Mapper::take_back`].
    unsafe fn take_back(
        &self,
        revocation: &mut Runs,
        in_flight: &InFlight,
        waits: bool,
    ) -> Result<Option<Committed>, CommitError> {
        // SAFETY: the caller's promise, passed on.
        let taken = unsafe { self.mapper.take_back(revocation, in_flight, waits) };
        match self.sub_page {
            SubPage::Bounce => self.settle_if_over(revocation, taken),
            _ => taken,
        }
    }
}

/// How far a submitted batch is.
#[derive(Debug)]
enum Stage {
    InFlight(InFlight),
    /// The result, and the number of unmaps: they are lost if it is an error, and counted if no caller learns of it.
    Over(Result<Committed, CommitError>, usize),
    /// Its result was taken, or a panic has come in between.
    Ended,
}

/// A batch that was submitted. Its buffers, and those of a borrowed batch, belong to the device until
/// [`wait`](Submitted::wait) gives them back. Batches may be waited for in any order, on any CPU.
///
/// Dropping it waits for it. If its commit fails then, the domain is poisoned, and its buffers or raw unmaps are
/// counted in [`lost_buffers`](super::lost_buffers). Forgetting it leaks its addresses and its buffers; a borrowed
/// batch may be committed again.
///
/// # Examples
/// ```
/// use portcullis::designs::Portcullis;
/// use portcullis::domain::fake::FakeBuffer;
/// use portcullis::iommu::fake::FakeIommu;
/// use portcullis::platform::fake::FakeHost;
/// use portcullis::{Access, Open, Protection};
///
/// let host = FakeHost::default();
/// let iommu = FakeIommu::new(&host);
/// let domain = Portcullis::open(&iommu, &host, Protection::Strict)?;
/// let mapping = domain.map(FakeBuffer::new(1), Access::DeviceWrites)?;
/// let mut batch = domain.batch();
/// batch.unmap(mapping)?;
/// let submitted = batch.submit()?;
/// // ... refill the ring, and send, while the hardware works ...
/// let buffers = submitted.wait()?; // the device cannot reach them any more
/// assert_eq!(buffers.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A driver that polls, and waits only if it has no buffer left:
/// ```
/// # use portcullis::designs::Portcullis;
/// # use portcullis::domain::fake::FakeBuffer;
/// # use portcullis::domain::{Batch, Mapping, Submitted};
/// # use portcullis::iommu::fake::{Behaviour, FakeIommu};
/// # use portcullis::platform::fake::FakeHost;
/// # use portcullis::invalidation::BATCH_MAX;
/// # use portcullis::{Access, DomainOf, Open, Protection};
/// # use std::collections::VecDeque;
/// # use std::iter;
/// # use std::sync::Arc;
/// # type Buffer = FakeBuffer;
/// # type Owner = Arc<DomainOf<Portcullis, &'static FakeHost, &'static FakeIommu<'static>>>;
/// # /// A ring whose device fills a buffer at each look.
/// # #[derive(Default)]
/// # struct Ring(VecDeque<Mapping<Buffer>>);
/// # impl Ring {
/// #     fn take_done(&mut self) -> Option<Mapping<Buffer>> { (self.0.len() > 8).then(|| self.0.pop_front())? }
/// #     fn has_room(&self) -> bool { self.0.len() < 16 }
/// #     fn post(&mut self, mapping: Mapping<Buffer>) { self.0.push_back(mapping) }
/// # }
/// struct Driver {
///     domain: Owner, // an `Arc` of the domain
///     ring: Ring,
///     spare: Vec<Buffer>,
///     in_flight: Option<Submitted<Batch<Owner, Buffer>>>,
/// }
///
/// impl Driver {
///     fn poll(&mut self) -> Result<(), Box<dyn std::error::Error>> {
///         // What an earlier poll has submitted, if the hardware is done with it, or if no buffer is left.
///         if let Some(submitted) = &mut self.in_flight
///             && (submitted.is_done() || self.spare.is_empty())
///             && let Some(submitted) = self.in_flight.take()
///         {
///             self.spare.extend(submitted.wait()?); // the device cannot reach them any more
///         }
///         // One batch at a time. What the device is done with meanwhile stays in the ring.
///         if self.in_flight.is_none() {
///             let mut batch = Batch::new(self.domain.clone());
///             for mapping in iter::from_fn(|| self.ring.take_done()).take(BATCH_MAX) {
///                 batch.unmap(mapping)?;
///             }
///             self.in_flight = Some(batch.submit()?);
///         }
///         // While the hardware invalidates.
///         while self.ring.has_room() && let Some(buffer) = self.spare.pop() {
///             self.ring.post(self.domain.map(buffer, Access::DeviceWrites)?);
///         }
///         Ok(())
///     }
/// }
/// # let host: &FakeHost = Box::leak(Box::default());
/// # let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
/// # let domain = Arc::new(Portcullis::open(iommu, host, Protection::Strict)?);
/// # iommu.behave(Behaviour::Slow);
/// # let spare = (0..32).map(|_| FakeBuffer::new(1)).collect();
/// # let mut driver = Driver { domain: domain.clone(), ring: Ring::default(), spare, in_flight: None };
/// # let mut went_on = 0;
/// # for _ in 0..50 {
/// #     let before_us = portcullis::Platform::now_us(host);
/// #     driver.poll()?;
/// #     let has_waited = portcullis::Platform::now_us(host) > before_us;
/// #     went_on += u32::from(!has_waited && domain.usage().batches_in_flight == 1);
/// #     host.advance_us(1);
/// # }
/// # assert!(went_on > 10, "{went_on} polls");
/// # driver.spare.extend(driver.in_flight.take().unwrap().wait()?);
/// # assert_eq!(driver.spare.len() + driver.ring.0.len(), 32, "no buffer is lost");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "its buffers come back from `wait`"]
pub struct Submitted<U: Unmaps> {
    stage: Stage,
    batch: U,
}

impl<U: Unmaps> Submitted<U> {
    #[inline(always)]
    fn new(mut batch: U, when_full: WhenFull) -> Result<Self, SubmitFailure<U>> {
        let is_empty = batch.is_empty();
        let (domain, revocation) = batch.parts();
        let departure = match is_empty {
            true => Ok(Departure::Over(Committed::Proven(Proof::never_visible()))),
            false => domain.submit(revocation, when_full),
        };
        let stage = match departure {
            Ok(Departure::InFlight(in_flight)) => Stage::InFlight(in_flight),
            Ok(Departure::Over(committed)) => Stage::Over(Ok(committed), 0),
            Ok(Departure::Full) => return Err(SubmitFailure::Full(batch)),
            Err(error) => {
                batch.lose();
                return Err(SubmitFailure::Commit(error));
            }
        };
        Ok(Self { stage, batch })
    }

    #[inline(always)]
    fn new_or_wait(batch: U) -> Result<Self, CommitError> {
        Self::new(batch, WhenFull::Wait).map_err(|failure| match failure {
            SubmitFailure::Commit(error) => error,
            SubmitFailure::Full(_) => unreachable!("it has waited"),
        })
    }

    /// Whether [`wait`](Submitted::wait) will return at once. If the hardware has not answered for longer than the
    /// time limit of a wait, this waits in its place.
    #[inline]
    pub fn is_done(&mut self) -> bool {
        if let Stage::InFlight(_) = self.stage {
            let unmaps = self.batch.parts().1.unmaps();
            let Some(over) = self.take_back(false) else { return false };
            self.stage = Stage::Over(over, unmaps);
        }
        true
    }

    /// Looks, or waits. `None` if it is not over.
    #[inline(always)]
    fn take_back(&mut self, waits: bool) -> Option<Result<Committed, CommitError>> {
        // Taken out, so that a batch is not taken back again after a panic. What the panic has left, the drop or the
        // next commit of the batch finds.
        match mem::replace(&mut self.stage, Stage::Ended) {
            Stage::InFlight(in_flight) => {
                let (domain, revocation) = self.batch.parts();
                // SAFETY: the batch that was submitted: only this value has access to it, so it has not changed. Its
                // stage is in flight, so it is not over.
                let taken = unsafe { domain.take_back(revocation, &in_flight, waits) }.transpose();
                match &taken {
                    None => self.stage = Stage::InFlight(in_flight),
                    Some(Ok(_)) => {}
                    // At once: the next commit of a borrowed batch must not give these buffers back.
                    Some(Err(_)) => self.batch.lose(),
                }
                taken
            }
            Stage::Over(over, _) => Some(over),
            Stage::Ended => Some(Err(CommitError(QueueError::Panicked))),
        }
    }

    /// Waits, and returns the result, once.
    #[inline(always)]
    fn result(&mut self) -> Result<Committed, CommitError> {
        // A mapper that does not wait has no proof.
        self.take_back(true).unwrap_or(Err(CommitError(QueueError::Unproven)))
    }
}

impl<U: Unmaps> Drop for Submitted<U> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Ended) {
            self.end();
        }
    }
}

impl<U: Unmaps> Submitted<U> {
    /// Ends one that was not waited for.
    #[cold]
    #[inline(never)]
    fn end(&mut self) {
        let unmaps = match self.stage {
            Stage::Over(_, unmaps) => unmaps,
            Stage::InFlight(_) | Stage::Ended => self.batch.parts().1.unmaps(),
        };
        match self.result() {
            Ok(Committed::Proven(proof)) => self.batch.free(&proof),
            Ok(Committed::Deferred) => self.batch.lose(),
            Err(_) => self.batch.lose_unheard(unmaps),
        }
    }
}

impl<H: DomainRef> RawBatch<H> {
    /// Submits the batch, and does not wait until it is done. It may wait for room in the hardware's queue.
    ///
    /// It is done at once under deferred protection, under designs whose commits are more than one submission, if it
    /// has placed mappings or mappings that others share, and if this CPU has
    /// [`IN_FLIGHT_MAX`](crate::IN_FLIGHT_MAX) batches in flight.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    pub fn submit(self) -> Result<Submitted<Self>, CommitError> {
        Submitted::new_or_wait(self)
    }

    /// Submits the batch as [`submit`](RawBatch::submit) does, in its place. It is empty when the wait has returned.
    ///
    /// # Errors
    /// Those of [`submit`](RawBatch::submit).
    #[inline]
    pub fn submit_so_far(&mut self) -> Result<Submitted<&mut Self>, CommitError> {
        Submitted::new_or_wait(self)
    }

    /// Submits the batch as [`submit`](RawBatch::submit) does, unless that would have to wait for room. What cannot be
    /// in flight is still done at once. An IOMMU that never submits without waiting
    /// ([`Iommu::try_submit_shared`](crate::Iommu::try_submit_shared)) refuses everything else.
    ///
    /// # Errors
    /// A [`SubmitFailure`].
    #[expect(clippy::result_large_err, reason = "the batch itself, which is not boxed in a kernel")]
    pub fn try_submit(self) -> Result<Submitted<Self>, SubmitFailure<Self>> {
        Submitted::new(self, WhenFull::Refuse)
    }
}

impl<H: DomainRef> Submitted<RawBatch<H>> {
    /// Waits until the batch is committed. When this returns, its buffers belong to the driver again.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    pub fn wait(mut self) -> Result<(), CommitError> {
        self.result().map(drop)
    }
}

impl<H: DomainRef> Submitted<&mut RawBatch<H>> {
    /// Waits as [`Submitted::wait`] of the batch itself does.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    #[inline]
    pub fn wait(mut self) -> Result<(), CommitError> {
        self.result().map(drop)
    }
}

impl<H: DomainRef, B: DmaBuffer> Batch<H, B> {
    /// Submits the batch as [`RawBatch::submit`] does. The buffers stay with the device until
    /// [`wait`](Submitted::wait) gives them back.
    ///
    /// # Errors
    /// [`CommitError`]: the buffers are lost for good (S11).
    pub fn submit(self) -> Result<Submitted<Self>, CommitError> {
        Submitted::new_or_wait(self)
    }

    /// Submits the batch as [`submit`](Batch::submit) does, in its place, and leaves it empty for further use when its
    /// buffers were given back.
    ///
    /// # Errors
    /// Those of [`submit`](Batch::submit).
    #[inline]
    pub fn submit_so_far(&mut self) -> Result<Submitted<&mut Self>, CommitError> {
        Submitted::new_or_wait(self)
    }

    /// Submits the batch as [`RawBatch::try_submit`] does.
    ///
    /// # Errors
    /// A [`SubmitFailure`].
    #[expect(clippy::result_large_err, reason = "the batch itself, which is not boxed in a kernel")]
    pub fn try_submit(self) -> Result<Submitted<Self>, SubmitFailure<Self>> {
        Submitted::new(self, WhenFull::Refuse)
    }
}

/// The proof for the buffers of a batch. After an error none of them comes back.
#[inline(always)]
fn proof_of<U: Unmaps>(submitted: &mut Submitted<U>) -> Result<Proof, CommitError> {
    let error = match submitted.result() {
        Ok(Committed::Proven(proof)) => return Ok(proof),
        Ok(Committed::Deferred) => CommitError(QueueError::Unproven),
        Err(error) => error,
    };
    submitted.batch.lose();
    Err(error)
}

impl<H: DomainRef, B: DmaBuffer> Submitted<Batch<H, B>> {
    /// Waits until the batch is committed, and gives the buffers back in the order of their unmaps.
    ///
    /// # Errors
    /// [`CommitError`]: the buffers are lost for good (S11).
    pub fn wait(mut self) -> Result<ArrayVec<B, BATCH_MAX>, CommitError> {
        let proof = proof_of(&mut self)?;
        Ok(self.batch.buffers.drain(..).map(|lent| lent.give_back(&proof)).collect())
    }
}

impl<'b, H: DomainRef, B: DmaBuffer> Submitted<&'b mut Batch<H, B>> {
    /// Waits until the batch is committed, and gives the buffers back one by one, in the order of their unmaps.
    ///
    /// # Errors
    /// [`CommitError`]: the buffers are lost for good (S11).
    #[inline]
    pub fn wait(mut self) -> Result<GivenBack<'b, B>, CommitError> {
        let proof = proof_of(&mut self)?;
        let ended = ManuallyDrop::new(self);
        // SAFETY: the reference is read once, because `ended` is not dropped. It has ended, so its drop would do
        // nothing.
        let batch: &'b mut Batch<H, B> = unsafe { core::ptr::read(&raw const ended.batch) };
        Ok(GivenBack { buffers: batch.buffers.drain(..), proof })
    }
}

/// The buffers of a descriptor of a [`Ring`], submitted.
pub type SubmittedDescriptor<'r, H, B> = Submitted<Batch<&'r Domain<<H as DomainRef>::Mapper>, B>>;

impl<H: DomainRef> Ring<H> {
    /// Unmaps all buffers of a descriptor and submits their invalidation: the first half of
    /// [`unmap`](Ring::unmap). If some of its unmaps are refused, the others are committed at once.
    ///
    /// # Errors
    /// Those of [`unmap`](Ring::unmap).
    pub fn submit<B: DmaBuffer>(
        &self,
        descriptor: Descriptor<B>,
    ) -> Result<SubmittedDescriptor<'_, H, B>, DescriptorFailure<B>> {
        self.batch_of(descriptor)?.submit().map_err(DescriptorFailure::Commit)
    }
}
