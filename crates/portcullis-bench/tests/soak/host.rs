//! This machine, with counted table pages and a clock that the work advances; and an IOMMU that completes everything
//! at once.

use portcullis::forward_platform;
use portcullis::iommu::{AttachError, Translation};
use portcullis::platform::{Context, Wait, WordLines};
use portcullis::table::{ENTRIES, EntryValue, LEVEL_BITS};
use portcullis::{Capabilities, DomainId, Invalidation, Iommu, NoMemory, PhysAddr, Platform, QueueError, SourceId};
use portcullis_bench::Native;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// An IOMMU that completes every submission at once.
#[derive(Debug, Default)]
pub(crate) struct Done {
    translation: Mutex<Option<Translation>>,
}

impl Done {
    fn root(&self) -> (PhysAddr, u32) {
        match *self.translation.lock().expect("not poisoned") {
            Some(Translation::Tables { root, levels }) => (root, u32::from(levels)),
            other => panic!("a domain with tables, not {other:?}"),
        }
    }
}

// SAFETY: it has no devices, so no device reaches any memory.
unsafe impl Iommu for Done {
    type Ticket = ();

    fn capabilities(&self) -> Capabilities {
        Capabilities { rings: false, ..Capabilities::COMPLETE }
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        *self.translation.lock().expect("not poisoned") = Some(translation);
        Ok(DomainId(1))
    }

    unsafe fn close_domain(&self, _domain: DomainId) -> Result<(), AttachError> {
        Ok(())
    }

    fn attach(&self, _domain: DomainId, _device: SourceId) -> Result<(), AttachError> {
        Err(AttachError::Unsupported)
    }

    fn detach(&self, _domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        Err(AttachError::NotAttached(device))
    }

    fn submit(&self, _commands: &[Invalidation]) -> Result<(), QueueError> {
        Ok(())
    }

    fn is_done(&self, (): ()) -> Result<bool, QueueError> {
        Ok(true)
    }
}

/// This machine.
#[derive(Debug)]
pub(crate) struct Host {
    native: Native<true>,
    lent: AtomicUsize,
    freed: AtomicUsize,
    now_us: AtomicU64,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self {
            native: Native::coherent(),
            lent: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            now_us: AtomicU64::new(0),
        }
    }

    /// Table pages that are allocated and not yet freed.
    pub(crate) fn frames_lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    /// Table pages that were freed.
    pub(crate) fn frames_freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }

    pub(crate) fn pass(&self, us: u64) {
        self.now_us.fetch_add(us, Ordering::Relaxed);
    }

    pub(crate) fn pass_until(&self, us: u64) {
        self.now_us.fetch_max(us, Ordering::Relaxed);
    }

    /// The physical page to which page `pfn` leads. The page must stay mapped during the call.
    pub(crate) fn translate(&self, iommu: &Done, pfn: u64) -> Option<u64> {
        let (mut table, levels) = iommu.root();
        for level in (0..levels).rev() {
            let index = (pfn >> (LEVEL_BITS * level)) as usize % ENTRIES;
            // SAFETY: a mapping keeps the tables on the path to it.
            let value = unsafe { self.frame(table) }[index].load();
            if !value.is_present() {
                return None;
            }
            if level == 0 || value.is_large() {
                return Some(value.phys().pfn() + (pfn & ((1 << (LEVEL_BITS * level)) - 1)));
            }
            table = value.phys();
        }
        None
    }

    /// The number of tables that point to other tables, and the first page that each leaf table translates. No thread
    /// may map or unmap during the call.
    pub(crate) fn tables(&self, iommu: &Done) -> (usize, Vec<u64>) {
        let (root, levels) = iommu.root();
        let (mut inner, mut leaves) = (0, Vec::new());
        let mut left = vec![(root, levels, 0)];
        while let Some((table, level, first_pfn)) = left.pop() {
            if level == 1 {
                leaves.push(first_pfn);
                continue;
            }
            inner += 1;
            // SAFETY: the table page is in use, and no thread removes it.
            for (index, entry) in unsafe { self.frame(table) }.iter().enumerate() {
                let value: EntryValue = entry.load();
                if value.is_present() && !value.is_large() {
                    let pfn = first_pfn + ((index as u64) << (LEVEL_BITS * (level - 1)));
                    left.push((value.phys(), level - 1, pfn));
                }
            }
        }
        (inner, leaves)
    }
}

// SAFETY: it forwards to a platform that keeps the promises.
unsafe impl Platform for Host {
    type Lock<T: Send> = <Native<true> as Platform>::Lock<T>;
    type CpuWords = WordLines;

    forward_platform!(self => self.native; locks, processors, frame, table_barrier);

    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory> {
        self.lent.fetch_add(1, Ordering::Relaxed);
        self.native.allocate_frame(context)
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        self.lent.fetch_sub(1, Ordering::Relaxed);
        self.freed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { self.native.free_frame(frame) }
    }

    fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::Relaxed)
    }

    fn pause(&self, _wait: Wait) {
        self.pass(1);
    }
}
