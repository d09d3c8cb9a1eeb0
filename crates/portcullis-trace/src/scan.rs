//! Reading numbers and words off the front of a line.

/// The value of each byte as a hexadecimal digit, or 16 if it is none. A table, because half of a trace is such
/// digits.
static HEXADECIMAL: [u8; 256] = {
    let mut worth = [16; 256];
    let mut digit = 0;
    while digit < 16 {
        worth[b"0123456789abcdef"[digit] as usize] = digit as u8;
        worth[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    worth
};

/// The rest of a line.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a>(pub(super) &'a [u8]);

impl<'a> Scan<'a> {
    /// Takes exactly these bytes, or nothing.
    pub(super) fn literal(&mut self, bytes: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(bytes)?;
        Some(())
    }

    pub(super) fn spaces(&mut self) {
        let count = self.0.iter().take_while(|&&byte| byte == b' ' || byte == b'\t').count();
        self.0 = &self.0[count..];
    }

    /// Takes the text up to the next blank or the end.
    pub(super) fn word(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|&byte| byte == b' ' || byte == b'\t').unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        word
    }

    /// Takes the text up to the first `end`, and `end` itself. Returns the text.
    pub(super) fn until(&mut self, end: u8) -> Option<&'a [u8]> {
        let at = self.0.iter().position(|&byte| byte == end)?;
        let taken = &self.0[..at];
        self.0 = &self.0[at + 1..];
        Some(taken)
    }

    /// Takes a decimal number. `None` if there is no digit, or if the number exceeds 64 bits.
    pub(super) fn decimal(&mut self) -> Option<u64> {
        let mut value = 0u64;
        let mut digits = 0;
        for &byte in self.0 {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
            digits += 1;
        }
        self.0 = &self.0[digits..];
        (digits > 0).then_some(value)
    }

    /// Takes a hexadecimal number, with or without `0x`. `None` if there is no digit, or if the number exceeds 64
    /// bits.
    pub(super) fn hexadecimal(&mut self) -> Option<u64> {
        let text = self.0.strip_prefix(b"0x").unwrap_or(self.0);
        let mut value = 0u64;
        let mut digits = 0;
        for &byte in text {
            let digit = HEXADECIMAL[usize::from(byte)];
            if digit > 15 {
                break;
            }
            if value >> 60 != 0 {
                return None;
            }
            value = (value << 4) | u64::from(digit);
            digits += 1;
        }
        self.0 = &text[digits..];
        (digits > 0).then_some(value)
    }

    /// Whether a blank or the end comes next. One of these must follow a number.
    pub(super) fn at_gap(&self) -> bool {
        matches!(self.0.first(), None | Some(b' ' | b'\t'))
    }
}

/// The text after ` key` in a line of `key=value` pairs, up to the end of the line.
pub(super) fn field<'a>(text: &'a [u8], key: &[u8]) -> Option<Scan<'a>> {
    let mut rest = text;
    loop {
        let blank = rest.iter().position(|&byte| byte == b' ')?;
        rest = &rest[blank + 1..];
        if let Some(value) = rest.strip_prefix(key) {
            return Some(Scan(value));
        }
    }
}
