//! Checks whether a kernel can link an object: the object must need only symbols that a kernel has, and must not use
//! registers that belong to user programs.

use iced_x86::{CpuidFeature, Decoder, DecoderOptions, InstructionInfoFactory};
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationFlags, SectionKind, SymbolKind, elf};
use std::collections::BTreeSet;

/// The prefix of the functions that the C half provides for the Rust half.
const OF_THE_C_HALF: &str = "pcs_";
/// Functions that a kernel provides.
const OF_THE_KERNEL: [&str; 5] = ["memcpy", "memmove", "memset", "memcmp", "__x86_return_thunk"];
/// The prefix of functions that a kernel provides for each register.
const THUNKS: &str = "__x86_indirect_thunk_";
/// The relocations that its module loader supports.
const RELOCATIONS: [u32; 5] =
    [elf::R_X86_64_64, elf::R_X86_64_32S, elf::R_X86_64_32, elf::R_X86_64_PC32, elf::R_X86_64_PLT32];

/// Everything that is wrong with an object, each flaw once.
pub(super) fn flaws(object: &[u8]) -> Result<BTreeSet<String>, object::Error> {
    let object = ElfFile64::<LittleEndian>::parse(object)?;
    let mut flaws = BTreeSet::new();
    for symbol in object.symbols().filter(|symbol| symbol.is_undefined()) {
        let name = symbol.name()?;
        if !name.is_empty() && !is_known(name) {
            flaws.insert(format!("needs `{name}`"));
        }
    }
    for section in object.sections() {
        for (_, relocation) in section.relocations() {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            if !RELOCATIONS.contains(&r_type) {
                flaws.insert(format!("has a relocation of kind {r_type} in {}", section.name()?));
            }
        }
        let code = if section.kind() == SectionKind::Text { section.data()? } else { &[] };
        for offset in of_user_programs(code) {
            let functions = object.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
            let mut functions = functions.filter(|symbol| symbol.section_index() == Some(section.index()));
            let is_in = |begin, size| (begin..begin + size).contains(&offset);
            let function = functions.find(|symbol| is_in(symbol.address(), symbol.size()));
            let name = function.map_or(Ok("no function"), |symbol| symbol.name())?;
            flaws.insert(format!("has vectors or floating point in {:#}", rustc_demangle::demangle(name)));
        }
    }
    Ok(flaws)
}

fn is_known(symbol: &str) -> bool {
    OF_THE_KERNEL.contains(&symbol) || symbol.starts_with(OF_THE_C_HALF) || symbol.starts_with(THUNKS)
}

/// The places where instructions use registers that a kernel does not save for itself, and where bytes are no
/// instruction.
fn of_user_programs(code: &[u8]) -> Vec<u64> {
    let mut factory = InstructionInfoFactory::new();
    let mut found = Vec::new();
    for instruction in &mut Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        let registers = factory.info(&instruction).used_registers();
        let is_wide = registers.iter().map(|used| used.register()).any(|register| {
            let is_float = register.is_mm() || register.is_st();
            is_float || register.is_vector_register() || register.is_k() || register.is_tmm()
        });
        // Some instructions use the stack of floating-point registers without naming a register.
        let is_float = instruction.cpuid_features().iter().any(|feature| {
            matches!(feature, CpuidFeature::FPU | CpuidFeature::FPU287 | CpuidFeature::FPU387 | CpuidFeature::MMX)
        });
        if is_wide || is_float || instruction.is_invalid() {
            found.push(instruction.ip());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{is_known, of_user_programs};

    /// `mov rax, [rdi]; add rax, rcx; mfence; pause; clflush [rax]; ret`.
    const INNOCENT: [u8; 17] =
        [0x48, 0x8b, 0x07, 0x48, 0x01, 0xc8, 0x0f, 0xae, 0xf0, 0xf3, 0x90, 0x0f, 0xae, 0x38, 0xc3, 0xcc, 0x90];

    #[test]
    fn what_a_kernel_may_do_is_not_found() {
        assert_eq!(of_user_programs(&INNOCENT), [0_u64; 0]);
    }

    #[test]
    fn a_planted_instruction_is_found() {
        let planted: [(&str, &[u8]); 8] = [
            ("movups xmm0, [rdi]", &[0x0f, 0x10, 0x07]),
            ("movd xmm0, eax", &[0x66, 0x0f, 0x6e, 0xc0]),
            ("vmovdqu ymm0, [rdi]", &[0xc5, 0xfe, 0x6f, 0x07]),
            ("vmovdqu64 zmm0, [rdi]", &[0x62, 0xf1, 0xfe, 0x48, 0x6f, 0x07]),
            ("vzeroupper", &[0xc5, 0xf8, 0x77]),
            ("fld qword [rdi]", &[0xdd, 0x07]),
            ("movq mm0, [rdi]", &[0x0f, 0x6f, 0x07]),
            ("no instruction", &[0x06]),
        ];
        for (name, bytes) in planted {
            let code = [&INNOCENT[..], bytes, &INNOCENT].concat();
            assert_eq!(of_user_programs(&code), [INNOCENT.len() as u64], "{name}");
        }
    }

    #[test]
    fn symbols_are_those_of_the_c_half_and_of_a_kernel() {
        for known in ["pcs_alloc", "memcpy", "__x86_indirect_thunk_r11", "__x86_return_thunk"] {
            assert!(is_known(known), "{known}");
        }
        for other in ["memcpy_", "kmalloc", "__udivti3", ""] {
            assert!(!is_known(other), "{other}");
        }
    }
}
