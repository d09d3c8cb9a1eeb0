//! The functions that a C kernel would link: they work on opaque domains, of any design, and on batches in the C
//! caller's memory.
//!
//! A matching header has the same names:
//!
//! ```c
//! typedef struct pcl_domain pcl_domain;
//! typedef struct { _Alignas(8) unsigned char opaque[PCL_BATCH_BYTES]; } pcl_batch;
//! typedef struct { uint64_t phys, len; } pcl_segment;
//! int pcl_map(const pcl_domain *, uint64_t phys, uint64_t len, int access, uint64_t *iova);
//! int pcl_map_sg(const pcl_domain *, const pcl_segment *, size_t n, int access, int64_t stream, int lasting, uint64_t *iova);
//! int pcl_unmap(const pcl_domain *, uint64_t iova, uint64_t len);
//! void pcl_batch_init(pcl_batch *);
//! int pcl_batch_unmap(const pcl_domain *, pcl_batch *, uint64_t iova, uint64_t len);
//! int pcl_batch_commit(const pcl_domain *, pcl_batch *);
//! ```

use crate::machine::{Machine, designs, first_iova};
use core::mem::MaybeUninit;
use portcullis::invalidation::{BATCH_MAX, Revocation};
use portcullis::{
    Access, CommitError, DynDomain, Iova, IovaRange, Lifetime, MapError, MapOptions, PAGE_SIZE, PhysAddr, RawMapError,
    RawUnmapError, Segment, Stream, SubPage, UnmapError,
};

/// What a `pcl_domain *` points to. A pointer to a `DynDomain` itself is two words wide, and C has no such pointer.
type Handle = Box<DynDomain>;

const EINVAL: i32 = -22;
const ENOMEM: i32 = -12;
const ENOSPC: i32 = -28;
const ENOENT: i32 = -2;
const ENOBUFS: i32 = -105;
/// The device may still reach the memory: it must never be used again (S11).
const EIO: i32 = -5;

const BATCH_BYTES: usize = 512;

#[repr(C, align(8))]
struct Batch([MaybeUninit<u8>; BATCH_BYTES]);

const _: () = assert!(size_of::<Revocation>() <= BATCH_BYTES && align_of::<Revocation>() <= 8);

#[repr(C)]
struct CSegment {
    phys: u64,
    len: u64,
}

fn access(access: i32) -> Option<Access> {
    match access {
        1 => Some(Access::DeviceReads),
        2 => Some(Access::DeviceWrites),
        3 => Some(Access::DeviceReadsAndWrites),
        _ => None,
    }
}

fn mapped(result: Result<Iova, RawMapError>, iova: &mut u64) -> i32 {
    match result {
        Ok(at) => {
            *iova = at.as_u64();
            0
        }
        Err(RawMapError::Lost(_)) => EIO,
        Err(RawMapError::Refused(MapError::NoMemory(_))) => ENOMEM,
        Err(RawMapError::Refused(MapError::Exhausted { .. })) => ENOSPC,
        Err(RawMapError::Refused(_)) => EINVAL,
    }
}

fn unmapped<T>(result: Result<T, RawUnmapError>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(RawUnmapError::Commit(CommitError(_))) => EIO,
        Err(RawUnmapError::Refused(UnmapError::NotMapped(_))) => ENOENT,
        Err(RawUnmapError::Refused(UnmapError::BatchFull)) => ENOBUFS,
        Err(RawUnmapError::Refused(_)) => EINVAL,
    }
}

/// # Safety
/// The memory is for the domain's devices until an unmap has returned 0.
unsafe extern "C" fn pcl_map(domain: &Handle, phys: u64, len: u64, rights: i32, iova: &mut u64) -> i32 {
    let Some(access) = access(rights) else { return EINVAL };
    // SAFETY: the caller's promise.
    mapped(unsafe { domain.map_raw(PhysAddr::new(phys), len, access) }, iova)
}

/// # Safety
/// As for `pcl_map`. If `count` is not zero, there are as many segments.
unsafe extern "C" fn pcl_map_sg(
    domain: &Handle,
    segments: *const CSegment,
    count: usize,
    rights: i32,
    stream: i64,
    lasting: i32,
    iova: &mut u64,
) -> i32 {
    let Some(access) = access(rights) else { return EINVAL };
    if count == 0 {
        // For no segments, C may pass a null pointer, which a slice must not have.
        return EINVAL;
    }
    // SAFETY: the caller's promise.
    let segments = unsafe { core::slice::from_raw_parts(segments, count) };
    let lifetime = if lasting != 0 { Lifetime::Persistent } else { Lifetime::Transient };
    let options = MapOptions { stream: Stream(u32::try_from(stream).ok()), lifetime, ..MapOptions::default() };
    let mut list =
        segments.iter().map(|segment| Segment { phys: PhysAddr::new(segment.phys), len: segment.len }).peekable();
    let Some(&first) = list.peek() else { return EINVAL };
    // SAFETY: the caller's promise.
    let range = unsafe { domain.map_list(list, access, &options) };
    mapped(range.map(|range| first_iova(domain, first, range)), iova)
}

extern "C" fn pcl_unmap(domain: &Handle, iova: u64, len: u64) -> i32 {
    unmapped(domain.unmap_raw(Iova::new(iova), len))
}

extern "C" fn pcl_batch_init(batch: &mut Batch) {
    // SAFETY: its size and alignment suffice, as checked above.
    unsafe { batch.0.as_mut_ptr().cast::<Revocation>().write(Revocation::new()) };
}

/// # Safety
/// `pcl_batch_init` has initialized it.
unsafe fn revocation(batch: &mut Batch) -> &mut Revocation {
    // SAFETY: the caller's promise.
    unsafe { &mut *batch.0.as_mut_ptr().cast() }
}

/// # Safety
/// `pcl_batch_init` has initialized the batch.
unsafe extern "C" fn pcl_batch_unmap(domain: &Handle, batch: &mut Batch, iova: u64, len: u64) -> i32 {
    let Some(range) = IovaRange::covering(Iova::new(iova), len) else { return EINVAL };
    // SAFETY: the caller's promise.
    let batch = unsafe { revocation(batch) };
    unmapped(domain.unmap_raw_into(range, batch).map_err(RawUnmapError::from))
}

/// # Safety
/// `pcl_batch_init` has initialized the batch.
unsafe extern "C" fn pcl_batch_commit(domain: &Handle, batch: &mut Batch) -> i32 {
    // SAFETY: the caller's promise.
    let batch = unsafe { revocation(batch) };
    unmapped(domain.commit_raw(batch).map_err(RawUnmapError::from))
}

/// The calls of a C program, under every design.
#[test]
fn c_maps_lists_and_batches_under_any_design() {
    for design in designs() {
        let domain = Machine::new().domain(design, 48, SubPage::Expose);
        let (name, mut iova) = (design.info().id, 0);
        // SAFETY: there is no memory at these addresses, so no code relies on it.
        unsafe {
            assert_eq!(pcl_map(&domain, 0x12_3456, 100, 2, &mut iova), 0, "{name}");
            assert_eq!(pcl_map(&domain, 0x12_3456, 0, 2, &mut iova), EINVAL, "{name}");
            assert_eq!(pcl_map(&domain, 0x12_3456, 100, 4, &mut iova), EINVAL, "{name}");
        }
        assert_eq!(iova % PAGE_SIZE, 0x456, "{name}");
        assert_eq!(pcl_unmap(&domain, iova, 100), 0, "{name}");
        assert_eq!(pcl_unmap(&domain, iova, 0), EINVAL, "{name}");
        let list = [(0x7000, 4096), (0x9000, 4096), (0x2_0000, 100)].map(|(phys, len)| CSegment { phys, len });
        // SAFETY: as above.
        assert_eq!(unsafe { pcl_map_sg(&domain, list.as_ptr(), 3, 1, -1, 1, &mut iova) }, 0, "{name}");
        let mut untouched = 7;
        // SAFETY: there are no segments.
        let nothing = unsafe { pcl_map_sg(&domain, core::ptr::null(), 0, 1, -1, 1, &mut untouched) };
        assert_eq!((nothing, untouched), (EINVAL, 7), "{name}");
        assert_eq!(pcl_unmap(&domain, iova, 3 * PAGE_SIZE), 0, "{name}");
        let mut batch = Batch([MaybeUninit::uninit(); BATCH_BYTES]);
        pcl_batch_init(&mut batch);
        let iovas: Vec<u64> = (0..BATCH_MAX as u64)
            .map(|page| {
                // SAFETY: as above.
                assert_eq!(unsafe { pcl_map(&domain, (1 << 24) + page * 8192, 4096, 2, &mut iova) }, 0, "{name}");
                iova
            })
            .collect();
        // SAFETY: the batch was initialized above.
        unsafe {
            for &iova in &iovas {
                assert_eq!(pcl_batch_unmap(&domain, &mut batch, iova, 4096), 0, "{name}");
            }
            assert_eq!(pcl_batch_unmap(&domain, &mut batch, iovas[0], 4096), ENOBUFS, "{name}");
            assert_eq!(pcl_batch_commit(&domain, &mut batch), 0, "{name}");
            assert_eq!(pcl_batch_unmap(&domain, &mut batch, iovas[0], 4096), ENOENT, "{name}");
        }
        assert_eq!(domain.usage().live_ranges, 0, "{name}");
    }
}
