//! A minimal software unit for the driver, over memory that the model checker sees.

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use portcullis::platform::fake::FakeHost;
use portcullis::{Iova, PAGE_SIZE, PhysAddr, Platform};
use portcullis_vtd::Mmio;
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use portcullis_vtd::spec::faults::status::QUEUE_ERROR;
use portcullis_vtd::spec::registers::*;

/// QEMU's capabilities.
const CAPABILITY: u64 = 0x00d2_008c_222f_0606;
const EXTENDED: u64 = 0x00f0_0f4a;

/// The pages that a model uses.
const PAGES: usize = 6;

#[derive(Default)]
struct State {
    status: u32,
    /// The fault status. While it holds an error, the hardware reads no descriptor.
    faults: u32,
    has_failed: bool,
    queue: u64,
    head: u64,
    tail: u64,
    invalidated: Vec<Iova>,
    /// Pages that the table still mapped, for all that the hardware saw, when they were invalidated.
    refilled: usize,
}

/// A unit that executes the queued descriptors at once, or, if it is slow, only when its fault status is read: when the
/// driver polls. After an error, slow hardware also goes on at once when the driver rings the doorbell.
pub(crate) struct Hardware {
    host: &'static FakeHost,
    is_slow: bool,
    /// The page whose invalidation it refuses.
    refused: Option<Iova>,
    /// Set while the table maps a page.
    entries: [AtomicBool; PAGES],
    state: Mutex<State>,
}

impl Hardware {
    pub(crate) fn new(host: &'static FakeHost, is_slow: bool, refused: Option<Iova>) -> Self {
        Self {
            host,
            is_slow,
            refused,
            entries: std::array::from_fn(|_| AtomicBool::new(true)),
            state: Mutex::default(),
        }
    }

    /// Whether the page has been invalidated.
    pub(crate) fn has_invalidated(&self, page: Iova) -> bool {
        self.state.lock().unwrap().invalidated.contains(&page)
    }

    /// Clears the entry of a page. Relaxed: only the submission behind it shows that to the hardware.
    pub(crate) fn clear(&self, page: Iova) {
        self.entries[page.pfn() as usize].store(false, Ordering::Relaxed);
    }

    /// How often a page was invalidated whose entry the hardware could read again at once.
    pub(crate) fn refilled(&self) -> usize {
        self.state.lock().unwrap().refilled
    }

    fn run_queue(&self, state: &mut State) {
        let word = |address| self.host.hardware_read(PhysAddr::new(address), true).expect("a page that is lent");
        while state.head != state.tail && state.faults == 0 {
            let at = state.queue + state.head;
            match InvalidationDescriptor::decode([word(at), word(at + 8)]).expect("a descriptor of the driver") {
                InvalidationDescriptor::Iotlb { scope: IotlbScope::Pages { first, .. }, .. }
                    if self.refused == Some(first) =>
                {
                    // The head stays in front of what is refused.
                    (state.faults, state.has_failed) = (QUEUE_ERROR, true);
                    return;
                }
                InvalidationDescriptor::Iotlb { scope: IotlbScope::Pages { first, .. }, .. } => {
                    state.refilled += usize::from(self.entries[first.pfn() as usize].load(Ordering::Relaxed));
                    state.invalidated.push(first)
                }
                InvalidationDescriptor::Wait { status: Some(write), .. } => self.land(write.address, write.data),
                _ => {}
            }
            state.head = (state.head + 16) % PAGE_SIZE;
        }
    }

    fn land(&self, at: PhysAddr, data: u32) {
        let page = PhysAddr::new(at.as_u64() & !(PAGE_SIZE - 1));
        // SAFETY: the driver has not freed its pages, because it waits for this.
        let statuses = unsafe { self.host.frame(page) };
        let word = &statuses[(at.page_offset() / 8) as usize];
        // Hardware writes 32 bits; the other half of the word is kept.
        word.store_bits(word.load_bits() >> 32 << 32 | u64::from(data));
    }
}

// SAFETY: the only memory behind these registers belongs to the test.
unsafe impl Mmio for &'static Hardware {
    fn read32(&self, offset: u32) -> u32 {
        let mut state = self.state.lock().unwrap();
        match offset {
            VER => 0x10,
            GSTS => state.status,
            FSTS => {
                self.run_queue(&mut state);
                state.faults
            }
            _ => 0,
        }
    }

    fn read64(&self, offset: u32) -> u64 {
        let state = self.state.lock().unwrap();
        match offset {
            CAP => CAPABILITY,
            ECAP => EXTENDED,
            IQH => state.head,
            IQT => state.tail,
            _ => 0,
        }
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        let mut state = self.state.lock().unwrap();
        match offset {
            GCMD => state.status = value,
            FSTS => state.faults &= !value,
            _ => {}
        }
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        let mut state = self.state.lock().unwrap();
        match offset {
            IQA => state.queue = value,
            IQT => {
                state.tail = value;
                if !self.is_slow || state.has_failed {
                    self.run_queue(&mut state);
                }
            }
            _ => {}
        }
    }
}
