//! Maps that are made together: what they write is made visible to the device once for a run of pages.

use super::mapping::Lent;
use super::{DmaBuffer, Domain, Mapping, Refused};
use crate::address::{Iova, IovaRange, Segment};
use crate::design::{Design, Mapper};
use crate::error::{MapError, RawMapError};
use crate::invalidation::BATCH_MAX;
use crate::iommu::Iommu;
use crate::platform::Platform;
use crate::proof::Proof;
use crate::request::{Access, Stream};
use crate::safety::Protection;
use arrayvec::ArrayVec;

/// Buffers that are mapped at once, at most.
pub const RUN_BUFFERS_MAX: usize = 16;

/// Buffers of a run that were not mapped, with the reason.
pub(super) type Unmapped<B> = Refused<ArrayVec<B, RUN_BUFFERS_MAX>, RawMapError>;

impl<D: Design<P, I>, P: Platform, I: Iommu> Domain<D, P, I> {
    /// Maps buffers, each by itself, as a driver does that fills its ring, and hands each mapping to `mapped` when the device may use it.
    ///
    /// Where buffers are pages or parts of one, designs that can write their translations side by side, and make those of a run visible
    /// at once. That saves most of what [`table_barrier`](Platform::table_barrier) takes, which is much where walkers do not snoop.
    ///
    /// ```
    /// # use portcullis::domain::DmaBuffer;
    /// # #[derive(Debug)]
    /// # struct Page(Segment);
    /// # // SAFETY: the segment never changes, and only the fake IOMMU "reaches" it.
    /// # unsafe impl DmaBuffer for Page {
    /// #     fn segments(&self) -> &[Segment] { core::slice::from_ref(&self.0) }
    /// # }
    /// # fn page(pfn: u64) -> Page { Page(Segment { phys: PhysAddr::from_pfn(pfn), len: 4096 }) }
    /// use portcullis::designs::Portcullis;
    /// use portcullis::iommu::fake::FakeIommu;
    /// use portcullis::platform::fake::FakeHost;
    /// use portcullis::{Access, Domain, PhysAddr, Protection, Segment};
    ///
    /// let host = FakeHost::default();
    /// let iommu = FakeIommu::new(&host);
    /// let domain = Domain::<Portcullis, _, _>::new(&iommu, &host, Protection::Strict)?;
    /// let mut ring = Vec::new();
    /// let filled = domain.map_batch((0..16).map(page), Access::DeviceWrites, |mapping| ring.push(mapping));
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
    /// Buffers that were taken and are not mapped, [`RUN_BUFFERS_MAX`] at most, with the error of the first. That one is not among them,
    /// but lost for good, where the error is [`RawMapError::Lost`] (S11).
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
            // None is dropped before the device is known not to have it, by a panic either.
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

    /// Maps physically contiguous buffers, each by itself, and hands the address of the first byte of each for the device to `mapped`, in
    /// their order: what [`map_batch`](Domain::map_batch) is for the raw face.
    ///
    /// # Errors
    /// A [`RawMapError`] of the first buffer whose address was not handed over; it and those behind it are not mapped.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw), for each.
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

/// What becomes of buffers that were taken, of which the first was not mapped.
#[cold]
#[inline(never)]
fn unmapped<B: DmaBuffer>(buffers: impl Iterator<Item = Lent<B>>, error: RawMapError) -> Unmapped<B> {
    // The device may have what is lost.
    let lost = usize::from(matches!(error, RawMapError::Lost(_)));
    let mut buffers = buffers;
    buffers.by_ref().take(lost).for_each(drop);
    Refused { value: buffers.map(|buffer| buffer.give_back(&Proof::never_visible())).collect(), error }
}
