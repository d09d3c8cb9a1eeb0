//! Opening a domain: as a return value, in place, or with a design that is chosen at run time.

use super::mapping::Tag;
use super::partial_pages::ShortWay;
use super::{Domain, DomainConfig};
use crate::address::PAGE_SHIFT;
use crate::error::NewDomainError;
use crate::in_place::{built, in_place};
use crate::iommu::{Capabilities, Iommu};
use crate::mapper::{AnyDesign, Design, DomainSetup, Info, Mapper, Visitor};
use crate::platform::memory::try_room;
use crate::platform::{Context, Platform};
use crate::safety::Protection;
use crate::sub_page::SubPage;
use crate::sync::AtomicUsize;
use alloc::boxed::Box;
use core::mem::MaybeUninit;

/// The domain that design `D` makes on a host `P` for an IOMMU `I`.
pub type DomainOf<D, P, I> = Domain<<D as Design<P, I>>::Mapper>;

/// Opens domains of a design. Every design has this trait, and nothing else can.
pub trait Open<P: Platform, I: Iommu>: Design<P, I> {
    /// A domain with 48-bit addresses and nothing reserved beyond page 0 and the interrupt range.
    ///
    /// # Errors
    /// [`NewDomainError::Protection`] if the design does not offer the protection, [`NewDomainError::Unprotected`] for
    /// [`Protection::None`], [`NewDomainError::Width`] and [`NewDomainError::NoRings`] if the IOMMU cannot do what the
    /// design needs, [`NewDomainError::NoMemory`], and [`NewDomainError::Attach`] if the IOMMU has no domain left.
    fn open(iommu: I, platform: P, protection: Protection) -> Result<DomainOf<Self, P, I>, NewDomainError> {
        Self::open_with(iommu, platform, &DomainConfig::new(protection))
    }

    /// A domain with the settings in `config`.
    ///
    /// # Errors
    /// Those of [`open`](Open::open); [`NewDomainError::BadRange`] for a range of the configuration that is empty or
    /// not of whole pages, [`NewDomainError::CannotBounce`] and [`NewDomainError::Exposed`] for what the domain is to
    /// do with partial pages, and [`NewDomainError::Identity`] if memory that the design maps at once cannot be mapped.
    fn open_with(iommu: I, platform: P, config: &DomainConfig<'_>) -> Result<DomainOf<Self, P, I>, NewDomainError> {
        refuse_unprotected(&Self::INFO, config)?;
        // SAFETY: the protection is not `None`.
        unsafe { Self::open_unprotected(iommu, platform, config) }
    }

    /// A domain with the settings in `config`, which may name [`Protection::None`]. A device then reaches memory
    /// whether it is mapped or not.
    ///
    /// # Errors
    /// Those of [`open_with`](Open::open_with), without [`NewDomainError::Unprotected`].
    ///
    /// # Safety
    /// Under [`Protection::None`] all memory, or all of `config.memory` if the design has a table, is intended for
    /// every device that is attached, even if other domains are protected.
    unsafe fn open_unprotected(
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<DomainOf<Self, P, I>, NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        built(|to| unsafe { Self::open_unprotected_in(to, iommu, platform, config) })
    }

    /// Makes a domain as [`open_with`](Open::open_with) does, in the place `to`. Use it where stacks are small, as in
    /// kernels.
    ///
    /// ```
    /// use portcullis::designs::Portcullis;
    /// use portcullis::iommu::fake::FakeIommu;
    /// use portcullis::platform::fake::FakeHost;
    /// use portcullis::{DomainConfig, Open, Protection};
    ///
    /// let host = FakeHost::default();
    /// let iommu = FakeIommu::new(&host);
    /// let mut room = Box::new_uninit();
    /// let config = DomainConfig::new(Protection::Strict);
    /// let domain = Portcullis::open_in(&mut room, &iommu, &host, &config)?;
    /// assert_eq!(domain.info().id, "portcullis");
    /// // SAFETY: made just now.
    /// drop(unsafe { room.assume_init() });
    /// # Ok::<(), portcullis::NewDomainError>(())
    /// ```
    ///
    /// # Errors
    /// A [`NewDomainError`]; `to` is uninitialized then.
    fn open_in<'d>(
        to: &'d mut MaybeUninit<DomainOf<Self, P, I>>,
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<&'d mut DomainOf<Self, P, I>, NewDomainError> {
        refuse_unprotected(&Self::INFO, config)?;
        // SAFETY: the protection is not `None`.
        unsafe { Self::open_unprotected_in(to, iommu, platform, config) }
    }

    /// Makes a domain as [`open_unprotected`](Open::open_unprotected) does, in the place `to`.
    ///
    /// # Errors
    /// A [`NewDomainError`]; `to` is uninitialized then.
    ///
    /// # Safety
    /// That of [`open_unprotected`](Open::open_unprotected).
    unsafe fn open_unprotected_in<'d>(
        to: &'d mut MaybeUninit<DomainOf<Self, P, I>>,
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<&'d mut DomainOf<Self, P, I>, NewDomainError> {
        let info: &'static Info = &Self::INFO;
        let DomainConfig { protection, address_bits, .. } = *config;
        if !info.protections.contains(&protection) {
            return Err(NewDomainError::Protection);
        }
        if info.physical_addresses() && config.sub_page != SubPage::Expose {
            return Err(NewDomainError::Exposed);
        }
        // If devices reach single bytes and not whole pages, partial pages need no protection.
        let sub_page = if info.addressing.opens_pages() { config.sub_page } else { SubPage::Expose };
        let width = width(info, address_bits, &iommu.capabilities());
        if address_bits > 64 || width <= PAGE_SHIFT as u8 {
            return Err(NewDomainError::Width(address_bits));
        }
        let DomainConfig { reserved, memory, options, .. } = config;
        let setup = DomainSetup { iommu, platform, protection, width, reserved, memory, options, sub_page };
        Ok(in_place!(to => DomainOf::<Self, P, I> {
            // SAFETY: the design offers this protection and the hardware this width; the caller promises the rest.
            mapper <- |mapper| unsafe { Self::build_in(mapper, setup) },
            sub_page: match sub_page {
                SubPage::Bounce if mapper.space().bounce_pages().is_none() => return Err(NewDomainError::CannotBounce),
                can => can,
            },
            protection: protection,
            tag: Tag::new(info.addressing, *sub_page),
            short_way: ShortWay::of(config.protection, *sub_page, info.addressing, *tag),
            last: u64::MAX >> (64 - width),
            rings: AtomicUsize::new(0),
            info: info,
        }))
    }
}

impl<D: Design<P, I>, P: Platform, I: Iommu> Open<P, I> for D {}

/// A domain of any design: each call of its mapper goes through a table of functions. Adapters, C code, and programs
/// whose users choose the design need it. A boxed domain of a known design turns into one by itself, with its devices
/// and mappings.
///
/// ```
/// use portcullis::designs::Portcullis;
/// use portcullis::iommu::fake::FakeIommu;
/// use portcullis::platform::fake::FakeHost;
/// use portcullis::{DynDomain, Open, Protection};
///
/// let host: &FakeHost = Box::leak(Box::default());
/// let iommu: &FakeIommu = Box::leak(Box::new(FakeIommu::new(host)));
/// let domain: Box<DynDomain> = Box::new(Portcullis::open(iommu, host, Protection::Strict)?);
/// assert_eq!(domain.info().id, "portcullis");
/// # Ok::<(), portcullis::NewDomainError>(())
/// ```
pub type DynDomain = Domain<dyn Mapper>;

impl DynDomain {
    /// A domain of `design`. All checks of [`Open::open_with`] apply.
    ///
    /// # Errors
    /// Those of [`Open::open_with`].
    pub fn open<P: Platform + 'static, I: Iommu + 'static>(
        design: impl AnyDesign,
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<Box<Self>, NewDomainError> {
        refuse_unprotected(design.info(), config)?;
        // SAFETY: the protection is not `None`.
        unsafe { Self::open_unprotected(design, iommu, platform, config) }
    }

    /// A domain of `design`, which may have [`Protection::None`].
    ///
    /// # Errors
    /// Those of [`Open::open_unprotected`].
    ///
    /// # Safety
    /// That of [`Open::open_unprotected`].
    pub unsafe fn open_unprotected<P: Platform + 'static, I: Iommu + 'static>(
        design: impl AnyDesign,
        iommu: I,
        platform: P,
        config: &DomainConfig<'_>,
    ) -> Result<Box<Self>, NewDomainError> {
        struct Opening<'c, P, I>(I, P, &'c DomainConfig<'c>);
        impl<P: Platform + 'static, I: Iommu + 'static> Visitor<P, I> for Opening<'_, P, I> {
            type Output = Result<Box<DynDomain>, NewDomainError>;

            fn visit<D: Design<P, I>>(self) -> Self::Output {
                let Self(iommu, platform, config) = self;
                let mut room = try_room::<DomainOf<D, P, I>, _>(&platform, Context::MaySleep)?;
                // SAFETY: the promise of the caller of `open_unprotected`, passed on.
                unsafe { D::open_unprotected_in(&mut room, iommu, platform, config) }?;
                // SAFETY: made just now.
                Ok(unsafe { room.assume_init() })
            }
        }
        design.visit(Opening(iommu, platform, config))
    }
}

fn refuse_unprotected(info: &Info, config: &DomainConfig<'_>) -> Result<(), NewDomainError> {
    match config.protection {
        Protection::None if info.protections.contains(&Protection::None) => Err(NewDomainError::Unprotected),
        _ => Ok(()),
    }
}

/// The width in bits of the addresses that a domain may allocate.
fn width(info: &Info, address_bits: u8, capabilities: &Capabilities) -> u8 {
    if !info.addressing.opens_pages() {
        // The address of an entry does not go through a page table, and the device is built for its width.
        return 64;
    }
    let by_format = match (capabilities.four_level, capabilities.three_level) {
        (true, _) => 48,
        (false, true) => 39,
        (false, false) => 0,
    };
    address_bits.min(capabilities.address_bits).min(by_format)
}
