//! The tokens of Rust. Those of C are the same, as far as this program needs them.

use ra_ap_rustc_lexer::{Cursor, FrontmatterAllowed};

pub(crate) use ra_ap_rustc_lexer::{LiteralKind, TokenKind};

/// The tokens of a source, each with its text. Together, the texts are the source.
pub(crate) fn tokens(source: &str, is_rust: bool) -> impl Iterator<Item = (TokenKind, &str)> {
    let mut rest = source;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let token = Cursor::new(rest, FrontmatterAllowed::No).advance_token();
        let mut length = token.len as usize;
        // Comments of Rust may be nested, but not those of C.
        if !is_rust && matches!(token.kind, TokenKind::BlockComment { .. }) {
            length = rest[2..].find("*/").map_or(rest.len(), |at| 2 + at + 2);
        }
        let (text, after) = rest.split_at(length);
        rest = after;
        Some((token.kind, text))
    })
}
