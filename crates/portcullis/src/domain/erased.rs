//! A domain whose type names neither its design nor its host nor its IOMMU. Adapters, C code, and programs whose users
//! choose the design need it.

use super::open::Face;
use super::{Domain, DomainConfig};
use crate::address::{IovaRange, PhysAddr, Segment};
use crate::design::{Addressing, Design, DesignInfo, DomainSetup, Info, Mapper, Usage};
use crate::designs::{DesignId, Visitor};
use crate::entry::{Entry, Frame};
use crate::error::{CommitError, NewDomainError, NoMemory, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::Revocation;
use crate::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use crate::placement::Placement;
use crate::platform::memory::{boxed, try_reserve_by, try_room};
use crate::platform::{Context, CpuHint, CpuWords, Lock, LockClass, Platform, Wait};
use crate::proof::Committed;
use crate::request::{Access, Request, Stream};
use crate::sub_page::{BouncePages, Chain};
use crate::sync::{AtomicU64, AtomicUsize};
use alloc::boxed::Box;

/// A domain of any design. Each call of its mapper goes through a table of functions. In all else it behaves as any
/// [`Domain`].
///
/// ```
/// use portcullis::designs::DesignId;
/// use portcullis::iommu::fake::FakeIommu;
/// use portcullis::platform::fake::FakeHost;
/// use portcullis::{DomainConfig, DynDomain, Protection};
///
/// let host: &FakeHost = Box::leak(Box::default());
/// let iommu: &FakeIommu = Box::leak(Box::new(FakeIommu::new(host)));
/// let design = DesignId::by_id("magazine").expect("a design");
/// let domain: DynDomain = DynDomain::open(design, iommu, host, &DomainConfig::new(Protection::Strict))?;
/// assert_eq!(domain.info().id, "magazine");
/// # Ok::<(), portcullis::NewDomainError>(())
/// ```
pub type DynDomain = Domain<Erased, Erased, Erased>;

/// Takes the place of the design, the host and the IOMMU in the type of a [`DynDomain`]. It has no values.
#[derive(Clone, Copy, Debug)]
pub enum Erased {}

impl<D: Design<P, I>, P: Platform, I: Iommu> Domain<D, P, I> {
    /// Turns the domain, with its devices and mappings, into one whose type does not name its design.
    ///
    /// # Errors
    /// [`NoMemory`]; the domain has been dropped then.
    pub fn erase(self) -> Result<DynDomain, NoMemory>
    where
        D::Mapper: 'static,
    {
        let Self { mapper, protection, sub_page, tag, short_way, last, rings, info } = self;
        let room = try_reserve_by(|allocate| mapper.allocate(Context::MaySleep, allocate), 1)?;
        let mapper = boxed::<D::Mapper>(room, mapper);
        Ok(Domain { mapper, protection, sub_page, tag, short_way, last, rings, info })
    }
}

impl DynDomain {
    /// A domain of `design`. All checks of [`Domain::with_config`] apply.
    ///
    /// # Errors
    /// A [`NewDomainError`].
    pub fn open<P: Platform + 'static, I: Iommu + 'static>(
        design: DesignId,
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<Self, NewDomainError> {
        Self::refuse_unprotected(design.info(), config)?;
        // SAFETY: the protection is not `None`.
        unsafe { Self::open_unprotected(design, iommu, platform, config) }
    }

    /// A domain of `design`, which may have [`Protection::None`](crate::Protection::None).
    ///
    /// # Errors
    /// A [`NewDomainError`].
    ///
    /// # Safety
    /// That of [`Domain::unprotected`].
    pub unsafe fn open_unprotected<P: Platform + 'static, I: Iommu + 'static>(
        design: DesignId,
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<Self, NewDomainError> {
        struct Open<'c, P, I>(I, P, &'c DomainConfig<'c>);
        impl<P: Platform + 'static, I: Iommu + 'static> Visitor<P, I> for Open<'_, P, I> {
            type Output = Result<DynDomain, NewDomainError>;

            fn visit<D: Design<P, I>>(self) -> Self::Output {
                let Self(iommu, platform, config) = self;
                let mut mapper = try_room::<D::Mapper, _>(&platform, Context::MaySleep)?;
                // SAFETY: the promise of the caller of `open_unprotected`, passed on.
                let Face { protection, sub_page, tag, short_way, last } =
                    unsafe { Domain::<D, P, I>::build_in(&mut mapper, iommu, platform, config) }?;
                // SAFETY: made just now.
                let mapper: Box<dyn Mapper> = unsafe { mapper.assume_init() };
                let rings = AtomicUsize::new(0);
                Ok(Domain { mapper, protection, sub_page, tag, short_way, last, rings, info: &D::INFO })
            }
        }
        design.visit(Open(iommu, platform, config))
    }
}

impl DesignInfo for Erased {
    /// Describes no real design; [`Domain::info`] describes the actual one. It lists no protection, so no domain can
    /// be made from it.
    const INFO: Info = Info {
        id: "erased",
        source: "a design that is chosen at run time",
        allocator: "its own",
        invalidation: "its own",
        tables: "its own",
        protections: &[],
        breaches: &[],
        addressing: Addressing::Own,
        fit: None,
        batch_default: 1,
        options: &[],
    };
}

// SAFETY: it builds nothing.
unsafe impl Design<Erased, Erased> for Erased {
    type Mapper = Box<dyn Mapper>;

    unsafe fn build(setup: DomainSetup<'_, Erased, Erased>) -> Result<Self::Mapper, NewDomainError> {
        match setup.iommu {}
    }
}

// SAFETY: forwards to a mapper that keeps the promises.
unsafe impl Mapper for Box<dyn Mapper> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).map(request) }
    }

    unsafe fn map_apart(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).map_apart(request) }
    }

    unsafe fn map_pages(&self, segments: &[Segment], access: Access, stream: Stream) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).map_pages(segments, access, stream) }
    }

    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).map_placed(request, placement) }
    }

    fn allocate(&self, context: Context, allocate: &mut dyn FnMut()) {
        (**self).allocate(context, allocate);
    }

    fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        (**self).reserve_tables(tables)
    }

    fn tables_max(&self, pages: u64) -> usize {
        (**self).tables_max(pages)
    }

    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        (**self).unmap(range, out)
    }

    fn commit(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        (**self).commit(revocation)
    }

    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        (**self).unmap_now(range)
    }

    fn unmap_apart(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        (**self).unmap_apart(range)
    }

    fn unmap_bounced_now(
        &self,
        range: IovaRange,
        pages: &mut Chain,
        part: &mut Option<Segment>,
    ) -> Result<Committed, RawUnmapError> {
        (**self).unmap_bounced_now(range, pages, part)
    }

    fn tick(&self) -> Result<(), CommitError> {
        (**self).tick()
    }

    fn due_us(&self) -> Option<u64> {
        (**self).due_us()
    }

    fn table_pages(&self) -> usize {
        (**self).table_pages()
    }

    fn usage(&self) -> Usage {
        (**self).usage()
    }

    fn bounce_pages(&self) -> Option<BouncePages<'_>> {
        (**self).bounce_pages()
    }

    fn id(&self) -> DomainId {
        (**self).id()
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        (**self).attach(device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        (**self).detach(device)
    }
}

impl<T> Lock<T> for Erased {
    fn with<R>(&self, _critical: impl FnOnce(&mut T) -> R) -> R {
        match *self {}
    }
}

// SAFETY: the type has no values.
unsafe impl CpuWords for Erased {
    fn lines(&self) -> usize {
        match *self {}
    }

    fn word(&self, _line: usize, _word: usize) -> &AtomicU64 {
        match *self {}
    }
}

// SAFETY: the type has no values.
unsafe impl Platform for Erased {
    type Lock<T: Send> = Self;
    type CpuWords = Self;

    fn lock<T: Send>(&self, _class: LockClass, _value: T) -> Self {
        *self
    }

    fn cpu(&self) -> CpuHint {
        match *self {}
    }

    fn cpus(&self) -> u32 {
        match *self {}
    }

    fn allocate_frame(&self, _context: Context) -> Result<PhysAddr, NoMemory> {
        match *self {}
    }

    unsafe fn frame(&self, _frame: PhysAddr) -> &Frame {
        match *self {}
    }

    unsafe fn free_frame(&self, _frame: PhysAddr) {
        match *self {}
    }

    fn table_barrier(&self, _entries: &[Entry], _coherent: bool) {
        match *self {}
    }

    fn cpu_words(&self, _value: u64) -> Result<Self, NoMemory> {
        match *self {}
    }

    fn now_us(&self) -> u64 {
        match *self {}
    }

    fn pause(&self, _wait: Wait) {
        match *self {}
    }
}

// SAFETY: the type has no values.
unsafe impl Iommu for Erased {
    type Ticket = Self;

    fn capabilities(&self) -> Capabilities {
        match *self {}
    }

    unsafe fn open_domain(&self, _translation: Translation) -> Result<DomainId, AttachError> {
        match *self {}
    }

    unsafe fn close_domain(&self, _domain: DomainId) -> Result<(), AttachError> {
        match *self {}
    }

    fn attach(&self, _domain: DomainId, _device: SourceId) -> Result<(), AttachError> {
        match *self {}
    }

    fn detach(&self, _domain: DomainId, _device: SourceId) -> Result<(), AttachError> {
        match *self {}
    }

    fn submit(&self, _commands: &[Invalidation]) -> Result<Self, QueueError> {
        match *self {}
    }

    fn is_done(&self, _ticket: Self) -> Result<bool, QueueError> {
        match *self {}
    }
}
