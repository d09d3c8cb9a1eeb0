//! Opening a domain: as a return value, or in place.

use super::mapping::Tag;
use super::unexposed::ShortWay;
use super::{Domain, DomainConfig};
use crate::address::PAGE_SHIFT;
use crate::design::{Design, DomainSetup, Info, Mapper};
use crate::error::NewDomainError;
use crate::in_place;
use crate::iommu::{Capabilities, Iommu};
use crate::platform::Platform;
use crate::safety::Protection;
use crate::sub_page::SubPage;
use crate::sync::AtomicUsize;
use core::mem::MaybeUninit;

/// The fields of a new domain other than its mapper.
pub(super) struct Face {
    pub(super) protection: Protection,
    pub(super) sub_page: SubPage,
    pub(super) tag: Tag,
    pub(super) short_way: ShortWay,
    pub(super) last: u64,
}

impl<D: Design<P, I>, P: Platform, I: Iommu> Domain<D, P, I> {
    /// A domain with 48-bit addresses and nothing reserved beyond page 0 and the interrupt range.
    ///
    /// # Errors
    /// A [`NewDomainError`].
    pub fn new(iommu: I, platform: P, protection: Protection) -> Result<Self, NewDomainError> {
        Self::with_config(iommu, platform, &DomainConfig::new(protection))
    }

    /// A domain with the settings in `config`.
    ///
    /// # Errors
    /// A [`NewDomainError`]; [`NewDomainError::Unprotected`] for [`Protection::None`].
    pub fn with_config(iommu: I, platform: P, config: &DomainConfig<'_>) -> Result<Self, NewDomainError> {
        Self::refuse_unprotected(&D::INFO, config)?;
        // SAFETY: the protection is not `None`.
        unsafe { Self::unprotected(iommu, platform, config) }
    }

    pub(super) fn refuse_unprotected(info: &Info, config: &DomainConfig<'_>) -> Result<(), NewDomainError> {
        match config.protection {
            Protection::None if info.protections.contains(&Protection::None) => Err(NewDomainError::Unprotected),
            _ => Ok(()),
        }
    }

    /// A domain with the settings in `config`, which may name [`Protection::None`]. A device then reaches memory
    /// whether it is mapped or not.
    ///
    /// # Errors
    /// A [`NewDomainError`].
    ///
    /// # Safety
    /// Under [`Protection::None`] all memory, or all of `config.memory` if the design has a table, is intended for
    /// every device that is attached, even if other domains are protected.
    pub unsafe fn unprotected(iommu: I, platform: P, config: &DomainConfig<'_>) -> Result<Self, NewDomainError> {
        let mut domain = MaybeUninit::uninit();
        // SAFETY: the caller's promise, passed on.
        unsafe { Self::unprotected_in(&mut domain, iommu, platform, config) }?;
        // SAFETY: made just now.
        Ok(unsafe { domain.assume_init() })
    }

    /// Makes a domain as [`with_config`](Domain::with_config) does, in the place `to`. Use it where stacks are small,
    /// as in kernels.
    ///
    /// ```
    /// use portcullis::designs::Portcullis;
    /// use portcullis::iommu::fake::FakeIommu;
    /// use portcullis::platform::fake::FakeHost;
    /// use portcullis::{Domain, DomainConfig, Protection};
    ///
    /// let host = FakeHost::default();
    /// let iommu = FakeIommu::new(&host);
    /// let mut room = Box::new_uninit();
    /// let config = DomainConfig::new(Protection::Strict);
    /// let domain = Domain::<Portcullis, _, _>::with_config_in(&mut room, &iommu, &host, &config)?;
    /// assert_eq!(domain.info().id, "portcullis");
    /// // SAFETY: made just now.
    /// drop(unsafe { room.assume_init() });
    /// # Ok::<(), portcullis::NewDomainError>(())
    /// ```
    ///
    /// # Errors
    /// A [`NewDomainError`]; `to` is uninitialized then.
    pub fn with_config_in<'d>(
        to: &'d mut MaybeUninit<Self>,
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<&'d mut Self, NewDomainError> {
        Self::refuse_unprotected(&D::INFO, config)?;
        // SAFETY: the protection is not `None`.
        unsafe { Self::unprotected_in(to, iommu, platform, config) }
    }

    /// Makes a domain as [`unprotected`](Domain::unprotected) does, in the place `to`.
    ///
    /// # Errors
    /// A [`NewDomainError`]; `to` is uninitialized then.
    ///
    /// # Safety
    /// That of [`unprotected`](Domain::unprotected).
    pub unsafe fn unprotected_in<'d>(
        to: &'d mut MaybeUninit<Self>,
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<&'d mut Self, NewDomainError> {
        let at = to.as_mut_ptr();
        // SAFETY: the mapper's place inside `to`, as uninitialized memory for one.
        let mapper = unsafe { in_place::part(&raw mut (*at).mapper) };
        // SAFETY: the caller's promise, passed on.
        let Face { protection, sub_page, tag, short_way, last } =
            unsafe { Self::build_in(mapper, iommu, platform, config) }?;
        // Names every field: if `Domain` gets another one, this does not compile.
        let _ = |Self { mapper: _, protection: _, sub_page: _, tag: _, short_way: _, last: _, rings: _, info: _ }: &Self| {};
        // SAFETY: within `to`; the mapper was made just now.
        unsafe {
            (&raw mut (*at).protection).write(protection);
            (&raw mut (*at).sub_page).write(sub_page);
            (&raw mut (*at).tag).write(tag);
            (&raw mut (*at).short_way).write(short_way);
            (&raw mut (*at).last).write(last);
            (&raw mut (*at).rings).write(AtomicUsize::new(0));
            (&raw mut (*at).info).write(&D::INFO);
            Ok(to.assume_init_mut())
        }
    }

    /// Makes the mapper of a new domain in `to`. Returns the domain's other fields.
    ///
    /// # Errors
    /// A [`NewDomainError`]; `to` is uninitialized then.
    ///
    /// # Safety
    /// That of [`unprotected`](Domain::unprotected).
    pub(super) unsafe fn build_in(
        to: &mut MaybeUninit<D::Mapper>,
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<Face, NewDomainError> {
        if !D::INFO.protections.contains(&config.protection) {
            return Err(NewDomainError::Protection);
        }
        if D::INFO.physical_addresses() && config.sub_page != SubPage::Expose {
            return Err(NewDomainError::Exposed);
        }
        // If devices reach single bytes and not whole pages, partial pages need no protection.
        let sub_page = if D::INFO.addressing.opens_pages() { config.sub_page } else { SubPage::Expose };
        let width = Self::width(config, &iommu.capabilities());
        if config.address_bits > 64 || width <= PAGE_SHIFT as u8 {
            return Err(NewDomainError::Width(config.address_bits));
        }
        let setup = DomainSetup {
            iommu,
            platform,
            protection: config.protection,
            width,
            reserved: config.reserved,
            memory: config.memory,
            options: &config.options,
            sub_page,
        };
        // SAFETY: the design offers this protection and the hardware this width; the caller promises the rest.
        unsafe { D::build_in(to, setup) }?;
        // SAFETY: made just now.
        let mapper = unsafe { to.assume_init_ref() };
        if sub_page == SubPage::Bounce && mapper.bounce_pages().is_none() {
            // SAFETY: made just now, and not used after this.
            unsafe { to.assume_init_drop() };
            return Err(NewDomainError::CannotBounce);
        }
        let (protection, addressing) = (config.protection, D::INFO.addressing);
        let tag = Tag::new(addressing, sub_page);
        let short_way = ShortWay::of(protection, sub_page, addressing, tag);
        let last = u64::MAX >> (64 - width);
        Ok(Face { protection, sub_page, tag, short_way, last })
    }

    /// The width in bits of the addresses that the domain may allocate.
    fn width(config: &DomainConfig<'_>, capabilities: &Capabilities) -> u8 {
        if !D::INFO.addressing.opens_pages() {
            // The address of an entry does not go through a page table, and the device is built for its width.
            return 64;
        }
        let by_format = match (capabilities.four_level, capabilities.three_level) {
            (true, _) => 48,
            (false, true) => 39,
            (false, false) => 0,
        };
        config.address_bits.min(capabilities.address_bits).min(by_format)
    }
}
