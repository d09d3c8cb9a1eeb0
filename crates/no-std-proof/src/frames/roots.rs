//! The operations of a domain.

use super::{Hardware, Host, Root};
use core::mem::MaybeUninit;
use portcullis::design::{Design, Usage};
use portcullis::domain::{Batch, DmaBuffer, MapFailure, Mapping, RawBatch, Refused, UnmapFailure};
use portcullis::error::{CommitError, NewDomainError, RawMapError, RawUnmapError, UnmapError};
use portcullis::invalidation::Revocation;
use portcullis::iommu::AttachError;
use portcullis::{
    Access, Domain, DomainConfig, DynDomain, Iova, IovaRange, MapOptions, PhysAddr, Request, Segment, SourceId,
};

type Space<D> = Domain<D, Host, Hardware>;

/// A driver's buffer, as small as possible.
pub struct Buffer(&'static Segment);

// SAFETY: no such buffer is ever made.
unsafe impl DmaBuffer for Buffer {
    fn segments(&self) -> &[Segment] {
        core::slice::from_ref(self.0)
    }
}

macro_rules! roots {
    ($($kind:ident $operation:literal $function:path;)*) => {
        /// The number of operations.
        pub(super) const COUNT: usize = [$($operation),*].len();

        /// The operations of design `D`.
        pub(super) const fn of<D: Design<Host, Hardware, Mapper: 'static>>(design: &'static str) -> [Root; COUNT] {
            [$(roots!($kind D, design, $operation, $function)),*]
        }
    };
    (slow $design:ident, $id:ident, $operation:literal, $function:path) => {
        Root::new($id, $operation, false, $function as *const ())
    };
    (fast $design:ident, $id:ident, $operation:literal, $function:path) => {
        Root::new($id, $operation, true, $function as *const ())
    };
    (slow_dyn $design:ident, $id:ident, $operation:literal, $function:path) => {
        Root::new($id, $operation, false, $function as *const ()).through::<$design>()
    };
    (fast_dyn $design:ident, $id:ident, $operation:literal, $function:path) => {
        Root::new($id, $operation, true, $function as *const ()).through::<$design>()
    };
}

roots! {
    slow "open" open::<D>;
    slow "close" close::<D>;
    slow "attach" attach::<D>;
    slow "detach" detach::<D>;
    slow "usage" usage::<D>;
    fast "map" map::<D>;
    fast "map, segments" map_request::<D>;
    fast "map, list" map_list::<D>;
    fast "map, placed" map_placed::<D>;
    fast "map, batch" map_batch::<D>;
    fast "map, typed" map_typed::<D>;
    fast "unmap" unmap::<D>;
    fast "unmap, by address" unmap_at::<D>;
    fast "unmap, typed" unmap_typed::<D>;
    fast "unmap, into batch" unmap_into::<D>;
    fast "unmap, typed batch" unmap_into_typed::<D>;
    fast "commit" commit::<D>;
    fast "commit, typed batch" commit_typed::<D>;
    slow "batch" batch::<D>;
    fast "tick" tick::<D>;
    slow_dyn "dyn close" close_dyn;
    slow_dyn "dyn attach" attach_dyn;
    slow_dyn "dyn usage" usage_dyn;
    fast_dyn "dyn map" map_dyn;
    fast_dyn "dyn map, placed" map_placed_dyn;
    fast_dyn "dyn map, batch" map_batch_dyn;
    fast_dyn "dyn unmap" unmap_dyn;
    fast_dyn "dyn unmap, into batch" unmap_into_dyn;
    fast_dyn "dyn commit" commit_dyn;
    slow_dyn "dyn batch" batch_dyn;
    fast_dyn "dyn tick" tick_dyn;
}

/// The caller says where the domain is to lie, and the return value is small.
unsafe fn open<D: Design<Host, Hardware>>(
    to: &mut MaybeUninit<Space<D>>,
    unit: Hardware,
    config: &DomainConfig<'_>,
) -> Result<(), NewDomainError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { Domain::unprotected_in(to, unit, Host, config) }.map(drop)
}

unsafe fn close<D: Design<Host, Hardware>>(space: &mut MaybeUninit<Space<D>>) {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.assume_init_drop() }
}

fn attach<D: Design<Host, Hardware>>(space: &Space<D>, device: SourceId) -> Result<(), AttachError> {
    space.attach(device)
}

fn detach<D: Design<Host, Hardware>>(space: &Space<D>, device: SourceId) -> Result<(), AttachError> {
    space.detach(device)
}

fn usage<D: Design<Host, Hardware>>(space: &Space<D>, to: &mut Usage) {
    *to = space.usage();
}

unsafe fn map<D: Design<Host, Hardware>>(
    space: &Space<D>,
    phys: PhysAddr,
    len: u64,
    access: Access,
) -> Result<Iova, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_raw(phys, len, access) }
}

unsafe fn map_request<D: Design<Host, Hardware>>(
    space: &Space<D>,
    request: &Request<'_>,
) -> Result<IovaRange, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_request(request) }
}

unsafe fn map_list<D: Design<Host, Hardware>>(
    space: &Space<D>,
    segments: &[Segment],
    access: Access,
    options: &MapOptions,
) -> Result<IovaRange, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_list(segments.iter().copied(), access, options) }
}

unsafe fn map_placed<D: Design<Host, Hardware>>(
    space: &Space<D>,
    phys: PhysAddr,
    len: u64,
    access: Access,
    options: &MapOptions,
) -> Result<Iova, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_raw_with(phys, len, access, options) }
}

unsafe fn map_batch<D: Design<Host, Hardware>>(
    space: &Space<D>,
    buffers: &[Segment],
    access: Access,
    to: &mut [Iova],
) -> Result<(), RawMapError> {
    let mut to = to.iter_mut();
    let mapped = |iova| to.next().into_iter().for_each(|to| *to = iova);
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_raw_batch(buffers, access, mapped) }
}

fn map_typed<D: Design<Host, Hardware>>(
    space: &Space<D>,
    buffer: Buffer,
    access: Access,
) -> Result<Mapping<Buffer>, MapFailure<Buffer>> {
    space.map(buffer, access)
}

fn unmap<D: Design<Host, Hardware>>(space: &Space<D>, iova: Iova, len: u64) -> Result<(), RawUnmapError> {
    space.unmap_raw(iova, len)
}

fn unmap_at<D: Design<Host, Hardware>>(space: &Space<D>, iova: Iova) -> Result<IovaRange, RawUnmapError> {
    space.unmap_raw_at(iova)
}

fn unmap_typed<D: Design<Host, Hardware>>(
    space: &Space<D>,
    mapping: Mapping<Buffer>,
) -> Result<Buffer, UnmapFailure<Buffer>> {
    space.unmap(mapping)
}

fn unmap_into<D: Design<Host, Hardware>>(
    space: &Space<D>,
    range: IovaRange,
    out: &mut Revocation,
) -> Result<(), UnmapError> {
    space.unmap_raw_into(range, out)
}

fn unmap_into_typed<D: Design<Host, Hardware>>(
    batch: &mut Batch<&Space<D>, Buffer>,
    mapping: Mapping<Buffer>,
) -> Result<(), Refused<Mapping<Buffer>, UnmapError>> {
    batch.unmap(mapping)
}

fn commit<D: Design<Host, Hardware>>(space: &Space<D>, revocation: &mut Revocation) -> Result<(), CommitError> {
    space.commit_raw(revocation)
}

fn commit_typed<D: Design<Host, Hardware>>(batch: &mut Batch<&Space<D>, Buffer>) -> Result<(), CommitError> {
    batch.commit_so_far().map(drop)
}

/// The batch is on the stack, where a driver may have it.
fn batch<D: Design<Host, Hardware>>(space: &Space<D>, iovas: &[Iova], len: u64) -> Result<(), RawUnmapError> {
    let mut batch: RawBatch<&Space<D>> = space.raw_batch();
    for iova in iovas {
        batch.unmap_raw(*iova, len)?;
    }
    Ok(batch.commit_so_far()?)
}

fn tick<D: Design<Host, Hardware>>(space: &Space<D>) -> Result<Option<u64>, CommitError> {
    space.tick().map(|()| space.due_us())
}

unsafe fn close_dyn(space: &mut MaybeUninit<DynDomain>) {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.assume_init_drop() }
}

fn attach_dyn(space: &DynDomain, device: SourceId) -> Result<(), AttachError> {
    space.attach(device)?;
    space.detach(device)
}

fn usage_dyn(space: &DynDomain, to: &mut Usage) {
    *to = space.usage();
}

unsafe fn map_dyn(space: &DynDomain, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_raw(phys, len, access) }
}

unsafe fn map_placed_dyn(
    space: &DynDomain,
    segments: &[Segment],
    access: Access,
    options: &MapOptions,
) -> Result<IovaRange, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_list(segments.iter().copied(), access, options) }
}

unsafe fn map_batch_dyn(
    space: &DynDomain,
    buffers: &[Segment],
    access: Access,
    to: &mut [Iova],
) -> Result<(), RawMapError> {
    let mut to = to.iter_mut();
    let mapped = |iova| to.next().into_iter().for_each(|to| *to = iova);
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_raw_batch(buffers, access, mapped) }
}

fn unmap_dyn(space: &DynDomain, iova: Iova, len: u64) -> Result<(), RawUnmapError> {
    space.unmap_raw(iova, len)
}

fn unmap_into_dyn(space: &DynDomain, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
    space.unmap_raw_into(range, out)
}

fn commit_dyn(space: &DynDomain, revocation: &mut Revocation) -> Result<(), CommitError> {
    space.commit_raw(revocation)
}

fn batch_dyn(space: &DynDomain, iovas: &[Iova], len: u64) -> Result<(), RawUnmapError> {
    let mut batch = space.raw_batch();
    for iova in iovas {
        batch.unmap_raw(*iova, len)?;
    }
    Ok(batch.commit_so_far()?)
}

fn tick_dyn(space: &DynDomain) -> Result<Option<u64>, CommitError> {
    space.tick().map(|()| space.due_us())
}
