//! Descriptors of the invalidation queue (§6.5.2), 128 bits each, the low quadword first.

use portcullis::iommu::{DomainId, SourceId};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use thiserror::Error;

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 16;

/// Type field of a descriptor, bits 3:0; bits 11:9 extend it and are zero for all of these.
mod kind {
    pub(super) const CONTEXT_CACHE: u64 = 1;
    pub(super) const IOTLB: u64 = 2;
    pub(super) const DEVICE_TLB: u64 = 3;
    pub(super) const INTERRUPT_ENTRY_CACHE: u64 = 4;
    pub(super) const WAIT: u64 = 5;
}

/// Granularity field of context-cache and IOTLB descriptors, bits 5:4. Zero is reserved.
mod granularity {
    pub(super) const GLOBAL: u64 = 1;
    pub(super) const DOMAIN: u64 = 2;
    /// One device for the context cache, pages for the IOTLB.
    pub(super) const SELECTIVE: u64 = 3;
}

const GRANULARITY_SHIFT: u32 = 4;
const DOMAIN_SHIFT: u32 = 16;
const SOURCE_SHIFT: u32 = 32;
const PAGE_MASK: u64 = !(PAGE_SIZE - 1);

/// Whether hardware may take these words for a wait, which writes to memory. Hardware that does not know the bits that
/// extend the type ignores them.
pub(crate) const fn is_wait([low, _]: [u64; 2]) -> bool {
    low & 0xf == kind::WAIT
}

/// The scope of a context-cache invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContextScope {
    /// All entries.
    Global,
    /// The entries of one domain.
    Domain(DomainId),
    /// The entry of one device, or of some of its functions.
    Device {
        /// The domain that the device was in.
        domain: DomainId,
        /// The device.
        source: SourceId,
        /// `FM`: the number of function bits that are ignored, 0 to 3.
        function_mask: u8,
    },
}

/// The scope of an invalidation of the IOTLB and the paging-structure caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IotlbScope {
    /// All entries.
    Global,
    /// The entries of one domain.
    Domain(DomainId),
    /// The entries of one domain that translate a run of pages.
    Pages {
        /// The domain.
        domain: DomainId,
        /// The first page. Hardware ignores the address bits that `mask` covers.
        first: Iova,
        /// `AM`: log2 of the number of pages, 0 to 63.
        mask: u8,
        /// `IH`, the invalidation hint: only leaves have changed, and paging-structure entries may stay.
        leaf_only: bool,
    },
}

/// The write that a wait descriptor makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusWrite {
    /// The physical address, a multiple of 4.
    pub address: PhysAddr,
    /// The value.
    pub data: u32,
}

/// An invalidation descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidationDescriptor {
    /// Invalidates the context cache (§6.5.2.1).
    ///
    /// ```text
    ///  127     64 | 63  50 49 48 47  32 31   16 15  6 5 4 3 0
    /// +----------+|+------+-----+------+-------+-----+---+---+
    /// | reserved ||| rsvd | FM  | SID  |  DID  |rsvd | G | 1 |
    /// +----------+|+------+-----+------+-------+-----+---+---+
    /// ```
    ContextCache(ContextScope),
    /// Invalidates the IOTLB and the paging-structure caches (§6.5.2.3).
    ///
    /// ```text
    ///  127  76 75 71 70 69 64 | 63    32 31   16 15  8 7  6  5 4 3 0
    /// +-------+-----+--+-----+|+--------+-------+-----+--+--+---+---+
    /// | ADDR  |rsvd |IH| AM  ||| rsvd   |  DID  |rsvd |DR|DW| G | 2 |
    /// +-------+-----+--+-----+|+--------+-------+-----+--+--+---+---+
    /// ```
    Iotlb {
        /// The scope of the invalidation.
        scope: IotlbScope,
        /// `DW`: completes only after the writes in flight have landed.
        drain_writes: bool,
        /// `DR`: completes only after the reads in flight have been answered.
        drain_reads: bool,
    },
    /// Invalidates a device-TLB (§6.5.2.5).
    ///
    /// ```text
    ///  127  76 75 65 64 | 63      52 51 48 47  32 31  21 20 16 15     12 11  4 3 0
    /// +-------+-----+--+|+----------+-----+------+------+-----+---------+-----+---+
    /// | ADDR  |rsvd |S |||PFSID 15:4|rsvd | SID  | rsvd | MIP |PFSID 3:0|rsvd | 3 |
    /// +-------+-----+--+|+----------+-----+------+------+-----+---------+-----+---+
    /// ```
    DeviceTlb {
        /// The device.
        source: SourceId,
        /// `PFSID`: the source id of its physical function.
        physical_function: SourceId,
        /// `MIP`: the number of such invalidations that the device accepts at once; 0 means 32.
        pending_max: u8,
        /// `ADDR`: the page or, with `sized`, the pages. The lowest clear bit then encodes their number.
        address: Iova,
        /// `S`: the address encodes more than one page.
        sized: bool,
    },
    /// Invalidates the interrupt entry cache (§6.5.2.7).
    ///
    /// ```text
    ///  127     64 | 63  48 47  32 31  27 26   5 4 3 0
    /// +----------+|+------+------+------+------+-+---+
    /// | reserved ||| rsvd | IIDX |  IM  | rsvd |G| 4 |
    /// +----------+|+------+------+------+------+-+---+
    /// ```
    InterruptEntryCache {
        /// The first entry and log2 of the number of entries; `None` for all entries.
        entries: Option<(u16, u8)>,
    },
    /// Reports that everything ahead of it has completed (§6.5.2.8).
    ///
    /// ```text
    ///  127            66 65 64 | 63         32 31    8 7  6  5  4  3 0
    /// +-----------------+-----+|+-------------+-------+--+--+--+--+---+
    /// | status address  |rsvd ||| status data | rsvd  |PD|FN|SW|IF| 5 |
    /// +-----------------+-----+|+-------------+-------+--+--+--+--+---+
    /// ```
    Wait {
        /// `SW`: the write that is made once everything ahead has completed.
        status: Option<StatusWrite>,
        /// `IF`: an interrupt is raised at that point.
        interrupt: bool,
        /// `FN`: descriptors behind this one are not started before that point.
        fence: bool,
        /// `PD`: page requests in flight are drained too.
        drain_page_requests: bool,
    },
}

/// The descriptor of an IOTLB invalidation of one page, encoded in advance, except for the domain and the page. Most
/// unmaps need this descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnePage([u64; 2]);

impl OnePage {
    /// Encodes the descriptor with these flags.
    pub const fn new(leaf_only: bool, drain_writes: bool, drain_reads: bool) -> Self {
        let scope = IotlbScope::Pages { domain: DomainId(0), first: Iova::new(0), mask: 0, leaf_only };
        Self(InvalidationDescriptor::Iotlb { scope, drain_writes, drain_reads }.encode())
    }

    /// The low quadword, without a domain.
    pub const fn form(self) -> u64 {
        self.0[0]
    }

    /// The encoded descriptor for the page of `first`, in `domain`. The offset of `first` within its page is dropped.
    #[inline(always)]
    pub const fn at(self, domain: DomainId, first: Iova) -> [u64; 2] {
        [self.0[0] | (domain.0 as u64) << DOMAIN_SHIFT, self.0[1] | first.as_u64() & PAGE_MASK]
    }
}

/// Why hardware refuses a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidationDescriptorError {
    /// The type is unknown.
    #[error("no invalidation descriptor has type {0:#x}")]
    Type(u16),
    /// The granularity has the reserved value.
    #[error("the invalidation descriptor {0:#018x} has a reserved granularity")]
    Granularity(u64),
    /// Reserved bits are set.
    #[error("reserved bits are set in the invalidation descriptor {high:#018x}:{low:#018x}")]
    Reserved {
        /// The low quadword as it was read.
        low: u64,
        /// The high quadword as it was read.
        high: u64,
    },
}

const fn flag(set: bool, bit: u32) -> u64 {
    (set as u64) << bit
}

const fn bit(word: u64, bit: u32) -> bool {
    word >> bit & 1 != 0
}

impl InvalidationDescriptor {
    /// The two quadwords, low first. Fields that are too wide lose their high bits; addresses lose their low bits.
    // Callers know the type and most of the fields at compile time, so inlining folds most of this away.
    #[inline(always)]
    pub const fn encode(self) -> [u64; 2] {
        match self {
            Self::ContextCache(scope) => {
                let scope = match scope {
                    ContextScope::Global => granularity::GLOBAL << GRANULARITY_SHIFT,
                    ContextScope::Domain(domain) => {
                        granularity::DOMAIN << GRANULARITY_SHIFT | (domain.0 as u64) << DOMAIN_SHIFT
                    }
                    ContextScope::Device { domain, source, function_mask } => {
                        granularity::SELECTIVE << GRANULARITY_SHIFT
                            | (domain.0 as u64) << DOMAIN_SHIFT
                            | (source.requester() as u64) << SOURCE_SHIFT
                            | (function_mask as u64 & 3) << 48
                    }
                };
                [kind::CONTEXT_CACHE | scope, 0]
            }
            Self::Iotlb { scope, drain_writes, drain_reads } => {
                let common = kind::IOTLB | flag(drain_writes, 6) | flag(drain_reads, 7);
                match scope {
                    IotlbScope::Global => [common | granularity::GLOBAL << GRANULARITY_SHIFT, 0],
                    IotlbScope::Domain(domain) => {
                        [common | granularity::DOMAIN << GRANULARITY_SHIFT | (domain.0 as u64) << DOMAIN_SHIFT, 0]
                    }
                    IotlbScope::Pages { domain, first, mask, leaf_only } => [
                        common | granularity::SELECTIVE << GRANULARITY_SHIFT | (domain.0 as u64) << DOMAIN_SHIFT,
                        (first.as_u64() & PAGE_MASK) | flag(leaf_only, 6) | (mask as u64 & 0x3f),
                    ],
                }
            }
            Self::DeviceTlb { source, physical_function, pending_max, address, sized } => [
                kind::DEVICE_TLB
                    | (physical_function.requester() as u64 & 0xf) << 12
                    | (pending_max as u64 & 0x1f) << 16
                    | (source.requester() as u64) << SOURCE_SHIFT
                    | (physical_function.requester() as u64 >> 4) << 52,
                (address.as_u64() & PAGE_MASK) | flag(sized, 0),
            ],
            Self::InterruptEntryCache { entries: None } => [kind::INTERRUPT_ENTRY_CACHE, 0],
            Self::InterruptEntryCache { entries: Some((index, mask)) } => {
                [kind::INTERRUPT_ENTRY_CACHE | 1 << 4 | (mask as u64 & 0x1f) << 27 | (index as u64) << 32, 0]
            }
            Self::Wait { status, interrupt, fence, drain_page_requests } => {
                let common = kind::WAIT | flag(interrupt, 4) | flag(fence, 6) | flag(drain_page_requests, 7);
                match status {
                    None => [common, 0],
                    Some(write) => [common | 1 << 5 | (write.data as u64) << 32, write.address.as_u64() & !3],
                }
            }
        }
    }

    /// Decodes two quadwords as hardware does.
    ///
    /// # Errors
    /// [`InvalidationDescriptorError`].
    pub const fn decode([low, high]: [u64; 2]) -> Result<Self, InvalidationDescriptorError> {
        let kind = low & 0xf | (low >> 9 & 7) << 4;
        let reserved = match kind {
            kind::CONTEXT_CACHE => [!0x0003_ffff_ffff_003f, u64::MAX],
            kind::IOTLB => [!0x0000_0000_ffff_00ff, 0xf80],
            kind::DEVICE_TLB => [!0xfff0_ffff_001f_f00f, 0xffe],
            kind::INTERRUPT_ENTRY_CACHE => [!0x0000_ffff_f800_001f, u64::MAX],
            kind::WAIT => [0xffff_ff00, 0b11],
            _ => return Err(InvalidationDescriptorError::Type(kind as u16)),
        };
        if low & reserved[0] != 0 || high & reserved[1] != 0 {
            return Err(InvalidationDescriptorError::Reserved { low, high });
        }
        let domain = DomainId((low >> DOMAIN_SHIFT) as u16);
        let source = SourceId::from_requester((low >> SOURCE_SHIFT) as u16);
        let granularity = low >> GRANULARITY_SHIFT & 3;
        Ok(match kind {
            kind::CONTEXT_CACHE => Self::ContextCache(match granularity {
                granularity::GLOBAL => ContextScope::Global,
                granularity::DOMAIN => ContextScope::Domain(domain),
                granularity::SELECTIVE => ContextScope::Device { domain, source, function_mask: (low >> 48 & 3) as u8 },
                _ => return Err(InvalidationDescriptorError::Granularity(low)),
            }),
            kind::IOTLB => Self::Iotlb {
                scope: match granularity {
                    granularity::GLOBAL => IotlbScope::Global,
                    granularity::DOMAIN => IotlbScope::Domain(domain),
                    granularity::SELECTIVE => IotlbScope::Pages {
                        domain,
                        first: Iova::new(high & PAGE_MASK),
                        mask: (high & 0x3f) as u8,
                        leaf_only: bit(high, 6),
                    },
                    _ => return Err(InvalidationDescriptorError::Granularity(low)),
                },
                drain_writes: bit(low, 6),
                drain_reads: bit(low, 7),
            },
            kind::DEVICE_TLB => Self::DeviceTlb {
                source,
                physical_function: SourceId::from_requester((low >> 12 & 0xf | (low >> 52) << 4) as u16),
                pending_max: (low >> 16 & 0x1f) as u8,
                address: Iova::new(high & PAGE_MASK),
                sized: bit(high, 0),
            },
            kind::INTERRUPT_ENTRY_CACHE => Self::InterruptEntryCache {
                entries: if bit(low, 4) { Some(((low >> 32) as u16, (low >> 27 & 0x1f) as u8)) } else { None },
            },
            _ => Self::Wait {
                status: if bit(low, 5) {
                    Some(StatusWrite { address: PhysAddr::new(high), data: (low >> 32) as u32 })
                } else {
                    None
                },
                interrupt: bit(low, 4),
                fence: bit(low, 6),
                drain_page_requests: bit(low, 7),
            },
        })
    }
}
