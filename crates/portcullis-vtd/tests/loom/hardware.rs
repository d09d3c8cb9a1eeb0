//! A minimal software unit for the driver, over memory that the model checker sees.

use loom::sync::Mutex;
use portcullis::platform::fake::FakeHost;
use portcullis::{Iova, PAGE_SIZE, PhysAddr, Platform};
use portcullis_vtd::Mmio;
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use portcullis_vtd::spec::registers::*;

/// QEMU's capabilities.
const CAPABILITY: u64 = 0x00d2_008c_222f_0606;
const EXTENDED: u64 = 0x00f0_0f4a;

#[derive(Default)]
struct State {
    status: u32,
    queue: u64,
    head: u64,
    tail: u64,
    invalidated: Vec<Iova>,
}

/// A slow unit: it executes the queued descriptors only when its fault status is read, that is when the driver polls.
pub(crate) struct Hardware {
    host: &'static FakeHost,
    state: Mutex<State>,
}

impl Hardware {
    pub(crate) fn new(host: &'static FakeHost) -> Self {
        Self { host, state: Mutex::default() }
    }

    /// Whether the page has been invalidated.
    pub(crate) fn has_invalidated(&self, page: Iova) -> bool {
        self.state.lock().unwrap().invalidated.contains(&page)
    }

    fn run_queue(&self, state: &mut State) {
        let word = |address| self.host.hardware_read(PhysAddr::new(address), true).expect("a page that is lent");
        while state.head != state.tail {
            let at = state.queue + state.head;
            state.head = (state.head + 16) % PAGE_SIZE;
            match InvalidationDescriptor::decode([word(at), word(at + 8)]).expect("a descriptor of the driver") {
                InvalidationDescriptor::Iotlb { scope: IotlbScope::Pages { first, .. }, .. } => {
                    state.invalidated.push(first)
                }
                InvalidationDescriptor::Wait { status: Some(write), .. } => self.land(write.address, write.data),
                _ => {}
            }
        }
    }

    fn land(&self, at: PhysAddr, data: u32) {
        let page = PhysAddr::new(at.as_u64() & !(PAGE_SIZE - 1));
        // SAFETY: the driver has not freed its pages, because it waits for this.
        let statuses = unsafe { self.host.frame(page) };
        statuses[(at.page_offset() / 8) as usize].store_bits(u64::from(data));
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
                0
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
        if offset == GCMD {
            self.state.lock().unwrap().status = value;
        }
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        let mut state = self.state.lock().unwrap();
        match offset {
            IQA => state.queue = value,
            IQT => state.tail = value,
            _ => {}
        }
    }
}
