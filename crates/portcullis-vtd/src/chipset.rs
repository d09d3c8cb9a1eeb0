//! Chipsets whose units need more than their registers say.
//!
//! A host tells a [`Chipset`] of each PCI function that is present, before it brings the first unit up, and then does
//! what the fields say. Each row names where its facts can be read in public.

/// Intel's vendor id.
const INTEL: u16 = 0x8086;

/// A PCI function, as its configuration space describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PciFunction {
    /// The vendor id.
    pub vendor: u16,
    /// The device id.
    pub device: u16,
    /// Whether its class is that of a display controller (base class 3).
    pub is_display: bool,
}

/// What the functions of a machine say about its chipset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Chipset {
    /// A write buffer lies between the CPU and memory, and the units do not report it (CAP.RWBF): set
    /// [`UnitConfig::flushes_writes`](crate::UnitConfig::flushes_writes).
    pub flushes_writes: bool,
    /// A unit that serves [nothing but displays](crate::dmar::Drhd::serves_only) must not be brought up, and a display
    /// behind another unit must pass through: the graphics processor misbehaves when it is translated, or hangs when
    /// translation is turned off again.
    pub leaves_graphics: bool,
    /// The sound device has a unit of its own, to which firmware may have given no translation buffer. A request then
    /// waits for ever. See [`sound_may_be_translated`].
    pub has_isochronous_unit: bool,
}

/// One need of some chipsets.
struct Need {
    is_of: fn(PciFunction) -> bool,
    set: fn(&mut Chipset),
    /// Where it is described.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers, and for the test that each row has one"))]
    source: &'static str,
}

/// The memory controllers of the 4 Series (G45, Q45, GM45).
const SERIES_4: [u16; 7] = [0x2a40, 0x2e00, 0x2e10, 0x2e20, 0x2e30, 0x2e40, 0x2e90];
/// The display of Q35, and the host bridges of processors with Ironlake graphics.
const Q35_AND_IRONLAKE: [u16; 5] = [0x29b2, 0x0040, 0x0044, 0x0062, 0x006a];
/// The graphics of Broadwell: 0x1602 to 0x163e, for each number of execution units and each package.
const BROADWELL: core::ops::RangeInclusive<u16> = 0x1602..=0x163e;
const BROADWELL_PACKAGES: [u16; 6] = [0x2, 0x6, 0xa, 0xb, 0xd, 0xe];
/// The high bytes of the graphics of Ice Lake, Jasper Lake, Tiger Lake, Rocket Lake, Alder Lake, Raptor Lake and Meteor
/// Lake.
const STAYS_ON: [u8; 9] = [0x45, 0x46, 0x4c, 0x4e, 0x7d, 0x8a, 0x98, 0x9a, 0xa7];
/// The sound device of ICH10, and the system management registers of the 5520 and X58.
const SOUND: u16 = 0x3a3e;

/// What each chipset needs.
const NEEDS: [Need; 5] = [
    Need {
        is_of: |function| SERIES_4.contains(&function.device),
        set: |chipset| chipset.flushes_writes = true,
        source: "Linux 6.12, drivers/iommu/intel/iommu.c, quirk_iommu_rwbf",
    },
    Need {
        is_of: |function| SERIES_4.contains(&function.device) || Q35_AND_IRONLAKE.contains(&function.device),
        set: |chipset| chipset.leaves_graphics = true,
        source: "Linux 6.12, drivers/iommu/intel/iommu.c, quirk_iommu_igfx and quirk_calpella_no_shadow_gtt",
    },
    Need {
        is_of: |function| BROADWELL.contains(&function.device) && BROADWELL_PACKAGES.contains(&(function.device & 0xf)),
        set: |chipset| chipset.leaves_graphics = true,
        source: "Linux 6.12, drivers/iommu/intel/iommu.c, quirk_iommu_igfx",
    },
    Need {
        is_of: |function| function.is_display && STAYS_ON.contains(&((function.device >> 8) as u8)),
        set: |chipset| chipset.leaves_graphics = true,
        source: "Linux 6.12, drivers/iommu/intel/iommu.c, quirk_igfx_skip_te_disable",
    },
    Need {
        is_of: |function| function.device == SOUND,
        set: |chipset| chipset.has_isochronous_unit = true,
        source: "Linux 6.12, drivers/iommu/intel/iommu.c, check_tylersburg_isoch",
    },
];

impl Chipset {
    /// Takes a function into account that is present in the machine.
    pub fn note(&mut self, function: PciFunction) {
        for need in NEEDS.iter().filter(|need| function.vendor == INTEL && (need.is_of)(function)) {
            (need.set)(self);
        }
    }

    /// Whether a function must pass through, because translation would break it. `isochronous_control` reads the
    /// 32-bit register [`ISOCHRONOUS_CONTROL`] of [`SYSTEM_MANAGEMENT`], if that function is present.
    pub fn must_pass(&self, function: PciFunction, isochronous_control: impl FnOnce() -> Option<u32>) -> bool {
        let is_sound = self.has_isochronous_unit && (function.vendor, function.device) == (INTEL, SOUND);
        let is_graphics = self.leaves_graphics && function.vendor == INTEL && function.is_display;
        is_graphics || is_sound && !isochronous_control().is_some_and(sound_may_be_translated)
    }
}

/// Vendor and device of the function with the register [`ISOCHRONOUS_CONTROL`].
pub const SYSTEM_MANAGEMENT: (u16, u16) = (INTEL, 0x342e);
/// Offset in configuration space of the register that controls the isochronous unit of the 5520 and X58, 32 bits.
pub const ISOCHRONOUS_CONTROL: u16 = 0x188;

/// Whether the sound device can be translated, by [`ISOCHRONOUS_CONTROL`]: its requests go to the common unit (bit 0),
/// or its own unit has the 16 entries that it should have (bits 4:2).
pub const fn sound_may_be_translated(control: u32) -> bool {
    control != u32::MAX && (control & 1 != 0 || control & 0x1c == 0x10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(functions: &[(u16, u16, bool)]) -> Chipset {
        let mut chipset = Chipset::default();
        for &(vendor, device, is_display) in functions {
            chipset.note(PciFunction { vendor, device, is_display });
        }
        chipset
    }

    #[test]
    fn chipset_quirks_are_found_by_pci_id_and_by_no_other() {
        let flushes = |device| of(&[(INTEL, device, false)]).flushes_writes;
        assert!([0x2a40, 0x2e00, 0x2e10, 0x2e20, 0x2e30, 0x2e40, 0x2e90].into_iter().all(flushes));
        assert!(![0x29c0, 0x2a41, 0x2e50, 0x2e12].into_iter().any(flushes));
        let leaves = |device| of(&[(INTEL, device, true)]).leaves_graphics;
        let listed = [0x29b2, 0x2a40, 0x0044, 0x006a, 0x1602, 0x160a, 0x163d, 0x1636, 0x8a52, 0x9a49, 0xa7a0];
        assert!(listed.into_iter().all(leaves));
        // Skylake and Kaby Lake, numbers between those of Broadwell, and its sound device.
        assert!(![0x1912, 0x5916, 0x1601, 0x1603, 0x1604, 0x160c, 0x1642, 0x0c0c].into_iter().any(leaves));
        // By number alone those are not graphics, and another vendor has other numbers.
        assert_eq!(of(&[(INTEL, 0x9a13, false), (0x1022, 0x2a40, true), (0x10de, 0x1626, true)]), Chipset::default());
        assert!(NEEDS.iter().all(|need| need.source.contains(", ")));
    }

    #[test]
    fn a_function_that_translation_breaks_passes_through() {
        let function = |device, is_display| PciFunction { vendor: INTEL, device, is_display };
        let broadwell = of(&[(INTEL, 0x1616, true), (INTEL, 0x9c90, false)]);
        let nothing = || panic!("this machine has no such register");
        assert!(broadwell.must_pass(function(0x1616, true), nothing));
        assert!(!broadwell.must_pass(function(0x9c90, false), nothing));
        assert!(!of(&[(INTEL, 0x1912, true)]).must_pass(function(0x1912, true), nothing));
        // A discrete card in the same machine.
        let discrete = PciFunction { vendor: 0x10de, ..function(0x1c82, true) };
        assert!(!broadwell.must_pass(discrete, nothing));
        // No entry, the register hidden or gone; then the common unit, and sixteen entries.
        let tylersburg = of(&[(INTEL, SOUND, false)]);
        for control in [Some(0), Some(0x8), None, Some(u32::MAX)] {
            assert!(tylersburg.must_pass(function(SOUND, false), || control), "{control:?}");
        }
        for control in [0x1, 0x10, 0x11] {
            assert!(!tylersburg.must_pass(function(SOUND, false), || Some(control)), "{control:#x}");
        }
    }
}
