//! The invalidation queue. It runs on its own and executes one descriptor after the other. Each takes effect when its
//! time has passed.

use super::Scope;
use super::State;
use super::translation::page_range;
use portcullis::iommu::rings::{RING_ADDRESS_MASK, RingAddress};
use portcullis::{PAGE_SIZE, PhysAddr};
use portcullis_vtd::spec::descriptors::{DESCRIPTOR_BYTES, InvalidationDescriptor, IotlbScope};
use portcullis_vtd::spec::registers::QUEUE_OFFSET_MASK;

/// What the queue is doing.
#[derive(Clone, Copy)]
enum Step {
    /// Nothing to do, or stopped at an error.
    Idle,
    /// Executing the descriptor at the head.
    Executing { descriptor: InvalidationDescriptor, ends_ps: u64 },
    /// The descriptor has taken effect, and waits for the writes that were in flight.
    Draining { scope: Scope, ends_ps: u64 },
}

pub(super) struct Queue {
    pub(super) enabled: bool,
    /// The address register as written.
    pub(super) address: u64,
    /// Offset of the descriptor being executed, in bytes.
    pub(super) head: u64,
    /// Offset of the first descriptor that software has not handed over, in bytes.
    pub(super) tail: u64,
    /// The queue has stopped at a descriptor that cannot be executed (`FSTS.IQE`).
    pub(super) error: bool,
    /// A wait with an interrupt has completed (`ICS.IWC`).
    pub(super) wait_completed: bool,
    step: Step,
}

const SIZE_MASK: u64 = 7;
/// 256-bit descriptors, which this model does not support.
const WIDE_DESCRIPTORS: u64 = 1 << 11;

impl Queue {
    pub(super) fn new() -> Self {
        let step = Step::Idle;
        Self { enabled: false, address: 0, head: 0, tail: 0, error: false, wait_completed: false, step }
    }

    /// When the queue next does something; `u64::MAX` for never.
    #[inline]
    pub(super) fn next_ps(&self) -> u64 {
        match self.step {
            Step::Idle => u64::MAX,
            Step::Executing { ends_ps, .. } | Step::Draining { ends_ps, .. } => ends_ps,
        }
    }

    fn bytes(&self) -> u64 {
        PAGE_SIZE << (self.address & SIZE_MASK)
    }
}

impl State {
    /// Turns the queue on or off. Turning it off drops the descriptor in progress and sets the head to zero.
    pub(super) fn enable_queue(&mut self, now_ps: u64, enabled: bool) {
        if self.queue.enabled == enabled {
            return;
        }
        self.queue.enabled = enabled;
        self.queue.head = 0;
        self.queue.step = Step::Idle;
        if enabled {
            self.start_descriptor(now_ps);
        }
    }

    /// Sets the tail, which software has moved.
    pub(super) fn set_queue_tail(&mut self, now_ps: u64, tail: u64) {
        self.queue.tail = tail & QUEUE_OFFSET_MASK;
        self.resume_queue(now_ps);
    }

    /// Starts the next descriptor if the queue is idle.
    pub(super) fn resume_queue(&mut self, now_ps: u64) {
        if matches!(self.queue.step, Step::Idle) {
            self.start_descriptor(now_ps);
        }
    }

    /// Fetches the descriptor at the head. A descriptor that cannot be executed stops the queue there.
    fn start_descriptor(&mut self, now_ps: u64) {
        self.queue.step = Step::Idle;
        if !self.queue.enabled || self.queue.error || self.queue.head == self.queue.tail {
            return;
        }
        match self.fetch_descriptor() {
            Some(descriptor) => {
                let takes_ps = match descriptor {
                    InvalidationDescriptor::Wait { .. } => self.parameters.wait_ps,
                    _ => self.parameters.invalidation_ps,
                };
                self.counters.queue_busy_ps += takes_ps;
                self.queue.step = Step::Executing { descriptor, ends_ps: now_ps + takes_ps };
            }
            None => self.queue.error = true,
        }
    }

    /// `None` if the descriptor cannot be read or executed, or the tail is outside the queue.
    fn fetch_descriptor(&self) -> Option<InvalidationDescriptor> {
        let queue = &self.queue;
        if queue.tail >= queue.bytes() || queue.address & WIDE_DESCRIPTORS != 0 {
            return None;
        }
        let at = (queue.address & !(PAGE_SIZE - 1)).checked_add(queue.head)?;
        // The hardware snoops the queue, whether or not its walks are coherent (ECAP.C, §10.4.3).
        let words = [self.ram.read_u64(PhysAddr::new(at))?, self.ram.read_u64(PhysAddr::new(at + 8))?];
        let descriptor = InvalidationDescriptor::decode(words).ok()?;
        match descriptor {
            InvalidationDescriptor::Iotlb { .. } if self.refuses_invalidations => None,
            InvalidationDescriptor::Iotlb { scope: IotlbScope::Pages { first, mask, .. }, .. } => {
                let is_ring = mask == RING_ADDRESS_MASK && RingAddress::of(first).ring != 0;
                let is_selected = mask <= self.parameters.mamv || self.parameters.rings && is_ring;
                (self.parameters.page_selective && is_selected).then_some(descriptor)
            }
            // This flag is reserved without page requests, which this model does not support (§6.5.2.8).
            InvalidationDescriptor::Wait { drain_page_requests: true, .. } => None,
            InvalidationDescriptor::Wait { status: Some(status), .. } => {
                self.ram.read_u64(status.address).map(|_| descriptor)
            }
            _ => Some(descriptor),
        }
    }

    /// Performs the next step of the queue at its due time.
    pub(super) fn step_queue(&mut self) {
        match self.queue.step {
            Step::Idle => {}
            Step::Executing { descriptor, ends_ps } => self.execute(descriptor, ends_ps),
            Step::Draining { scope, ends_ps } => self.complete_descriptor(Some(scope), ends_ps),
        }
    }

    fn execute(&mut self, descriptor: InvalidationDescriptor, now_ps: u64) {
        match descriptor {
            InvalidationDescriptor::Iotlb { scope, drain_writes, .. } => {
                self.translation.invalidate(&self.ram, &mut self.counters, scope);
                let scope = match scope {
                    IotlbScope::Global => {
                        self.counters.invalidations_global += 1;
                        Scope::Global
                    }
                    IotlbScope::Domain(domain) => {
                        self.counters.invalidations_domain += 1;
                        Scope::Domain(domain)
                    }
                    IotlbScope::Pages { domain, first, mask, .. } => {
                        self.counters.invalidations_page += 1;
                        let (first_pfn, last) = page_range(first, mask);
                        Scope::Pages { domain, first_pfn, pages: last - first_pfn + 1 }
                    }
                };
                let in_flight_ps = if drain_writes && self.parameters.drains { self.writes.last_ps() } else { None };
                match in_flight_ps {
                    Some(ends_ps) => {
                        self.counters.queue_busy_ps += ends_ps.saturating_sub(now_ps);
                        self.queue.step = Step::Draining { scope, ends_ps };
                    }
                    None => self.complete_descriptor(Some(scope), now_ps),
                }
            }
            InvalidationDescriptor::ContextCache(scope) => {
                self.counters.invalidations_context += 1;
                self.translation.invalidate_contexts(scope);
                self.complete_descriptor(None, now_ps);
            }
            InvalidationDescriptor::Wait { status, interrupt, .. } => {
                self.counters.waits += 1;
                if let Some(status) = status {
                    // The fetch checked that the address is in memory, so this write succeeds.
                    self.ram.write_u32(status.address, status.data);
                }
                self.queue.wait_completed |= interrupt;
                self.complete_descriptor(None, now_ps);
            }
            InvalidationDescriptor::InterruptEntryCache { entries } => {
                self.interrupts.invalidate(entries);
                self.complete_descriptor(None, now_ps);
            }
            // No device caches translations here, so there is nothing to drop.
            InvalidationDescriptor::DeviceTlb { .. } => self.complete_descriptor(None, now_ps),
        }
    }

    fn complete_descriptor(&mut self, scope: Option<Scope>, now_ps: u64) {
        self.counters.descriptors += 1;
        if let Some(scope) = scope
            && self.records_invalidations
        {
            self.completed.push((now_ps, scope));
        }
        self.queue.head = (self.queue.head + DESCRIPTOR_BYTES) % self.queue.bytes();
        self.start_descriptor(now_ps);
    }
}
