//! An adapter for `Hal` of the crate `virtio-drivers`, and its block driver with a disk.

use crate::machine::{Machine, designs, first_iova, pages_of, phys, whole_pages};
use portcullis::table::Rights;
use portcullis::{Access, DynDomain, Iova, Lifetime, MapOptions, PAGE_SIZE, SubPage};
use std::alloc::{alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, RwLock};
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{BufferDirection, Hal};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The trait has no `self`, so the domain is a static.
static DOMAIN: RwLock<Option<Box<DynDomain>>> = RwLock::new(None);

fn with_domain<R>(use_it: impl FnOnce(&DynDomain) -> R) -> R {
    use_it(DOMAIN.read().expect("not poisoned").as_ref().expect("a domain before the driver"))
}

fn access(direction: BufferDirection) -> Access {
    match direction {
        BufferDirection::DriverToDevice => Access::DeviceReads,
        BufferDirection::DeviceToDriver => Access::DeviceWrites,
        BufferDirection::Both => Access::DeviceReadsAndWrites,
    }
}

struct PortcullisHal;

// SAFETY: pages come zeroed from the allocator, and go back to it when the domain has taken them from the device.
unsafe impl Hal for PortcullisHal {
    fn dma_alloc(pages: usize, direction: BufferDirection) -> (u64, NonNull<u8>) {
        let layout = whole_pages(pages * PAGE_SIZE as usize, 1);
        // SAFETY: the driver requests at least one page.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        let lasting = MapOptions { lifetime: Lifetime::Persistent, ..MapOptions::default() };
        // SAFETY: only the driver and the device use the pages until `dma_dealloc`.
        let mapped = with_domain(|domain| unsafe {
            domain.map_raw_with(phys(memory), layout.size() as u64, access(direction), &lasting)
        });
        // No mapping has the address 0, which the trait uses for a failure.
        (mapped.map_or(0, Iova::as_u64), memory)
    }

    unsafe fn dma_dealloc(iova: u64, memory: NonNull<u8>, pages: usize) -> i32 {
        let layout = whole_pages(pages * PAGE_SIZE as usize, 1);
        if with_domain(|domain| domain.unmap_raw(Iova::new(iova), layout.size() as u64)).is_err() {
            return -1;
        }
        // SAFETY: it is from `dma_alloc`, and the device has lost it.
        unsafe { dealloc(memory.as_ptr(), layout) };
        0
    }

    unsafe fn mmio_phys_to_virt(_: u64, _: usize) -> NonNull<u8> {
        panic!("this machine has no memory-mapped registers")
    }

    unsafe fn share(buffer: NonNull<[u8]>, direction: BufferDirection) -> u64 {
        let mut pages = pages_of(buffer.cast(), buffer.len()).peekable();
        let first = *pages.peek().expect("the driver shares something");
        let iova = with_domain(|domain| {
            // SAFETY: the driver does not use the buffer until `unshare`.
            let mapped = unsafe { domain.map_list(pages, access(direction), &MapOptions::default()) };
            let range = mapped.expect("the trait has no way to say that there is no room");
            first_iova(domain, first, range)
        });
        iova.as_u64()
    }

    unsafe fn unshare(iova: u64, buffer: NonNull<[u8]>, _: BufferDirection) {
        let unmapped = with_domain(|domain| domain.unmap_raw(Iova::new(iova), buffer.len() as u64));
        unmapped.expect("the trait has no way to say that the device keeps the buffer");
    }
}

const QUEUE_MAX: u32 = 16;
const SECTORS: u8 = 16;
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;

/// A disk that does its DMA through the IOMMU, all of it when it is notified.
struct Disk {
    machine: Machine,
    status: DeviceStatus,
    /// Addresses of the descriptors, the available ring and the used ring.
    queue: [u64; 3],
    size: u16,
    seen: u16,
    sectors: Vec<u8>,
    /// Buffers that are not whole pages: the number of all, and of those that exposed the rest of a page of the driver.
    parts: usize,
    exposed: usize,
}

impl Disk {
    fn word(&self, iova: u64) -> u16 {
        u16::from_le_bytes(self.machine.read(iova))
    }

    /// The descriptors of a request: address, length, flags.
    fn chain(&self, mut index: u16) -> Vec<(u64, u32, u16)> {
        let mut chain = Vec::new();
        loop {
            let at = self.queue[0] + u64::from(index) * 16;
            let (address, len) = (u64::from_le_bytes(self.machine.read(at)), self.machine.read(at + 8));
            let flags = self.word(at + 12);
            chain.push((address, u32::from_le_bytes(len), flags));
            if flags & NEXT == 0 {
                return chain;
            }
            index = self.word(at + 14);
        }
    }

    fn serve(&mut self) {
        let [_, available, used] = self.queue;
        while self.seen != self.word(available + 2) {
            let head = self.word(available + 4 + u64::from(self.seen % self.size) * 2);
            let chain = self.chain(head);
            for &(address, len, flags) in &chain {
                let rights = if flags & DEVICE_WRITES != 0 { Rights::WRITE } else { Rights::READ };
                if (address | u64::from(len)) % PAGE_SIZE != 0 {
                    self.parts += 1;
                    self.exposed += usize::from(!self.machine.is_bounced(address, rights));
                }
            }
            let written = self.request(&chain);
            let slot = used + 4 + u64::from(self.seen % self.size) * 8;
            self.machine.write(slot, &u32::from(head).to_le_bytes());
            self.machine.write(slot + 4, &written.to_le_bytes());
            self.seen = self.seen.wrapping_add(1);
            self.machine.write(used + 2, &self.seen.to_le_bytes());
        }
    }

    /// Handles a header, data, and a status. Returns how many bytes the device has written.
    fn request(&mut self, chain: &[(u64, u32, u16)]) -> u32 {
        let [(header, ..), data @ .., (status, ..)] = chain else { panic!("a header and a status") };
        let sector = u64::from_le_bytes(self.machine.read(header + 8)) as usize;
        let (mut at, mut written) = (sector * SECTOR_SIZE, 1);
        for &(address, len, flags) in data {
            let place = at..at + len as usize;
            at = place.end;
            if flags & DEVICE_WRITES != 0 {
                self.machine.write(address, &self.sectors[place]);
                written += len;
            } else {
                let bytes = (0..u64::from(len)).map(|byte| self.machine.read::<1>(address + byte)[0]);
                self.sectors.splice(place, bytes.collect::<Vec<u8>>());
            }
        }
        self.machine.write(*status, &[0]);
        written
    }
}

/// The transport to the disk.
struct Bus(Arc<Mutex<Disk>>);

impl Bus {
    fn disk(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.0.lock().expect("not poisoned")
    }
}

impl Transport for Bus {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }

    fn read_device_features(&mut self) -> u64 {
        const VERSION_1: u64 = 1 << 32;
        VERSION_1
    }

    fn write_driver_features(&mut self, _: u64) {}

    fn max_queue_size(&mut self, _: u16) -> u32 {
        QUEUE_MAX
    }

    fn notify(&mut self, _: u16) {
        self.disk().serve();
    }

    fn get_status(&self) -> DeviceStatus {
        self.disk().status
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.disk().status = status;
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(&mut self, _: u16, size: u32, descriptors: u64, available: u64, used: u64) {
        let mut disk = self.disk();
        (disk.size, disk.queue) = (size as u16, [descriptors, available, used]);
    }

    fn queue_unset(&mut self, _: u16) {
        self.disk().queue = [0; 3];
    }

    fn queue_used(&mut self, _: u16) -> bool {
        self.disk().queue != [0; 3]
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        0
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> virtio_drivers::Result<T> {
        let mut config = [0; 64];
        config[0] = SECTORS;
        Ok(T::read_from_prefix(&config[offset..]).expect("within the configuration").0)
    }

    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> virtio_drivers::Result<()> {
        Ok(())
    }
}

/// Headers, sectors and states of requests lie on the stack, in pages with unrelated data.
#[test]
fn a_block_driver_runs_over_any_design() {
    for (design, sub_page) in designs().flat_map(|design| [(design, SubPage::Expose), (design, SubPage::Bounce)]) {
        let machine = Machine::new();
        *DOMAIN.write().expect("not poisoned") = Some(machine.domain(design, 48, sub_page));
        let sectors = (0..SECTORS).flat_map(|sector| [sector; SECTOR_SIZE]).collect();
        let (status, queue) = (DeviceStatus::empty(), [0; 3]);
        let disk = Disk { machine, status, queue, size: 0, seen: 0, sectors, parts: 0, exposed: 0 };
        let disk = Arc::new(Mutex::new(disk));
        let mut driver = VirtIOBlk::<PortcullisHal, _>::new(Bus(disk.clone())).expect("a disk");
        let mut sector = [0u8; SECTOR_SIZE];
        for number in 0..SECTORS {
            driver.read_blocks(number.into(), &mut sector).expect("a sector");
            assert_eq!(sector, [number; SECTOR_SIZE], "{} {sub_page}", design.info().id);
        }
        driver.write_blocks(3, &[0xaa; SECTOR_SIZE]).expect("a sector");
        driver.read_blocks(3, &mut sector).expect("a sector");
        assert_eq!(sector, [0xaa; SECTOR_SIZE], "{} {sub_page}", design.info().id);
        drop(driver);
        let domain = DOMAIN.write().expect("not poisoned").take().expect("the one from above");
        let usage = domain.usage();
        assert_eq!((usage.live_ranges, usage.bounce_pages), (0, 0), "{} {sub_page}", design.info().id);
        drop(domain);
        assert_eq!(machine.host.frames_lent(), 0, "{} {sub_page}", design.info().id);
        let Disk { parts, exposed, .. } = *disk.lock().expect("not poisoned");
        assert!(parts >= 3 * 18, "{parts}");
        assert_eq!(exposed, if sub_page == SubPage::Bounce { 0 } else { parts }, "{} {sub_page}", design.info().id);
    }
}
