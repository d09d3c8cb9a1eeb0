//! Maps that are made together: the entries of a run of pages are made visible to the device at once.

use super::mapping::Lent;
use super::{DmaBuffer, Domain, Mapping, Refused};
use crate::address::{Iova, IovaRange, Segment};
use crate::error::{MapError, RawMapError};
use crate::invalidation::BATCH_MAX;
use crate::mapper::Mapper;
use crate::proof::Proof;
use crate::request::{Access, Stream};
use crate::safety::Protection;
use arrayvec::ArrayVec;

/// The largest number of buffers that are mapped at once.
pub const RUN_BUFFERS_MAX: usize = 16;

/// The buffers of a run that were not mapped, with the reason.
pub(super) type Unmapped<B> = Refused<ArrayVec<B, RUN_BUFFERS_MAX>, RawMapError>;

impl<M: Mapper + ?Sized> Domain<M> {
    /// Maps several buffers, each with a mapping of its own, as a driver does when it fills its ring. Each mapping is
    /// passed to `mapped` as soon as the device may use it.
    ///
    /// If a buffer is a page or lies within one, designs that support it write the translations of consecutive buffers
    /// side by side and make them visible together. This saves most calls of
    /// [`table_barrier`](crate::Platform::table_barrier), which are expensive where page walkers do not snoop.
    ///
    /// ```
    /// use portcullis::designs::Portcullis;
    /// use portcullis::domain::fake::FakeBuffer;
    /// use portcullis::iommu::fake::FakeIommu;
    /// use portcullis::platform::fake::FakeHost;
    /// use portcullis::{Access, Open, Protection};
    ///
    /// let host = FakeHost::default();
    /// let iommu = FakeIommu::new(&host);
    /// let domain = Portcullis::open(&iommu, &host, Protection::Strict)?;
    /// let mut ring = Vec::new();
    /// let filled = domain.map_batch((0..16).map(|_| FakeBuffer::new(1)), Access::DeviceWrites, |it| ring.push(it));
    /// assert!(filled.is_ok() && ring.len() == 16);
    /// // ... the device uses them; when it is done:
    /// let mut batch = domain.batch();
    /// for mapping in ring {
    ///     batch.unmap(mapping).expect("mapped here");
    /// }
    /// assert_eq!((batch.commit_so_far()?.count(), iommu.take_commands().len()), (16, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The buffers that were taken from `buffers` and not mapped, at most [`RUN_BUFFERS_MAX`], with the error of the
    /// first. If that error is [`RawMapError::Lost`], the first is not among them: it is lost for good (S11).
    pub fn map_batch<B: DmaBuffer>(
        &self,
        buffers: impl IntoIterator<Item = B>,
        access: Access,
        mapped: impl FnMut(Mapping<B>),
    ) -> Result<(), Unmapped<B>> {
        self.map_all(buffers, access, Stream::default(), mapped)
    }

    #[inline(always)]
    pub(super) fn map_all<B: DmaBuffer>(
        &self,
        buffers: impl IntoIterator<Item = B>,
        access: Access,
        stream: Stream,
        mut mapped: impl FnMut(Mapping<B>),
    ) -> Result<(), Unmapped<B>> {
        let mut buffers = buffers.into_iter();
        loop {
            // From here on no buffer is dropped, not even by a panic, until the device is known not to have it.
            let mut run = ArrayVec::<Lent<B>, RUN_BUFFERS_MAX>::new();
            let mut pages = ArrayVec::<Segment, RUN_BUFFERS_MAX>::new();
            let mut other = None;
            while !run.is_full() {
                let Some(buffer) = buffers.next().map(Lent::new) else { break };
                match *buffer.segments() {
                    [page] if self.short_way.takes_typed(page.phys.page_offset(), page.len) => {
                        pages.push(page);
                        run.push(buffer);
                    }
                    _ => {
                        other = Some(buffer);
                        break;
                    }
                }
            }
            let is_last = !run.is_full() && other.is_none();
            let (mut run, mut pages) = (run.drain(..), &pages[..]);
            while !pages.is_empty() {
                // SAFETY: the memory is that of a `DmaBuffer`, which has no other user until it is given back.
                let range = match unsafe { self.mapper.map_pages(pages, access, stream) } {
                    Ok(range) => range,
                    Err(error) => return Err(unmapped(run.chain(other), error)),
                };
                pages = &pages[range.pages() as usize..];
                for (pfn, buffer) in (range.first_pfn()..range.end_pfn()).zip(run.by_ref()) {
                    mapped(Mapping::new(buffer, IovaRange::of(pfn, 1), access, self.tag));
                }
            }
            if let Some(buffer) = other {
                let made = match self.protection {
                    // SAFETY: as above.
                    Protection::Strict => unsafe { self.map_segments(buffer.segments(), access, stream) },
                    _ => Err(MapError::NotStrict.into()),
                };
                match made {
                    Ok(range) => mapped(Mapping::new(buffer, range, access, self.tag)),
                    Err(error) => return Err(unmapped(core::iter::once(buffer), error)),
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Maps several physically contiguous buffers, each with a mapping of its own. Passes the address at which the
    /// device sees the first byte of each to `mapped`, in order. This is [`map_batch`](Domain::map_batch) for the raw
    /// interface.
    ///
    /// # Errors
    /// The [`RawMapError`] of the first buffer whose address was not passed on. That buffer and all after it are not
    /// mapped.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw), for each buffer.
    pub unsafe fn map_raw_batch(
        &self,
        buffers: &[Segment],
        access: Access,
        mut mapped: impl FnMut(Iova),
    ) -> Result<(), RawMapError> {
        let mut rest = buffers;
        while let [first, ..] = rest {
            let offset_of = |buffer: &Segment| self.short_way.offset_of(buffer.phys);
            let is_short = |buffer: &&Segment| self.short_way.takes_raw(offset_of(buffer), buffer.len);
            let short = rest.iter().take(BATCH_MAX).take_while(is_short).count();
            if short == 0 {
                // SAFETY: the caller's promise, passed on.
                let range = unsafe { self.map_segments(&[*first], access, Stream::default()) }?;
                mapped(Iova::new(range.start().as_u64() + offset_of(first)));
                rest = &rest[1..];
                continue;
            }
            // SAFETY: the caller's promise, passed on.
            let range = unsafe { self.mapper.map_pages(&rest[..short], access, Stream::default()) }?;
            let (made, others) = rest.split_at(range.pages() as usize);
            for (pfn, buffer) in (range.first_pfn()..).zip(made) {
                mapped(Iova::new(Iova::from_pfn(pfn).as_u64() + offset_of(buffer)));
            }
            rest = others;
        }
        Ok(())
    }
}

/// The buffers to give back, when the first of `buffers` could not be mapped.
#[cold]
#[inline(never)]
fn unmapped<B: DmaBuffer>(buffers: impl Iterator<Item = Lent<B>>, error: RawMapError) -> Unmapped<B> {
    // A lost buffer is not given back, because the device may reach it.
    let lost = usize::from(matches!(error, RawMapError::Lost(_)));
    let mut buffers = buffers;
    buffers.by_ref().take(lost).for_each(drop);
    Refused { value: buffers.map(|buffer| buffer.give_back(&Proof::never_visible())).collect(), error }
}
