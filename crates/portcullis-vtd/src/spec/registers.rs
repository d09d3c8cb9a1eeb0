//! Registers: their offsets, and the meaning of their bits (§10.4).

/// Version register, 32 bits (§10.4.1): major in bits 7:4, minor in bits 3:0.
pub const VER: u32 = 0x00;
/// [`Capability`] register, 64 bits (§10.4.2).
pub const CAP: u32 = 0x08;
/// [`ExtendedCapability`] register, 64 bits (§10.4.3).
pub const ECAP: u32 = 0x10;
/// Global command register, 32 bits, write-only (§10.4.4). Bits: [`global`].
pub const GCMD: u32 = 0x18;
/// Global status register, 32 bits, read-only (§10.4.5). Bits: [`global`].
pub const GSTS: u32 = 0x1c;
/// Root table address register, 64 bits (§10.4.6): bits 63:12; bits 11:10 zero select legacy mode.
pub const RTADDR: u32 = 0x20;
/// Context command register, 64 bits (§10.4.7). Not used while the invalidation queue is on.
pub const CCMD: u32 = 0x28;
/// Fault status register, 32 bits (§10.4.9). Bits: [`faults::status`](super::faults::status).
pub const FSTS: u32 = 0x34;
/// Fault event control register, 32 bits (§10.4.10). Bits: [`fault_event`].
pub const FECTL: u32 = 0x38;
/// Fault event data register, 32 bits (§10.4.11).
pub const FEDATA: u32 = 0x3c;
/// Fault event address register, 32 bits (§10.4.12).
pub const FEADDR: u32 = 0x40;
/// Fault event upper address register, 32 bits (§10.4.13).
pub const FEUADDR: u32 = 0x44;
/// Protected memory enable register, 32 bits (§10.4.16). Bits: [`protected_memory`].
pub const PMEN: u32 = 0x64;
/// Invalidation queue head register, 64 bits, read-only (§10.4.21): bytes from the base, bits 18:4.
pub const IQH: u32 = 0x80;
/// Invalidation queue tail register, 64 bits (§10.4.22): bytes from the base, bits 18:4.
pub const IQT: u32 = 0x88;
/// Invalidation queue address register, 64 bits (§10.4.23): base in bits 63:12, `DW` (256-bit descriptors) in bit 11,
/// size in bits 2:0 (2^size pages).
pub const IQA: u32 = 0x90;
/// Invalidation completion status register, 32 bits (§10.4.24). Bit 0: a wait with an interrupt has completed.
pub const ICS: u32 = 0x9c;
/// Invalidation event control register, 32 bits (§10.4.25). Bits: [`fault_event`], same layout.
pub const IECTL: u32 = 0xa0;
/// Invalidation event data register, 32 bits (§10.4.26).
pub const IEDATA: u32 = 0xa4;
/// Invalidation event address register, 32 bits (§10.4.27).
pub const IEADDR: u32 = 0xa8;
/// Invalidation event upper address register, 32 bits (§10.4.28).
pub const IEUADDR: u32 = 0xac;

/// Interrupt remapping table address register, 64 bits (§10.4.29). Bits: [`interrupt_table`].
pub const IRTA: u32 = 0xb8;

/// The smallest register block that a unit decodes, in bytes.
pub const BLOCK_BYTES: u32 = 0x1000;
/// Shift from a byte offset in [`IQH`] and [`IQT`] to the index of a 128-bit descriptor.
pub const QUEUE_INDEX_SHIFT: u32 = 4;
/// Bits of [`IQH`] and [`IQT`] that hold the offset.
pub const QUEUE_OFFSET_MASK: u64 = 0x7_fff0;

/// Bits of [`GCMD`] and, as status, of [`GSTS`] (§10.4.4, §10.4.5).
///
/// ```text
///  31  30   29  28   27  26  25   24   23  22      0
/// +--+----+---+----+---+---+---+-----+---+----------+
/// |TE|SRTP|SFL|EAFL|WBF|QIE|IRE|SIRTP|CFI| reserved |
/// +--+----+---+----+---+---+---+-----+---+----------+
/// ```
pub mod global {
    /// Translation enable.
    pub const TRANSLATION: u32 = 1 << 31;
    /// Set root table pointer. One-shot.
    pub const ROOT_TABLE: u32 = 1 << 30;
    /// Set fault log. One-shot.
    pub const FAULT_LOG: u32 = 1 << 29;
    /// Enable advanced fault logging.
    pub const ADVANCED_FAULTS: u32 = 1 << 28;
    /// Write-buffer flush. One-shot; the status bit is set while the flush is under way.
    pub const WRITE_BUFFER_FLUSH: u32 = 1 << 27;
    /// Queued invalidation enable.
    pub const QUEUED_INVALIDATION: u32 = 1 << 26;
    /// Interrupt remapping enable.
    pub const INTERRUPT_REMAPPING: u32 = 1 << 25;
    /// Set interrupt remapping table pointer. One-shot.
    pub const INTERRUPT_TABLE: u32 = 1 << 24;
    /// Compatibility format interrupts.
    pub const COMPATIBILITY_INTERRUPTS: u32 = 1 << 23;
    /// Commands that act once. Software that builds a command from the status register must clear these bits.
    pub const ONE_SHOT: u32 = ROOT_TABLE | FAULT_LOG | WRITE_BUFFER_FLUSH | INTERRUPT_TABLE;
}

/// Bits of [`RTADDR`] (§10.4.6).
pub mod root_table {
    /// Physical address of the root table.
    pub const ADDRESS: u64 = !0xfff;
    /// Table mode. Zero is legacy mode.
    pub const MODE: u64 = 3 << 10;
}

/// Bits of [`IRTA`] (§10.4.29).
pub mod interrupt_table {
    /// Physical address of the table.
    pub const ADDRESS: u64 = !0xfff;
    /// Extended interrupt mode: destinations have 32 bits, and requests in compatibility format are blocked.
    pub const EXTENDED: u64 = 1 << 11;
    /// Size: the table has 2 to the power of this plus one entries.
    pub const SIZE: u64 = 0xf;
}

/// Bits of [`FECTL`] and [`IECTL`] (§10.4.10, §10.4.25).
pub mod fault_event {
    /// Interrupt mask: no message is sent.
    pub const MASKED: u32 = 1 << 31;
    /// Interrupt pending, read-only.
    pub const PENDING: u32 = 1 << 30;
}

/// Bits of [`PMEN`] (§10.4.16).
pub mod protected_memory {
    /// Enable: requests to the protected regions are blocked.
    pub const ENABLE: u32 = 1 << 31;
    /// Status: the regions are protected. Read-only.
    pub const ENABLED: u32 = 1 << 0;
}

/// Bits of the page-size field of [`Capability`], `SLLPS`.
pub mod large_pages {
    /// 2 MiB leaves.
    pub const SIZE_2M: u8 = 1 << 0;
    /// 1 GiB leaves.
    pub const SIZE_1G: u8 = 1 << 1;
}

/// Bits of the width field of [`Capability`], `SAGAW`.
pub mod widths {
    /// 39-bit addresses, tables of 3 levels.
    pub const LEVELS_3: u8 = 1 << 1;
    /// 48-bit addresses, tables of 4 levels.
    pub const LEVELS_4: u8 = 1 << 2;
}

/// Defines a reader and a builder for each field of a register.
macro_rules! fields {
    ($($(#[$doc:meta])* $get:ident, $with:ident: $type:ty = $high:literal : $low:literal;)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub const fn $get(self) -> $type {
                const { assert!($high >= $low && $high - $low < <$type>::BITS) };
                ((self.0 >> $low) & (u64::MAX >> (63 - ($high - $low)))) as $type
            }

            /// Returns the register with this field replaced. Bits of `value` beyond the field's width are dropped.
            #[must_use]
            pub const fn $with(self, value: $type) -> Self {
                let mask = u64::MAX >> (63 - ($high - $low));
                Self((self.0 & !(mask << $low)) | ((value as u64 & mask) << $low))
            }
        )*
    };
}

/// Defines a reader and a builder for each flag of a register.
macro_rules! flags {
    ($($(#[$doc:meta])* $get:ident, $with:ident = $bit:literal;)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub const fn $get(self) -> bool {
                self.0 & (1 << $bit) != 0
            }

            /// Returns the register with this flag set or cleared.
            #[must_use]
            pub const fn $with(self, value: bool) -> Self {
                Self((self.0 & !(1 << $bit)) | ((value as u64) << $bit))
            }
        )*
    };
}

/// The capability register (§10.4.2). Fields that legacy mode does not use are left out.
///
/// ```text
///  55  54  53  48 47 40 39  38 37   34 33 24 23 22  21  16 15 13 12    8 7  6    5   4    3   2 0
/// +---+---+------+-----+---+--+-------+-----+--+---+------+-----+-------+--+----+----+----+---+---+
/// |DRD|DWD| MAMV | NFR |PSI|  | SLLPS | FRO |  |ZLR| MGAW |     | SAGAW |CM|PHMR|PLMR|RWBF|AFL|ND |
/// +---+---+------+-----+---+--+-------+-----+--+---+------+-----+-------+--+----+----+----+---+---+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Capability(pub u64);

impl Capability {
    fields! {
        /// `ND`: domain ids have 4 + 2·ND bits. The value 7 is reserved.
        nd, with_nd: u8 = 2:0;
        /// `SAGAW`: the supported table depths. Bits: [`widths`].
        sagaw, with_sagaw: u8 = 12:8;
        /// `MGAW`: the width of the widest address that can be translated, in bits, less one.
        mgaw, with_mgaw: u8 = 21:16;
        /// `FRO`: offset of the fault recording registers, in units of 16 bytes.
        fro, with_fro: u16 = 33:24;
        /// `SLLPS`: the supported sizes of large leaves. Bits: [`large_pages`].
        sllps, with_sllps: u8 = 37:34;
        /// `NFR`: the number of fault recording registers, less one.
        nfr, with_nfr: u8 = 47:40;
        /// `MAMV`: the largest address mask of a page-selective invalidation.
        mamv, with_mamv: u8 = 53:48;
    }

    flags! {
        /// `RWBF`: software must flush the write buffer after it has changed a table in memory.
        rwbf, with_rwbf = 4;
        /// `PLMR`: the unit has a protected memory region below 4 GiB.
        plmr, with_plmr = 5;
        /// `PHMR`: the unit has a protected memory region above 4 GiB.
        phmr, with_phmr = 6;
        /// `CM`: caching mode. Absent and faulty entries may be cached, under domain id 0 if the context entry was
        /// not present.
        cm, with_cm = 7;
        /// `ZLR`: zero-length reads of write-only pages are allowed.
        zlr, with_zlr = 22;
        /// `PSI`: page-selective invalidation is supported.
        psi, with_psi = 39;
        /// `DWD`: an IOTLB invalidation can drain writes in flight.
        dwd, with_dwd = 54;
        /// `DRD`: an IOTLB invalidation can drain reads in flight.
        drd, with_drd = 55;
    }

    /// Width of a domain id, in bits: 4 to 16. `None` if the field holds the reserved value.
    pub const fn domain_id_bits(self) -> Option<u8> {
        match self.nd() {
            7 => None,
            nd => Some(4 + 2 * nd),
        }
    }

    /// Width of the widest address that can be translated, in bits.
    pub const fn address_bits(self) -> u8 {
        self.mgaw() + 1
    }

    /// The number of fault recording registers, 1 to 256.
    pub const fn fault_records(self) -> u32 {
        self.nfr() as u32 + 1
    }

    /// The bytes from the base to the end of the last fault recording register, in whole pages: what has to be mapped
    /// of the unit for this driver. Firmware may report less.
    pub const fn register_bytes(self) -> u32 {
        self.fault_record_offset(self.fault_records()).next_multiple_of(BLOCK_BYTES)
    }

    /// Offset of fault recording register `index` in bytes. Each register has 16 bytes.
    pub const fn fault_record_offset(self, index: u32) -> u32 {
        (self.fro() as u32 + index) * 16
    }
}

/// The extended capability register (§10.4.3). Fields that legacy mode does not use are left out.
///
/// ```text
///  23  20 19 18 17  8  7  6 5  4   3  2  1  0
/// +------+-----+-----+--+--+-+---+--+--+--+-+
/// | MHMV |     | IRO |SC|PT| |EIM|IR|DT|QI|C|
/// +------+-----+-----+--+--+-+---+--+--+--+-+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct ExtendedCapability(pub u64);

impl ExtendedCapability {
    fields! {
        /// `IRO`: offset of the IOTLB registers, in units of 16 bytes.
        iro, with_iro: u16 = 17:8;
        /// `MHMV`: the largest handle mask of an interrupt-entry-cache invalidation.
        mhmv, with_mhmv: u8 = 23:20;
    }

    flags! {
        /// `C`: the walker snoops the CPU's caches.
        coherent, with_coherent = 0;
        /// `QI`: queued invalidation is supported.
        qi, with_qi = 1;
        /// `DT`: device-TLBs are supported.
        dt, with_dt = 2;
        /// `IR`: interrupt remapping is supported.
        ir, with_ir = 3;
        /// `EIM`: extended interrupt mode is supported.
        eim, with_eim = 4;
        /// `PT`: pass-through is supported.
        pt, with_pt = 6;
        /// `SC`: snoop control in table entries is supported.
        sc, with_sc = 7;
        /// Context entries may lead to rings (rIOMMU, ASPLOS'15). The specification reserves this bit, and no VT-d
        /// unit sets it.
        rings, with_rings = 63;
    }
}
