//! Batches that were submitted and are not known to be done.
//!
//! A batch in flight is a number: that of a place of its CPU, where the ticket of its submission lies. So the value
//! that a driver holds does not depend on the IOMMU, whose type may be erased ([`DynDomain`](crate::DynDomain)).

use crate::error::NoMemory;
use crate::iommu::Iommu;
use crate::platform::memory::try_slice;
use crate::platform::{Context, CpuHint, Padded, Platform, index_of};
use crate::proof::{Committed, Proof};
use crate::space::AddressSpace;
use crate::submission::limit_us;
use crate::sync::{AtomicU32, Ordering};
use alloc::boxed::Box;
use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;

/// The most batches of each CPU that may be in flight in a domain.
pub const IN_FLIGHT_MAX: usize = 16;

/// What a submission does if it would have to wait: for room in the queue of the hardware, or for one of the
/// [`IN_FLIGHT_MAX`] places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenFull {
    /// It waits: for room, or until the whole batch is done.
    Wait,
    /// It does nothing.
    Refuse,
}

/// What became of a batch that was submitted.
#[derive(Debug)]
#[must_use = "the batch may be in flight"]
pub enum Departure {
    /// It is committed.
    Over(Committed),
    /// It is to be [taken back](crate::mapper::Mapper::take_back).
    InFlight(InFlight),
    /// It would have had to wait, and was told to [refuse](WhenFull::Refuse) that. Nothing has changed.
    Full,
}

/// A batch that was submitted and is not known to be done. Dropping it leaks what the batch would give back, and one
/// of the [`IN_FLIGHT_MAX`] places of its CPU, which is safe.
#[derive(Debug)]
#[must_use = "the batch comes back when its mapper takes it back"]
pub struct InFlight {
    /// The tag of the space whose batch it is.
    tag: u64,
    /// The CPU that has submitted it, and its place there.
    cpu: CpuHint,
    place: u32,
    /// When it was first found not to be done, in microseconds; 0 if it was not. It is a cell, so a batch in flight
    /// may be sent to another CPU but is not shared: a ticket need not be `Sync`.
    since_us: Cell<u64>,
}

impl InFlight {
    /// Whether the time limit of a wait has passed since it was first found not to be done. It does not count from
    /// the submission: a post may have to be polled to get any further, and the driver may come late.
    #[cold]
    #[inline(never)]
    pub(super) fn is_overdue(&self, now_us: u64, limit_us: u64) -> bool {
        let (now_us, since_us) = (now_us.max(1), self.since_us.get());
        if since_us == 0 {
            self.since_us.set(now_us);
        }
        since_us != 0 && now_us.saturating_sub(since_us) > limit_us
    }
}

/// The places of a CPU.
struct Places<T> {
    /// A bit for each place that is taken.
    taken: AtomicU32,
    tickets: [UnsafeCell<MaybeUninit<T>>; IN_FLIGHT_MAX],
}

// SAFETY: a ticket is written by the call that has taken its place, and is read through the batch in flight that this
// call has made. There is one such batch for a place, it is not shared, and sending it to another CPU orders the write
// before the reads. The place is taken again only after the batch has given it back.
unsafe impl<T: Send> Sync for Places<T> {}

/// The batches in flight of a domain.
pub(crate) struct Flights<T>(Box<[Padded<Places<T>>]>);

impl<T: Copy + Send> Flights<T> {
    /// # Errors
    /// [`NoMemory`].
    #[inline(never)]
    pub(super) fn new<P: Platform>(platform: &P) -> Result<Self, NoMemory> {
        let places = || {
            let tickets = [const { UnsafeCell::new(MaybeUninit::uninit()) }; IN_FLIGHT_MAX];
            Ok(Places { taken: AtomicU32::new(0), tickets })
        };
        try_slice(platform, Context::MaySleep, platform.cpus().max(1) as usize, || places().map(Padded)).map(Self)
    }

    /// The places of `cpu`. CPUs beyond the number that the host reported share those of others.
    #[inline(always)]
    fn of(&self, cpu: CpuHint) -> &Places<T> {
        &self.0[index_of(cpu, self.0.len())].0
    }

    /// Takes a place of this CPU; `None` if it has no more.
    #[inline(always)]
    pub(crate) fn begin<P: Platform>(&self, platform: &P) -> Option<Place<'_, T>> {
        let cpu = platform.cpu();
        let places = self.of(cpu);
        loop {
            // Relaxed: the exchange decides.
            let before = places.taken.load(Ordering::Relaxed);
            let number = before.trailing_ones();
            if number as usize >= IN_FLIGHT_MAX {
                return None;
            }
            let after = before | 1 << number;
            // Acquire: pairs with `end`, after which nothing reads the old ticket. The CPU hint may be out of date, and
            // an interrupt may come in between.
            if places.taken.compare_exchange(before, after, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Some(Place { places, cpu, number });
            }
        }
    }

    /// The place of a batch of the space `tag`.
    ///
    /// # Panics
    /// If it is one of another space.
    #[inline(always)]
    pub(crate) fn place(&self, in_flight: &InFlight, tag: u64) -> Place<'_, T> {
        assert_eq!(in_flight.tag, tag, "a batch is taken back by the mapper that has submitted it");
        Place { places: self.of(in_flight.cpu), cpu: in_flight.cpu, number: in_flight.place }
    }

    /// The batches in flight, and the most that can be.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let taken =
            self.0.iter().map(|Padded(places)| places.taken.load(Ordering::Relaxed).count_ones() as usize).sum();
        (taken, self.0.len() * IN_FLIGHT_MAX)
    }
}

/// A place that is taken.
pub(crate) struct Place<'f, T> {
    places: &'f Places<T>,
    cpu: CpuHint,
    number: u32,
}

impl<T: Copy + Send> Place<'_, T> {
    #[inline(always)]
    fn cell(&self) -> &UnsafeCell<MaybeUninit<T>> {
        &self.places.tickets[self.number as usize % IN_FLIGHT_MAX]
    }

    /// Puts a batch of the space `tag` into a place that has just [begun](Flights::begin).
    #[inline(always)]
    pub(crate) fn submitted(self, tag: u64, ticket: T) -> InFlight {
        // SAFETY: nothing else uses the place, as said at `Places`.
        unsafe { (*self.cell().get()).write(ticket) };
        InFlight { tag, cpu: self.cpu, place: self.number, since_us: Cell::new(0) }
    }

    /// The ticket of the batch in it.
    ///
    /// # Safety
    /// The batch is in flight: the place has not [ended](Self::end) since it was [put](Self::submitted) there.
    #[inline(always)]
    unsafe fn ticket(&self) -> T {
        // SAFETY: the caller's promise: it was written. Nothing else uses the place, as said at `Places`.
        unsafe { (*self.cell().get()).assume_init() }
    }

    /// Gives the place back.
    #[inline(always)]
    pub(crate) fn end(self) {
        // Release: of the reads of its ticket.
        self.places.taken.fetch_and(!(1 << self.number), Ordering::Release);
    }
}

/// The ticket of a submission that is not done.
pub(crate) enum Unfinished<T> {
    /// It has time left.
    InTime(T),
    /// It has not, or has failed. A wait asks once more, and says why.
    Late(T),
}

/// Asks the hardware whether a batch is done, which has this place.
///
/// # Errors
/// What is left to do.
///
/// # Safety
/// The batch is in flight: it was submitted, and is not over.
#[inline(always)]
pub(crate) unsafe fn look<P: Platform, I: Iommu>(
    space: &AddressSpace<P, I>,
    place: &Place<'_, I::Ticket>,
    in_flight: &InFlight,
) -> Result<Proof, Unfinished<I::Ticket>> {
    // SAFETY: the caller's promise, passed on.
    let ticket = unsafe { place.ticket() };
    match space.ask(ticket) {
        Ok(Some(proof)) => Ok(proof),
        Ok(None) if !in_flight.is_overdue(space.platform().now_us(), limit_us(space.platform())) => {
            Err(Unfinished::InTime(ticket))
        }
        Ok(None) | Err(_) => Err(Unfinished::Late(ticket)),
    }
}
