//! The lists that `dma:dma_map_sg` and `dma:dma_unmap_sg` events print.

use super::error::Flaw;
use super::scan::{Scan, field};

/// libtraceevent prints this before the bare fields of a record that it cannot format. Before version 1.8.4 it cannot
/// format `dma_map_sg`.
pub(super) const UNPARSED: &[u8] = b"[FAILED TO PARSE]";

/// A list of numbers, checked at creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Numbers<'a> {
    text: &'a [u8],
    spelling: Spelling,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spelling {
    /// `{0x1000,0x2000}`: the kernel's form.
    Braces,
    /// `4096 8192`: the form of libtraceevent, and so of trace-cmd and perf.
    Blanks,
    /// `ARRAY[00, 10, 00, 00]`: the bytes in libtraceevent's bare fields. Each number has this many bytes, the lowest
    /// first.
    Bytes(usize),
}

impl<'a> Numbers<'a> {
    /// Parses the list behind the first of `keys` that is present. `bytes` is the size of a number in memory.
    fn parse(text: &'a [u8], keys: [&[u8]; 2], bytes: usize, missing: Flaw) -> Result<Self, Flaw> {
        let mut scan = keys.iter().find_map(|key| field(text, key)).ok_or(missing)?;
        let mut take = |open: &[u8], close| scan.literal(open).map(|()| scan.until(close).ok_or(missing));
        let list = if let Some(text) = take(b"{", b'}') {
            Self { text: text?, spelling: Spelling::Braces }
        } else if let Some(text) = take(b"ARRAY[", b']') {
            Self { text: text?, spelling: Spelling::Bytes(bytes) }
        } else {
            let end = scan.0.iter().position(|&byte| byte != b' ' && !byte.is_ascii_digit()).unwrap_or(scan.0.len());
            // The next key must begin here, after a blank.
            let (text, rest) = scan.0.split_at(end);
            if !text.ends_with(b" ") && !rest.is_empty() {
                return Err(missing);
            }
            Self { text: text.trim_ascii(), spelling: Spelling::Blanks }
        };
        match list.checked().all(|number| number.is_some()) {
            true => Ok(list),
            false => Err(Flaw::Expected("a list of numbers, `{0x1000,0x2000}` or `4096 8192`")),
        }
    }

    /// Parses the physical addresses of a list's pieces.
    pub(super) fn phys(text: &'a [u8]) -> Result<Self, Flaw> {
        Self::parse(text, [b"phys_addrs=", b"addrs="], 8, Flaw::Expected("`phys_addrs={…}`"))
    }

    fn checked(self) -> impl Iterator<Item = Option<u64>> + Clone {
        let Self { text, spelling } = self;
        let separator = if spelling == Spelling::Blanks { b' ' } else { b',' };
        let per_number = if let Spelling::Bytes(bytes) = spelling { bytes } else { 1 };
        let mut words = text.split(move |&byte| byte == separator);
        std::iter::from_fn(move || {
            let number = |word: &[u8]| {
                let mut scan = Scan(word.trim_ascii_start());
                let number = if spelling == Spelling::Blanks { scan.decimal() } else { scan.hexadecimal() };
                number.filter(|&number| scan.0.is_empty() && (per_number == 1 || number <= 0xff))
            };
            let first = number(words.next()?);
            let rest = (1..per_number).map(|byte| Some(number(words.next()?)? << (8 * byte)));
            Some(rest.fold(first, |sum, byte| Some(sum? | byte?)))
        })
    }

    pub(super) fn iter(self) -> impl Iterator<Item = u64> + Clone {
        self.checked().flatten()
    }
}

/// The pieces of a scatter list that a driver syncs, checked at creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pieces<'a> {
    addresses: Numbers<'a>,
    sizes: Numbers<'a>,
}

impl<'a> Pieces<'a> {
    /// Parses `dma_addrs={…} sizes={…}`.
    pub(super) fn parse(text: &'a [u8]) -> Result<Self, Flaw> {
        let addresses = Numbers::parse(text, [b"dma_addrs="; 2], 8, Flaw::Expected("`dma_addrs={…}`"))?;
        let sizes = Numbers::parse(text, [b"sizes=", b"lengths="], 4, Flaw::Expected("`sizes={…}`"))?;
        match addresses.iter().count() == sizes.iter().count() {
            true => Ok(Self { addresses, sizes }),
            false => Err(Flaw::Expected("as many sizes as addresses")),
        }
    }

    /// Each piece as its first address and its size. The size may be 0: if several pieces became one run, the list
    /// ends with empty ones.
    pub(super) fn iter(self) -> impl Iterator<Item = (u64, u64)> + Clone {
        self.addresses.iter().zip(self.sizes.iter())
    }
}

/// A scatter list, checked at creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct List<'a> {
    pieces: Pieces<'a>,
    /// The text of the event.
    text: &'a [u8],
    /// Whether the kernel printed the whole list; it prints at most 128 pieces.
    pub(super) complete: bool,
}

impl<'a> List<'a> {
    /// Parses the text of `dma_map_sg`.
    pub(super) fn parse(text: &'a [u8]) -> Result<Self, Flaw> {
        let pieces = Pieces::parse(text)?;
        pieces.iter().try_for_each(|(start, size)| check_run(start, size))?;
        Ok(Self { pieces, text, complete: is_complete(text, pieces.addresses)? })
    }

    /// The runs of I/O addresses that the list became, each as its first address and the one after its last. There may
    /// be fewer runs than pieces.
    pub(super) fn runs(self) -> impl Iterator<Item = (u64, u64)> + Clone {
        self.pieces.iter().map(|(start, size)| (start, start + size))
    }

    /// The physical addresses of its pieces. No event gives their lengths.
    pub(super) fn phys(self) -> Result<Numbers<'a>, Flaw> {
        Numbers::phys(self.text)
    }
}

pub(super) fn check_run(start: u64, size: u64) -> Result<(), Flaw> {
    if size == 0 {
        return Err(Flaw::Expected("a size above zero"));
    }
    match start.checked_add(size) {
        Some(_) => Ok(()),
        None => Err(Flaw::Expected("a run that ends within 64 bits")),
    }
}

/// Parses `ents=128/300`: the numbers of pieces printed and of all pieces.
fn is_complete(text: &[u8], addresses: Numbers<'_>) -> Result<bool, Flaw> {
    let expected = Flaw::Expected("`ents=` and how many are printed of how many");
    if let Some(mut scan) = field(text, b"ents=") {
        let printed = scan.decimal().ok_or(expected)?;
        scan.literal(b"/").ok_or(expected)?;
        return Ok(printed == scan.decimal().ok_or(expected)?);
    }
    match field(text, b"full_ents=") {
        Some(mut scan) => Ok(scan.decimal().ok_or(expected)? == addresses.iter().count() as u64),
        None => Ok(true),
    }
}
