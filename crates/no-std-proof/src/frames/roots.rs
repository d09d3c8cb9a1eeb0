//! The operations of a domain.

use super::{Hardware, Host, Root};
use alloc::boxed::Box;
use core::mem::MaybeUninit;
use portcullis::domain::{Batch, DmaBuffer, MapFailure, Mapping, RawBatch, Refused, UnmapFailure};
use portcullis::error::{CommitError, NewDomainError, RawMapError, RawUnmapError, UnmapError};
use portcullis::invalidation::Runs;
use portcullis::iommu::AttachError;
use portcullis::mapper::{Design, Mapper, Usage};
use portcullis::{
    Access, Domain, DomainConfig, DomainOf, DynDomain, Iova, IovaRange, MapOptions, Open, PhysAddr, Request, Segment,
    SourceId,
};

type Space<D> = DomainOf<D, Host, Hardware>;

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
    slow "attach" attach::<D::Mapper>;
    slow "detach" detach::<D::Mapper>;
    slow "usage" usage::<D::Mapper>;
    fast "map" map::<D::Mapper>;
    fast "map, segments" map_request::<D::Mapper>;
    fast "map, list" map_list::<D::Mapper>;
    fast "map, placed" map_placed::<D::Mapper>;
    fast "map, batch" map_batch::<D::Mapper>;
    fast "map, typed" map_typed::<D::Mapper>;
    fast "unmap" unmap::<D::Mapper>;
    fast "unmap, by address" unmap_at::<D::Mapper>;
    fast "unmap, typed" unmap_typed::<D::Mapper>;
    fast "unmap, into batch" unmap_into::<D::Mapper>;
    fast "unmap, typed batch" unmap_into_typed::<D::Mapper>;
    fast "commit" commit::<D::Mapper>;
    fast "commit, typed batch" commit_typed::<D::Mapper>;
    slow "batch" batch::<D::Mapper>;
    fast "tick" tick::<D::Mapper>;
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
    unsafe { D::open_unprotected_in(to, unit, Host, config) }.map(drop)
}

unsafe fn close<D: Design<Host, Hardware>>(space: &mut MaybeUninit<Space<D>>) {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.assume_init_drop() }
}

fn attach<M: Mapper>(space: &Domain<M>, device: SourceId) -> Result<(), AttachError> {
    space.attach(device)
}

fn detach<M: Mapper>(space: &Domain<M>, device: SourceId) -> Result<(), AttachError> {
    space.detach(device)
}

fn usage<M: Mapper>(space: &Domain<M>, to: &mut Usage) {
    *to = space.usage();
}

unsafe fn map<M: Mapper>(space: &Domain<M>, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_raw(phys, len, access) }
}

unsafe fn map_request<M: Mapper>(space: &Domain<M>, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_request(request) }
}

unsafe fn map_list<M: Mapper>(
    space: &Domain<M>,
    segments: &[Segment],
    access: Access,
    options: &MapOptions,
) -> Result<IovaRange, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_list(segments.iter().copied(), access, options) }
}

unsafe fn map_placed<M: Mapper>(
    space: &Domain<M>,
    phys: PhysAddr,
    len: u64,
    access: Access,
    options: &MapOptions,
) -> Result<Iova, RawMapError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_raw_with(phys, len, access, options) }
}

unsafe fn map_batch<M: Mapper>(
    space: &Domain<M>,
    buffers: &[Segment],
    access: Access,
    to: &mut [Iova],
) -> Result<(), RawMapError> {
    let mut to = to.iter_mut();
    let mapped = |iova| to.next().into_iter().for_each(|to| *to = iova);
    // SAFETY: the caller's promise, passed on.
    unsafe { space.map_raw_batch(buffers, access, mapped) }
}

fn map_typed<M: Mapper>(
    space: &Domain<M>,
    buffer: Buffer,
    access: Access,
) -> Result<Mapping<Buffer>, MapFailure<Buffer>> {
    space.map(buffer, access)
}

fn unmap<M: Mapper>(space: &Domain<M>, iova: Iova, len: u64) -> Result<(), RawUnmapError> {
    space.unmap_raw(iova, len)
}

fn unmap_at<M: Mapper>(space: &Domain<M>, iova: Iova) -> Result<IovaRange, RawUnmapError> {
    space.unmap_raw_at(iova)
}

fn unmap_typed<M: Mapper>(space: &Domain<M>, mapping: Mapping<Buffer>) -> Result<Buffer, UnmapFailure<Buffer>> {
    space.unmap(mapping)
}

fn unmap_into<M: Mapper>(space: &Domain<M>, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
    space.unmap_raw_into(range, out)
}

fn unmap_into_typed<M: Mapper>(
    batch: &mut Batch<&Domain<M>, Buffer>,
    mapping: Mapping<Buffer>,
) -> Result<(), Refused<Mapping<Buffer>, UnmapError>> {
    batch.unmap(mapping)
}

fn commit<M: Mapper>(space: &Domain<M>, revocation: &mut Runs) -> Result<(), CommitError> {
    space.commit_raw(revocation)
}

fn commit_typed<M: Mapper>(batch: &mut Batch<&Domain<M>, Buffer>) -> Result<(), CommitError> {
    batch.commit_so_far().map(drop)
}

/// The batch is on the stack, where a driver may have it.
fn batch<M: Mapper>(space: &Domain<M>, iovas: &[Iova], len: u64) -> Result<(), RawUnmapError> {
    let mut batch: RawBatch<&Domain<M>> = space.raw_batch();
    for iova in iovas {
        batch.unmap_raw(*iova, len)?;
    }
    Ok(batch.commit_so_far()?)
}

fn tick<M: Mapper>(space: &Domain<M>) -> Result<Option<u64>, CommitError> {
    space.tick().map(|()| space.due_us())
}

fn close_dyn(space: Box<DynDomain>) {
    drop(space);
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

fn unmap_into_dyn(space: &DynDomain, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
    space.unmap_raw_into(range, out)
}

fn commit_dyn(space: &DynDomain, revocation: &mut Runs) -> Result<(), CommitError> {
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
