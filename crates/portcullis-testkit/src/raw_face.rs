//! The raw interface without `unsafe`, and domains of every protection. That is sound because the IOMMU of a test has
//! no memory behind it.

use portcullis::mapper::{Design, Mapper};
use portcullis::{
    Access, Domain, DomainConfig, DomainOf, Iommu, Iova, IovaRange, MapError, MapOptions, NewDomainError, Open,
    PhysAddr, Platform, RawMapError, Request, Segment, SyncError,
};

/// Opens a domain as `config` says, under any protection.
///
/// # Errors
/// [`NewDomainError`].
pub fn open<D: Design<P, I>, P: Platform, I: Iommu>(
    iommu: I,
    platform: P,
    config: &DomainConfig<'_>,
) -> Result<DomainOf<D, P, I>, NewDomainError> {
    // SAFETY: the IOMMU of a test has no memory behind it.
    unsafe { D::open_unprotected(iommu, platform, config) }
}

/// The result of a map that loses no memory.
///
/// # Errors
/// The refusal.
///
/// # Panics
/// If the map has lost memory.
pub fn kept<T>(mapped: Result<T, RawMapError>) -> Result<T, MapError> {
    mapped.map_err(|error| match error {
        RawMapError::Refused(error) => error,
        RawMapError::Lost(error) => panic!("memory was lost: {error}"),
    })
}

/// Whether a buffer at `phys` is mapped by a request where both ways are possible. Bit 0 of its page number selects
/// the interface, and large buffers leave some of the other bits zero, so many bits count.
pub(crate) fn is_by_request(phys: PhysAddr) -> bool {
    (phys.pfn() >> 1).count_ones().is_multiple_of(2)
}

/// The maps of the raw interface, as safe functions: for domains whose IOMMU has no memory behind it, as over the
/// fakes.
pub trait RawFace {
    /// [`Domain::map_request`], as a safe function.
    ///
    /// # Errors
    /// [`RawMapError`].
    fn raw_map_or_lose(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError>;

    /// [`Domain::map_raw`], as a safe function.
    ///
    /// # Errors
    /// [`MapError`].
    ///
    /// # Panics
    /// If memory is lost.
    fn raw_map(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, MapError>;

    /// Maps through [`Domain::map_raw`] or [`Domain::map_request`], half of the pages each, by the page number.
    ///
    /// # Errors
    /// [`MapError`].
    ///
    /// # Panics
    /// If memory is lost.
    fn raw_map_either_way(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, MapError> {
        if is_by_request(phys) {
            let segments = [Segment { phys, len }];
            let range = self.raw_map_request(&Request::new(&segments, access)?)?;
            return Ok(Iova::new(range.start().as_u64() + phys.page_offset()));
        }
        self.raw_map(phys, len, access)
    }

    /// [`Domain::map_raw_with`], as a safe function.
    ///
    /// # Errors
    /// [`MapError`].
    ///
    /// # Panics
    /// If memory is lost.
    fn raw_map_with(&self, phys: PhysAddr, len: u64, access: Access, options: &MapOptions) -> Result<Iova, MapError>;

    /// Maps memory that the map is expected to lose, and returns the reason.
    ///
    /// # Panics
    /// If the map does not lose the memory.
    fn raw_map_lost(&self, phys: PhysAddr, len: u64, access: Access) -> SyncError {
        let segments = [Segment { phys, len }];
        match self.raw_map_or_lose(&Request::new(&segments, access).expect("a buffer")) {
            Err(RawMapError::Lost(error)) => error,
            other => panic!("the memory was not lost: {other:?}"),
        }
    }

    /// [`Domain::map_request`], as a safe function that expects no loss.
    ///
    /// # Errors
    /// [`MapError`].
    ///
    /// # Panics
    /// If memory is lost.
    fn raw_map_request(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        kept(self.raw_map_or_lose(request))
    }
}

impl<M: Mapper + ?Sized> RawFace for Domain<M> {
    fn raw_map_or_lose(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        // SAFETY: the IOMMU of a test has no memory behind it.
        unsafe { self.map_request(request) }
    }

    fn raw_map(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, MapError> {
        // SAFETY: as above.
        kept(unsafe { self.map_raw(phys, len, access) })
    }

    fn raw_map_with(&self, phys: PhysAddr, len: u64, access: Access, options: &MapOptions) -> Result<Iova, MapError> {
        // SAFETY: as above.
        kept(unsafe { self.map_raw_with(phys, len, access, options) })
    }
}
