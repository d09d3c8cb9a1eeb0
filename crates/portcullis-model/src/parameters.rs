//! The parameters of a VT-d unit: sizes, times and capabilities. Each states its unit and the source of its value.
//!
//! Sources: \[F\] "Fast & Safe IO Memory Protection", SOSP'24; \[P\] the raw data of "Understanding PCIe performance
//! for end host networking", SIGCOMM'18; \[R\] "rIOMMU", ASPLOS'15. *Derived* values are computed from a source.
//! *Assumed* values are neither published nor measured.

use crate::cache::Replacement;
use crate::prefetch::PrefetcherSpec;
use portcullis_vtd::spec::registers::{Capability, ExtendedCapability, large_pages, widths};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

/// What a page-selective invalidation (PSI) drops from the IOTLB if it is not limited to leaves.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PsiDrops {
    /// The entries of the pages that it names, as specified.
    #[default]
    Exact,
    /// All entries of the domain. No manual says so: it is a hypothesis that fits the published miss counts of \[F\].
    All,
}

impl PsiDrops {
    /// The default is left out of JSON, so that a machine that does not use it reads as it did before it existed.
    fn is_exact(&self) -> bool {
        *self == Self::Exact
    }
}

/// The hardware parameters of one IOMMU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// IOTLB entries; 0 for no IOTLB. 128 from Sandy Bridge to Broadwell \[P, derived\]; assumed for later
    /// generations.
    pub iotlb_entries: u32,
    /// Entries in a set of the IOTLB; 0 for full associativity. Assumed, because it is not published.
    pub iotlb_ways: u32,
    /// The replacement policy of the IOTLB. LRU is assumed, as in \[F\].
    pub iotlb_replacement: Replacement,
    /// Entries of PTcache-L1, which cover 512 GiB each; 0 for none. 32 \[F, assumed there\]. Fully associative, LRU.
    pub ptcache_l1_entries: u32,
    /// Entries of PTcache-L2, which cover 1 GiB each; 0 for none. 32 \[F, assumed there\]. Fully associative, LRU.
    pub ptcache_l2_entries: u32,
    /// Entries of PTcache-L3, which cover 2 MiB each; 0 for none. 28 to 32 \[derived from the miss counts of F\]. Fully
    /// associative, LRU.
    pub ptcache_l3_entries: u32,
    /// The number of page walks that can be under way at once. 5 to 6 \[P, derived\].
    pub walkers: u32,
    /// The time to read one level of a table during a walk, in picoseconds. 197 ns \[F\].
    pub memory_read_ps: u64,
    /// The time of a transaction that needs no walk, from issue to completion, in picoseconds. 65 ns \[F\].
    pub hit_ps: u64,
    /// The time to execute one invalidation descriptor, in picoseconds. Assumed to be two thirds of 537 ns. \[R\]
    /// measures 2127 cycles at 3.1 GHz for an invalidation that is waited for. Of these, 537 ns remain after the 463
    /// cycles that submitting and polling take according to the laboratory's cost book for that machine.
    pub invalidation_ps: u64,
    /// The time to execute one wait descriptor, including the status write, in picoseconds. Assumed to be the other
    /// third.
    pub wait_ps: u64,
    /// Whether the invalidation hint (IH) of a page-selective invalidation spares the paging-structure caches. If
    /// not, every page-selective invalidation drops their entries too, as specified for IH=0.
    pub honours_hint: bool,
    /// What a page-selective invalidation drops from the IOTLB if it also drops from the paging-structure caches: if
    /// it comes without the hint, or the hint is not honoured. From those caches it drops the same in either case.
    #[serde(default, skip_serializing_if = "PsiDrops::is_exact")]
    pub psi_drops: PsiDrops,
    /// Whether there is an invalidation queue (`ECAP.QI`). The model has no other means of invalidation.
    pub queued_invalidation: bool,
    /// Whether page-selective invalidation is supported (`CAP.PSI`).
    pub page_selective: bool,
    /// The largest address mask of a page-selective invalidation (`CAP.MAMV`).
    pub mamv: u8,
    /// Whether an invalidation can drain DMA in flight (`CAP.DWD` and `CAP.DRD`).
    pub drains: bool,
    /// Whether walks snoop the CPUs' caches (`ECAP.C`). The memory must agree: see
    /// [`Ram::with_flushing`](crate::Ram::with_flushing).
    pub coherent: bool,
    /// The value of `CAP.CM`: absent entries may be cached. This model never caches them, so a driver that honors the
    /// bit only pays for it.
    pub caching_mode: bool,
    /// The value of `CAP.RWBF`: the write buffer needs flushing. The buffer itself is not modelled.
    pub rwbf: bool,
    /// Whether devices can be passed through untranslated (`ECAP.PT`).
    pub pass_through: bool,
    /// Whether devices can use rings (rIOMMU, ASPLOS'15). Each ring has one cached entry, and as many rings are
    /// cached as the IOTLB has entries. No VT-d unit has rings. The modelled machines have them, so that the design
    /// that needs them can be compared; other designs see no difference.
    pub rings: bool,
    /// Whether tables of 3 levels are supported (`CAP.SAGAW`).
    pub three_level: bool,
    /// Whether tables of 4 levels are supported (`CAP.SAGAW`).
    pub four_level: bool,
    /// Whether 2 MiB leaves are supported (`CAP.SLLPS`).
    pub leaf_2m: bool,
    /// Whether 1 GiB leaves are supported (`CAP.SLLPS`).
    pub leaf_1g: bool,
    /// Width of the widest IOVA, in bits (`CAP.MGAW`).
    pub address_bits: u8,
    /// Width of a physical address, in bits. In a table entry, address bits beyond it are reserved.
    pub physical_bits: u8,
    /// Width of a domain id, in bits (`CAP.ND`): 4 to 16, even.
    pub domain_id_bits: u8,
    /// The number of fault recording registers (`CAP.NFR`), 1 to 256.
    pub fault_registers: u16,
    /// The prefetcher of the IOTLB and its buffer; without a prefetcher there is no such buffer. No VT-d unit has
    /// one.
    pub prefetcher: Option<PrefetcherSpec>,
}

/// Offset of the fault recording registers, in units of 16 bytes. The value is QEMU's.
const FAULT_RECORD_OFFSET: u16 = 0x22;
/// Offset of the IOTLB registers, in units of 16 bytes. The value is QEMU's; these registers read as zero here.
const IOTLB_OFFSET: u16 = 0xf;
/// The largest cache that is accepted, so that a typing error does not exhaust memory.
const CACHE_ENTRIES_MAX: u32 = 1 << 20;
/// The largest number of walkers that is accepted, for the same reason.
const WALKERS_MAX: u32 = 1 << 10;
/// The longest time that is accepted, for the same reason: one second.
const TIME_PS_MAX: u64 = 1_000_000_000_000;

/// An invalid hardware parameter.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ParameterError {
    /// There is no such parameter.
    #[error("there is no hardware parameter `{key}`; there are: {known}")]
    Unknown {
        /// The name that was given.
        key: String,
        /// The parameters that exist, separated by commas.
        known: String,
    },
    /// The value does not have the parameter's type.
    #[error("`{value}` is not a value of the hardware parameter `{key}`: {reason}")]
    Value {
        /// The parameter.
        key: String,
        /// The value that was given.
        value: String,
        /// The reason that it was refused.
        reason: String,
    },
    /// The value is outside the parameter's range.
    #[error("the hardware parameter `{key}` must be {expected}")]
    Range {
        /// The parameter.
        key: &'static str,
        /// The values that are allowed.
        expected: &'static str,
    },
}

impl Parameters {
    /// Cascade Lake, the machine of \[F\]. The capabilities are assumed from the generation.
    pub fn cascadelake() -> Self {
        Self {
            iotlb_entries: 128,
            iotlb_ways: 0,
            iotlb_replacement: Replacement::Lru,
            ptcache_l1_entries: 32,
            ptcache_l2_entries: 32,
            ptcache_l3_entries: 32,
            walkers: 6,
            memory_read_ps: 197_000,
            hit_ps: 65_000,
            invalidation_ps: 358_000,
            wait_ps: 179_000,
            honours_hint: true,
            psi_drops: PsiDrops::Exact,
            queued_invalidation: true,
            page_selective: true,
            mamv: 18,
            drains: true,
            coherent: true,
            caching_mode: false,
            rwbf: false,
            pass_through: true,
            rings: true,
            three_level: true,
            four_level: true,
            leaf_2m: true,
            leaf_1g: true,
            address_bits: 48,
            physical_bits: 46,
            domain_id_bits: 16,
            fault_registers: 8,
            prefetcher: None,
        }
    }

    /// QEMU's emulation: a large IOTLB that is emptied when it is full, no paging-structure caches, the invalidation
    /// hint ignored, and one fault recording register. The capability registers read as QEMU's do (CAP
    /// 0xd2008c222f0606), except for interrupt remapping, which is not modelled.
    ///
    /// If QEMU 7.2 departs from the specification, this model does not, and the conformance suite names each such
    /// place. Two of them show in logs. Here entries are tagged by domain and not also by device, which makes a
    /// difference if devices share a domain. And here a page-selective invalidation drops only its own pages, while
    /// QEMU compares only 8 bits of page numbers and may drop more.
    pub fn qemu() -> Self {
        Self {
            iotlb_entries: 1024,
            iotlb_replacement: Replacement::ClearWhenFull,
            ptcache_l1_entries: 0,
            ptcache_l2_entries: 0,
            ptcache_l3_entries: 0,
            honours_hint: false,
            coherent: false,
            rings: false,
            physical_bits: 48,
            fault_registers: 1,
            ..Self::cascadelake()
        }
    }

    /// Sandy Bridge, the machine of \[R\]; its walks do not snoop. 128 IOTLB entries \[P, derived\]. Walk times are
    /// those of Cascade Lake, because no source gives them. The rest is assumed.
    pub fn sandybridge() -> Self {
        Self {
            coherent: false,
            leaf_2m: false,
            leaf_1g: false,
            mamv: 9,
            physical_bits: 36,
            domain_id_bits: 8,
            fault_registers: 1,
            ..Self::cascadelake()
        }
    }

    /// Haswell-EP, whose walks snoop. Its capabilities are those of the units of two-socket Xeon E5 machines (kernel
    /// logs: CAP 8d2078c106f0466, ECAP f020df): tables of 4 levels only, leaves of 2 MiB and 1 GiB. Caches and times
    /// are those of Cascade Lake.
    pub fn haswell() -> Self {
        Self { three_level: false, ..Self::cascadelake() }
    }

    /// Sets the parameter `key` from text, as in `--set iotlb_entries=64`. Call [`Parameters::check`] after all
    /// parameters are set, because only then can the whole be checked.
    ///
    /// # Errors
    /// [`ParameterError`] if there is no such parameter, or the value does not have its type. Then nothing has
    /// changed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ParameterError> {
        let refused = |reason: String| ParameterError::Value { key: key.into(), value: value.into(), reason };
        let mut all = serde_json::to_value(&*self).map_err(|error| refused(error.to_string()))?;
        // It can be set even though it is not written while it has its default.
        all["psi_drops"] = serde_json::to_value(self.psi_drops).map_err(|error| refused(error.to_string()))?;
        let Some(slot) = all.get_mut(key) else {
            let known = all.as_object().into_iter().flat_map(|all| all.keys().cloned()).collect::<Vec<_>>().join(", ");
            return Err(ParameterError::Unknown { key: key.into(), known });
        };
        *slot = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
        *self = serde_json::from_value(all).map_err(|error| refused(error.to_string()))?;
        Ok(())
    }

    /// Checks that every parameter is in its range.
    ///
    /// # Errors
    /// [`ParameterError::Range`], which names the first parameter that is out of its range.
    pub fn check(&self) -> Result<(), ParameterError> {
        let cache = |entries| entries <= CACHE_ENTRIES_MAX;
        let time = |ps| ps <= TIME_PS_MAX;
        let widest = if self.four_level { 48 } else { 39 };
        let checks = [
            ("iotlb_entries", cache(self.iotlb_entries), "at most 1048576"),
            (
                "iotlb_ways",
                self.iotlb_ways == 0 || self.iotlb_entries.is_multiple_of(self.iotlb_ways),
                "0 or a divisor of `iotlb_entries`, because all sets have the same size",
            ),
            ("ptcache_l1_entries", cache(self.ptcache_l1_entries), "at most 1048576"),
            ("ptcache_l2_entries", cache(self.ptcache_l2_entries), "at most 1048576"),
            ("ptcache_l3_entries", cache(self.ptcache_l3_entries), "at most 1048576"),
            ("walkers", (1..=WALKERS_MAX).contains(&self.walkers), "from 1 to 1024"),
            ("memory_read_ps", time(self.memory_read_ps), "at most a second (10^12)"),
            ("hit_ps", time(self.hit_ps), "at most a second (10^12)"),
            ("invalidation_ps", time(self.invalidation_ps), "at most a second (10^12)"),
            ("wait_ps", time(self.wait_ps), "at most a second (10^12)"),
            ("mamv", self.mamv <= 52, "at most 52, which covers all pages of a 64-bit address"),
            ("three_level", self.three_level || self.four_level, "true if `four_level` is false"),
            (
                "address_bits",
                (13..=widest).contains(&self.address_bits),
                "from 13 (two pages) to the width of the tables (39 or 48)",
            ),
            ("physical_bits", (32..=52).contains(&self.physical_bits), "from 32 to 52"),
            (
                "domain_id_bits",
                (4..=16).contains(&self.domain_id_bits) && self.domain_id_bits.is_multiple_of(2),
                "an even number from 4 to 16",
            ),
            ("fault_registers", (1..=256).contains(&self.fault_registers), "from 1 to 256"),
        ];
        match checks.into_iter().find(|(_, holds, _)| !holds) {
            Some((key, _, expected)) => Err(ParameterError::Range { key, expected }),
            None => Ok(()),
        }
    }

    /// The capability register of this hardware.
    pub fn capability(&self) -> Capability {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        Capability(0)
            .with_nd((self.domain_id_bits - 4) / 2)
            .with_rwbf(self.rwbf)
            .with_cm(self.caching_mode)
            .with_sagaw(flag(self.three_level, widths::LEVELS_3) | flag(self.four_level, widths::LEVELS_4))
            .with_mgaw(self.address_bits - 1)
            .with_fro(FAULT_RECORD_OFFSET)
            .with_sllps(flag(self.leaf_2m, large_pages::SIZE_2M) | flag(self.leaf_1g, large_pages::SIZE_1G))
            .with_psi(self.page_selective)
            .with_nfr((self.fault_registers - 1) as u8)
            .with_mamv(self.mamv)
            .with_dwd(self.drains)
            .with_drd(self.drains)
    }

    /// The extended capability register of this hardware.
    pub fn extended_capability(&self) -> ExtendedCapability {
        ExtendedCapability(0)
            .with_coherent(self.coherent)
            .with_qi(self.queued_invalidation)
            .with_ir(self.queued_invalidation)
            .with_pt(self.pass_through)
            .with_rings(self.rings)
            .with_iro(IOTLB_OFFSET)
    }

    /// Whether tables of this depth are supported.
    pub(crate) fn has_levels(&self, levels: u8) -> bool {
        match levels {
            3 => self.three_level,
            4 => self.four_level,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_reads_as_qemu() {
        let qemu = Parameters::qemu();
        assert_eq!(qemu.capability().0, 0x00d2_008c_222f_0606);
        assert_eq!(qemu.extended_capability().0 | 0x00f0_0008, 0x00f0_0f4a, "but for interrupt remapping");
        assert_ne!(Parameters::cascadelake().capability().0, qemu.capability().0);
        assert!(Parameters::cascadelake().extended_capability().coherent());
    }

    #[test]
    fn every_named_machine_can_be() {
        for machine in [Parameters::cascadelake(), Parameters::qemu(), Parameters::sandybridge()] {
            assert_eq!(machine.check(), Ok(()));
        }
    }

    #[test]
    fn a_parameter_is_set_by_name() {
        let mut parameters = Parameters::cascadelake();
        parameters.set("iotlb_entries", "64").unwrap();
        parameters.set("iotlb_replacement", "clear-when-full").unwrap();
        parameters.set("honours_hint", "false").unwrap();
        parameters.set("psi_drops", "all").unwrap();
        assert_eq!(parameters.iotlb_entries, 64);
        assert_eq!(parameters.iotlb_replacement, Replacement::ClearWhenFull);
        assert!(!parameters.honours_hint);
        assert_eq!(parameters.psi_drops, PsiDrops::All);
    }

    #[test]
    fn a_machine_that_does_not_say_what_psi_drops_drops_exactly() {
        let mut parameters = Parameters::cascadelake();
        let before = serde_json::to_string(&parameters).unwrap();
        assert!(!before.contains("psi_drops"), "{before}");
        assert_eq!(serde_json::from_str::<Parameters>(&before).unwrap(), parameters);
        parameters.set("psi_drops", "all").unwrap();
        let after = serde_json::to_string(&parameters).unwrap();
        assert!(after.contains(r#""psi_drops":"all""#), "{after}");
        assert_eq!(serde_json::from_str::<Parameters>(&after).unwrap(), parameters);
        parameters.set("psi_drops", "exact").unwrap();
        assert_eq!(parameters, Parameters::cascadelake());
    }

    #[test]
    fn what_cannot_be_set_is_named_and_changes_nothing() {
        let mut parameters = Parameters::cascadelake();
        let unknown = parameters.set("iotlb_size", "64").unwrap_err().to_string();
        assert!(unknown.contains("`iotlb_size`") && unknown.contains("iotlb_entries") && unknown.contains("walkers"));
        assert!(unknown.contains("psi_drops"), "{unknown}");
        let value = parameters.set("iotlb_entries", "many").unwrap_err().to_string();
        assert!(value.contains("`many`") && value.contains("`iotlb_entries`"), "{value}");
        assert!(parameters.set("iotlb_entries", "-1").is_err());
        assert!(parameters.set("iotlb_replacement", "fifo").unwrap_err().to_string().contains("clear-when-full"));
        assert!(parameters.set("psi_drops", "some").unwrap_err().to_string().contains("exact"));
        assert_eq!(parameters, Parameters::cascadelake());
    }

    #[test]
    fn what_cannot_be_is_found_when_all_is_set() {
        let checked = |settings: &[(&str, &str)]| {
            let mut parameters = Parameters::cascadelake();
            settings.iter().try_for_each(|(key, value)| parameters.set(key, value))?;
            parameters.check()
        };
        for (refused, value) in [
            ("walkers", "0"),
            ("domain_id_bits", "7"),
            ("iotlb_entries", "1000000000"),
            ("iotlb_ways", "3"),
            ("iotlb_ways", "256"),
        ] {
            let error = checked(&[(refused, value)]);
            assert!(matches!(error, Err(ParameterError::Range { key, .. }) if key == refused), "{refused}: {error:?}");
        }
        for (entries, ways) in [("129", "3"), ("128", "128"), ("0", "4"), ("7", "0")] {
            let mut both = [("iotlb_ways", ways), ("iotlb_entries", entries)];
            assert_eq!(checked(&both), Ok(()), "{both:?}");
            both.reverse();
            assert_eq!(checked(&both), Ok(()), "{both:?}");
        }
    }
}
