//! The linked object: its functions, and the targets of their relocations.

use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionKind, SymbolKind, elf,
};
use std::collections::{BTreeMap, HashMap};
use std::error::Error;

/// A byte of a section.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Place {
    pub(super) section: usize,
    pub(super) offset: u64,
}

/// What a name or a relocation refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Place(Place),
    /// A symbol that is not in the object.
    Missing(String),
}

/// How a relocation is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// An address.
    Absolute,
    /// A distance from the end of the instruction.
    Relative,
    /// The distance to a word that holds the address.
    Word,
}

/// A relocation: to the address `addend` bytes after `symbol`.
#[derive(Clone, Debug)]
pub(super) struct Relocation {
    pub(super) kind: Kind,
    symbol: Target,
    addend: i64,
}

impl Relocation {
    /// The target of the relocation. `field_to_end` is the number of bytes from the field to the end of its
    /// instruction; only relative relocations use it.
    pub(super) fn target(&self, field_to_end: u64) -> Target {
        let Target::Place(place) = self.symbol else { return self.symbol.clone() };
        let further = if self.kind == Kind::Absolute { self.addend } else { self.addend + field_to_end as i64 };
        Target::Place(Place { offset: place.offset.wrapping_add_signed(further), ..place })
    }
}

#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) bytes: Vec<u8>,
    pub(super) is_code: bool,
    pub(super) relocations: BTreeMap<u64, Relocation>,
}

#[derive(Debug)]
pub(super) struct Function {
    /// The demangled name.
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) size: u64,
}

#[derive(Debug, Default)]
pub(super) struct Image {
    pub(super) sections: Vec<Section>,
    pub(super) functions: Vec<Function>,
    function_at: HashMap<Place, usize>,
    symbols: HashMap<String, (Place, u64)>,
}

/// Where a symbol is, unless it is missing.
fn place<'d>(symbol: &impl ObjectSymbol<'d>) -> Option<Place> {
    Some(Place { section: symbol.section_index()?.0, offset: symbol.address() })
}

impl Image {
    /// Reads an object into which all others are linked.
    pub(super) fn read(object: &[u8]) -> Result<Self, Box<dyn Error>> {
        use SectionKind::{Data, ReadOnlyData, ReadOnlyDataWithRel, Text};
        let object = ElfFile64::<LittleEndian>::parse(object)?;
        let mut image = Self::default();
        image.sections.resize_with(object.elf_section_table().len(), Section::default);
        for symbol in object.symbols() {
            let Some(place) = place(&symbol) else { continue };
            let name = symbol.name()?;
            if symbol.kind() == SymbolKind::Text && symbol.size() > 0 && !image.function_at.contains_key(&place) {
                image.function_at.insert(place, image.functions.len());
                let name = format!("{:#}", rustc_demangle::demangle(name));
                image.functions.push(Function { name, place, size: symbol.size() });
            }
            if symbol.is_global() {
                image.symbols.insert(name.to_owned(), (place, symbol.size()));
            }
        }
        let is_held = |kind| matches!(kind, Text | Data | ReadOnlyData | ReadOnlyDataWithRel);
        for section in object.sections().filter(|section| is_held(section.kind())) {
            let held = &mut image.sections[section.index().0];
            (held.bytes, held.is_code) = (section.data()?.to_vec(), section.kind() == Text);
            for (offset, relocation) in section.relocations() {
                let RelocationTarget::Symbol(index) = relocation.target() else { continue };
                let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
                let symbol = object.symbol_by_index(index)?;
                let name = symbol.name()?.to_owned();
                let kind = match r_type {
                    elf::R_X86_64_64 | elf::R_X86_64_32 | elf::R_X86_64_32S => Kind::Absolute,
                    elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => Kind::Relative,
                    elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX => Kind::Word,
                    other => return Err(format!("an unsupported relocation of kind {other}").into()),
                };
                let symbol = place(&symbol).map_or(Target::Missing(name), Target::Place);
                held.relocations.insert(offset, Relocation { kind, symbol, addend: relocation.addend() });
            }
        }
        Ok(image)
    }

    /// The function that begins at a place.
    pub(super) fn function_at(&self, place: Place) -> Option<usize> {
        self.function_at.get(&place).copied()
    }

    /// The place of a global symbol, and its size.
    pub(super) fn symbol(&self, name: &str) -> Result<(Place, u64), String> {
        self.symbols.get(name).copied().ok_or_else(|| format!("there is no `{name}` in the object"))
    }

    pub(super) fn word(&self, place: Place) -> Result<u64, String> {
        let at = place.offset as usize;
        let word = self.sections[place.section].bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        word.map(u64::from_le_bytes).ok_or_else(|| "a table extends beyond its section".to_owned())
    }

    /// What the word at a place points to, if it is in the object.
    pub(super) fn pointer(&self, place: Place) -> Option<Place> {
        match self.sections[place.section].relocations.get(&place.offset)?.target(0) {
            Target::Place(place) => Some(place),
            Target::Missing(_) => None,
        }
    }

    /// The string whose pointer is at `place`, followed by its length.
    pub(super) fn text(&self, place: Place) -> Result<String, String> {
        let length = self.word(Place { offset: place.offset + 8, ..place })? as usize;
        let text = self.pointer(place).ok_or("a name without a text")?;
        let at = text.offset as usize;
        let bytes = self.sections[text.section].bytes.get(at..at + length);
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.map(str::to_owned).ok_or_else(|| "a name that is not text".to_owned())
    }

    /// An object of functions, one in each section, followed by vtables, each with one method of a trait. Each
    /// element of `names` puts a reference into the section with the first number, at the offset, to the start of
    /// the section with the second number.
    #[cfg(test)]
    pub(super) fn of_code(functions: &[(&str, &[u8])], methods: &[usize], names: &[(usize, u64, usize)]) -> Self {
        let begin = |section| Target::Place(Place { section, offset: 0 });
        let mut image = Self::default();
        for (index, (name, bytes)) in functions.iter().enumerate() {
            let place = Place { section: index, offset: 0 };
            image.sections.push(Section { bytes: bytes.to_vec(), is_code: true, relocations: BTreeMap::new() });
            image.functions.push(Function { name: (*name).to_owned(), place, size: bytes.len() as u64 });
            image.function_at.insert(place, index);
        }
        for method in methods {
            let pointer = Relocation { kind: Kind::Absolute, symbol: begin(*method), addend: 0 };
            let relocations = BTreeMap::from([(24, pointer)]);
            image.sections.push(Section { bytes: vec![0; 32], is_code: false, relocations });
        }
        for (from, offset, to) in names {
            let relocation = Relocation { kind: Kind::Relative, symbol: begin(*to), addend: -4 };
            image.sections[*from].relocations.insert(*offset, relocation);
        }
        image
    }
}
