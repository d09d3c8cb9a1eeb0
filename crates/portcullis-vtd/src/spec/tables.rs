//! Root and context tables of legacy mode (§9.1, §9.3), which hardware reads from memory. Each table is one page of
//! 256 entries of 128 bits, the low quadword first. [`portcullis::table`] has the second-level entries (§9.8).

use portcullis::iommu::{DomainId, SourceId};
use portcullis::{PAGE_SIZE, PhysAddr};
use thiserror::Error;

pub use portcullis::table::{ADDRESS_MASK, ENTRIES, EntryValue, LEVEL_BITS, Rights};

/// Entries in a root or context table.
pub const TABLE_ENTRIES: usize = 256;

/// The index of a device's root entry: its bus.
#[inline]
pub const fn root_index(source: SourceId) -> usize {
    (source.requester() >> 8) as usize
}

/// The index of a device's context entry in the table of its bus: device and function.
#[inline]
pub const fn context_index(source: SourceId) -> usize {
    (source.requester() & 0xff) as usize
}

const PRESENT: u64 = 1 << 0;
const PAGE_MASK: u64 = !(PAGE_SIZE - 1);

/// What is wrong with an entry that software wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// Reserved bits are set.
    #[error("reserved bits are set in the table entry {high:#018x}:{low:#018x}")]
    Reserved {
        /// The low quadword as it was read.
        low: u64,
        /// The high quadword as it was read.
        high: u64,
    },
}

/// A present root entry (§9.1): the address of the context table of a bus. An absent entry has bit 0 clear.
///
/// ```text
///  127       64 63           12 11       1 0
/// +------------+---------------+----------+-+
/// |  reserved  | context table | reserved |P|
/// +------------+---------------+----------+-+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootEntry {
    /// The context table, page-aligned.
    pub context_table: PhysAddr,
}

impl RootEntry {
    /// The two quadwords, low first.
    pub const fn encode(self) -> [u64; 2] {
        [(self.context_table.as_u64() & PAGE_MASK) | PRESENT, 0]
    }

    /// Decodes two quadwords. `None` if the entry is not present.
    ///
    /// # Errors
    /// [`TableError::Reserved`].
    pub const fn decode([low, high]: [u64; 2]) -> Result<Option<Self>, TableError> {
        if low & PRESENT == 0 {
            return Ok(None);
        }
        if low & !PAGE_MASK & !PRESENT != 0 || high != 0 {
            return Err(TableError::Reserved { low, high });
        }
        Ok(Some(Self { context_table: PhysAddr::new(low & PAGE_MASK) }))
    }
}

/// `TT` of a context entry: which requests are translated, and how (§9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TranslationType {
    /// Untranslated requests go through the tables; translated and translation requests are faults.
    Untranslated = 0,
    /// As `Untranslated`, but devices may also translate addresses themselves (ATS).
    WithDeviceTlb = 1,
    /// Untranslated requests pass unchanged; translated and translation requests are faults.
    PassThrough = 2,
    /// Untranslated requests go through rings ([`portcullis::iommu::rings`]). The specification reserves this value,
    /// and no VT-d unit supports it.
    Rings = 3,
}

/// A present context entry (§9.3): how a device's requests are translated. An absent entry has bit 0 clear.
///
/// ```text
///  127  88 87    72 71   70 67 66 64 | 63            12 11   4 3  2  1  0
/// +-------+--------+----+-----+-----+|+----------------+------+----+---+-+
/// | rsvd  | domain |rsvd| ign | AW  ||| table (ASR)    | rsvd | TT |FPD|P|
/// +-------+--------+----+-----+-----+|+----------------+------+----+---+-+
/// ```
///
/// `AW` is the number of levels less two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextEntry {
    /// `FPD`: faults of this device are not recorded.
    pub faults_disabled: bool,
    /// `TT`.
    pub translation_type: TranslationType,
    /// `ASR`: the root of the second-level table, or the table of rings. Ignored under pass-through.
    pub table: PhysAddr,
    /// Number of table levels, 2 to 9. Hardware refuses depths that its `SAGAW` lacks. Entries for pass-through and
    /// rings state the deepest table that the hardware supports.
    pub levels: u8,
    /// `DID`: the domain id, which tags what hardware caches.
    pub domain: DomainId,
}

impl ContextEntry {
    const FAULTS_DISABLED: u64 = 1 << 1;
    const TYPE_SHIFT: u32 = 2;
    const LOW_RESERVED: u64 = 0xff0;
    const DOMAIN_SHIFT: u32 = 8;
    const HIGH_RESERVED: u64 = !0xff_ff7f;

    /// The two quadwords, low first.
    pub const fn encode(self) -> [u64; 2] {
        let low = (self.table.as_u64() & PAGE_MASK)
            | (self.translation_type as u64) << Self::TYPE_SHIFT
            | if self.faults_disabled { Self::FAULTS_DISABLED } else { 0 }
            | PRESENT;
        let high = (self.domain.0 as u64) << Self::DOMAIN_SHIFT | (self.levels.saturating_sub(2) & 7) as u64;
        [low, high]
    }

    /// Decodes two quadwords. `None` if the entry is not present.
    ///
    /// # Errors
    /// [`TableError::Reserved`].
    pub const fn decode([low, high]: [u64; 2]) -> Result<Option<Self>, TableError> {
        if low & PRESENT == 0 {
            return Ok(None);
        }
        if low & Self::LOW_RESERVED != 0 || high & Self::HIGH_RESERVED != 0 {
            return Err(TableError::Reserved { low, high });
        }
        let translation_type = match (low >> Self::TYPE_SHIFT) & 3 {
            0 => TranslationType::Untranslated,
            1 => TranslationType::WithDeviceTlb,
            2 => TranslationType::PassThrough,
            _ => TranslationType::Rings,
        };
        Ok(Some(Self {
            faults_disabled: Self::is_fault_disabled(low),
            translation_type,
            table: PhysAddr::new(low & PAGE_MASK),
            levels: (high & 7) as u8 + 2,
            domain: DomainId((high >> Self::DOMAIN_SHIFT) as u16),
        }))
    }

    /// Whether the low quadword of a context entry says that faults of the device are not recorded. Hardware also
    /// honors the bit in entries that are not present or not valid.
    pub const fn is_fault_disabled(low: u64) -> bool {
        low & Self::FAULTS_DISABLED != 0
    }
}
