//! Code that must not compile: what could give a device access is unsafe to implement or to call.

#[path = "../../portcullis-designs/tests/compile_fail/mod.rs"]
mod compile_fail;

use compile_fail::{Case, check};

const CASES: &[Case] = &[
    Case {
        name: "translation is turned off without a promise",
        program: "pub fn off<M: Mmio, P: Platform>(unit: Unit<M, P>) -> Result<(), RegisterError> { @ }",
        wrong: "unit.shut_down()",
        right: "unsafe { unit.shut_down() }",
        code: "E0133",
        says: "shut_down` is unsafe and requires",
    },
    Case {
        name: "a unit is taken from its owner without a promise",
        program: "pub fn take<M: Mmio, P: Platform>(mmio: M, host: P) -> Result<Unit<M, P>, BringUpError> { @ }",
        wrong: "Unit::take_over(mmio, host, UnitConfig::default(), TakeOver::Always, |_| Ok(()))",
        right: "unsafe { Unit::take_over(mmio, host, UnitConfig::default(), TakeOver::Always, |_| Ok(())) }",
        code: "E0133",
        says: "take_over` is unsafe and requires",
    },
    Case {
        name: "a register is written by another than the driver that has the unit",
        program: "pub fn off<M: Mmio>(kept: &M) { @ }",
        wrong: "kept.write32(0x18, 0)",
        right: "unsafe { kept.write32(0x18, 0) }",
        code: "E0133",
        says: "write32` is unsafe and requires",
    },
    Case {
        name: "registers promise nothing",
        program: "pub struct Nothing;
            @ impl Mmio for Nothing {
                fn read32(&self, _: u32) -> u32 { 0 }
                fn read64(&self, _: u32) -> u64 { 0 }
                unsafe fn write32(&self, _: u32, _: u32) {}
                unsafe fn write64(&self, _: u32, _: u64) {}
            }",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "the trait `Mmio` requires an `unsafe impl` declaration",
    },
];

const USES: &str = "#![allow(unused_imports)]
    use portcullis::Platform;
    use portcullis_vtd::{BringUpError, Mmio, RegisterError, TakeOver, Unit, UnitConfig};
";

#[test]
fn what_breaks_the_contract_does_not_compile() {
    check(&["portcullis", "portcullis_vtd"], USES, CASES);
}
