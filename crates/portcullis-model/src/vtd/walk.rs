//! Page walks: reading tables, without caches and without time.

use crate::parameters::Parameters;
use crate::ram::Ram;
use portcullis::table::{ADDRESS_MASK, EntryValue, LEVEL_BITS, Rights};
use portcullis::{Iova, PAGE_SHIFT, PhysAddr, SourceId};
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::spec::tables::{ContextEntry, RootEntry, TranslationType, context_index, root_index};

/// Bytes of a root or context entry.
const CONTEXT_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 8;
/// The deepest supported table.
const LEVELS_MAX: usize = 4;
/// Snoop control. Reserved, because `ECAP.SC` is clear.
const SNOOP: u64 = 1 << 11;
/// Transient mapping. Reserved, because there are no device-TLBs.
const TRANSIENT: u64 = 1 << 62;
const PAGE_SIZE_BIT: u64 = 1 << 7;

/// The addresses of interrupt messages (§3.14). A request to one is not translated, and no translation may lead to
/// one.
const INTERRUPTS: core::ops::RangeInclusive<u64> = 0xfee0_0000..=0xfeef_ffff;

/// Whether an address is in the interrupt range.
#[inline]
pub(super) fn is_interrupt(address: u64) -> bool {
    INTERRUPTS.contains(&address)
}

/// log2 of the bytes that an entry of a table at `level` covers; leaf tables are at level 1.
#[inline]
pub(super) const fn level_shift(level: u8) -> u32 {
    PAGE_SHIFT + LEVEL_BITS * (level as u32 - 1)
}

/// The reserved bits of an entry by level, and the levels that may hold leaves.
pub(super) struct Format {
    reserved: u64,
    large: [bool; LEVELS_MAX + 1],
}

impl Format {
    pub(super) fn new(parameters: &Parameters) -> Self {
        let beyond = ADDRESS_MASK & !((1 << parameters.physical_bits) - 1);
        let large = [false, false, parameters.leaf_2m, parameters.leaf_1g, false];
        Self { reserved: beyond | SNOOP | TRANSIENT, large }
    }

    fn is_valid(&self, entry: EntryValue, level: u8) -> bool {
        if entry.bits() & self.reserved != 0 {
            return false;
        }
        if level == 1 || !entry.is_large() {
            return true;
        }
        let below = ((1 << level_shift(level)) - 1) & ADDRESS_MASK;
        self.large[level as usize] && entry.bits() & below == 0
    }
}

/// A translation: the address of the leaf with the rights of the whole walk, and log2 of the size of the leaf in
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leaf {
    pub(super) entry: EntryValue,
    pub(super) shift: u32,
}

impl Leaf {
    /// The physical address of `iova`.
    #[inline]
    pub(super) fn phys(&self, iova: Iova) -> PhysAddr {
        PhysAddr::new(self.entry.phys().as_u64() | (iova.as_u64() & ((1 << self.shift) - 1)))
    }

    /// The address that a request for `iova` with these rights reaches.
    #[inline]
    pub(super) fn admit(&self, iova: Iova, rights: Rights) -> Result<PhysAddr, FaultReason> {
        if !self.entry.rights().allows(rights) {
            return Err(refusal(rights));
        }
        let phys = self.phys(iova);
        if is_interrupt(phys.as_u64()) { Err(FaultReason::InterruptRange) } else { Ok(phys) }
    }
}

/// A pointer for each level below the top, or [`NO_POINTER`].
pub(super) type Pointers = [EntryValue; LEVELS_MAX - 1];

/// What stands for no pointer. A pointer that a walk has followed grants a right.
pub(super) const NO_POINTER: EntryValue = EntryValue::from_bits(0);

/// The result of a walk, and what the walk has read.
pub(super) struct Found {
    pub(super) result: Result<Leaf, FaultReason>,
    /// Pointers followed, indexed by the level of the table pointed to, less one, with the rights down to that level.
    pub(super) pointers: Pointers,
    /// The level of the last read.
    pub(super) level: u8,
    /// Whether the walk read a page that is not allocated: a table that was freed too early (S4).
    pub(super) into_freed: bool,
}

/// The reason for refusing a request that lacks a right.
#[inline]
pub(super) fn refusal(rights: Rights) -> FaultReason {
    if rights.allows(Rights::WRITE) { FaultReason::NoWrite } else { FaultReason::NoRead }
}

/// Walks from the table that `pointer` names, at `level`, down to the leaf for `iova`.
pub(super) fn walk(
    ram: &Ram,
    format: &Format,
    mut pointer: EntryValue,
    mut level: u8,
    iova: Iova,
    rights: Rights,
) -> Found {
    let mut pointers = [NO_POINTER; LEVELS_MAX - 1];
    let mut into_freed = false;
    let result = loop {
        let slot = (iova.as_u64() >> level_shift(level)) & ((1 << LEVEL_BITS) - 1);
        let at = PhysAddr::new(pointer.phys().as_u64() + slot * ENTRY_BYTES);
        let Some(bits) = ram.hardware_read_u64(at) else { break Err(FaultReason::TableAccess) };
        into_freed |= !ram.is_allocated(at);
        let entry = EntryValue::from_bits(bits);
        if !entry.is_present() {
            break Err(refusal(rights));
        }
        if !format.is_valid(entry, level) {
            break Err(FaultReason::EntryReserved);
        }
        // A right holds only if every level grants it.
        let granted = entry.bits() & pointer.bits() & READ_WRITE;
        pointer = EntryValue::from_bits(entry.phys().as_u64() | granted);
        if !pointer.rights().allows(rights) {
            break Err(refusal(rights));
        }
        if level == 1 || entry.bits() & PAGE_SIZE_BIT != 0 {
            let leaf = Leaf { entry: pointer, shift: level_shift(level) };
            break leaf.admit(iova, rights).map(|_| leaf);
        }
        level -= 1;
        pointers[level as usize - 1] = pointer;
    };
    Found { result, pointers, level, into_freed }
}

const READ_WRITE: u64 = 0b11;

/// A refused context: why, and whether the fault is recorded.
pub(super) type ContextRefusal = (FaultReason, bool);

/// Reads the root entry and the context entry of `source`. `into_freed` is set if one of them lies in a page that is
/// not allocated.
pub(super) fn context(
    ram: &Ram,
    parameters: &Parameters,
    root: PhysAddr,
    source: SourceId,
    into_freed: &mut bool,
) -> Result<ContextEntry, ContextRefusal> {
    let mut read = |table: PhysAddr, index: usize| {
        let low = PhysAddr::new(table.as_u64().wrapping_add(index as u64 * CONTEXT_BYTES));
        let high = PhysAddr::new(low.as_u64().wrapping_add(ENTRY_BYTES));
        let entry = Some([ram.hardware_read_u64(low)?, ram.hardware_read_u64(high)?]);
        *into_freed |= !ram.is_allocated(low);
        entry
    };
    let entry = read(root, root_index(source)).ok_or((FaultReason::RootAccess, true))?;
    let root = match RootEntry::decode(entry) {
        // Address bits beyond the hardware's physical addresses are reserved, here and in context entries.
        Ok(Some(root)) if root.context_table.as_u64() >> parameters.physical_bits != 0 => {
            return Err((FaultReason::RootReserved, true));
        }
        Ok(Some(root)) => root,
        Ok(None) => return Err((FaultReason::RootNotPresent, true)),
        Err(_) => return Err((FaultReason::RootReserved, true)),
    };
    let entry = read(root.context_table, context_index(source)).ok_or((FaultReason::ContextAccess, true))?;
    let recorded = !ContextEntry::is_fault_disabled(entry[0]);
    let context = match ContextEntry::decode(entry) {
        // Under pass-through no table is used, so its address is not checked.
        Ok(Some(context))
            if context.translation_type != TranslationType::PassThrough
                && context.table.as_u64() >> parameters.physical_bits != 0 =>
        {
            return Err((FaultReason::ContextReserved, recorded));
        }
        Ok(Some(context)) => context,
        Ok(None) => return Err((FaultReason::ContextNotPresent, recorded)),
        Err(_) => return Err((FaultReason::ContextReserved, recorded)),
    };
    let possible = match context.translation_type {
        TranslationType::Untranslated => true,
        TranslationType::PassThrough => parameters.pass_through,
        TranslationType::WithDeviceTlb => false,
        TranslationType::Rings => parameters.rings,
    };
    let numbered = u32::from(context.domain.0) < 1 << parameters.domain_id_bits;
    if possible && numbered && parameters.has_levels(context.levels) {
        Ok(context)
    } else {
        Err((FaultReason::ContextInvalid, recorded))
    }
}
