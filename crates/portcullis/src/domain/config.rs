//! How a domain is opened.

use crate::address::{IovaRange, Segment};
use crate::mapper::Options;
use crate::safety::Protection;
use crate::sub_page::SubPage;

/// Settings of a new domain. Only the protection has no default.
#[derive(Clone, Copy, Debug)]
pub struct DomainConfig<'c> {
    /// How mappings are protected.
    pub protection: Protection,
    /// The number of address bits that the devices can drive, 13 to 64. If the IOMMU or its tables are narrower, their
    /// width applies. If addresses are those of [entries](crate::mapper::Addressing::Entries), devices are assumed to
    /// drive all 64.
    pub address_bits: u8,
    /// Ranges that are never allocated: those that the firmware reserves, and the windows of bridges. Page 0 and the
    /// interrupt range are always reserved and need not be listed.
    pub reserved: &'c [IovaRange],
    /// Physical memory in whole pages, for designs that map all of it once.
    pub memory: &'c [Segment],
    /// Parameters of the design that differ from its defaults. A design ignores parameters that it does not have.
    pub options: Options,
    /// What the domain does with a page that a buffer covers only in part (S8).
    pub sub_page: SubPage,
}

impl DomainConfig<'_> {
    /// 48-bit addresses, no reserved ranges, no memory, the design's default options, and partial pages exposed.
    pub const fn new(protection: Protection) -> Self {
        let (options, sub_page) = (Options::NONE, SubPage::Expose);
        Self { protection, address_bits: 48, reserved: &[], memory: &[], options, sub_page }
    }
}
