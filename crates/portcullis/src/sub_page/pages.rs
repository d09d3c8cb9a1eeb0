//! Cutting a segment at page boundaries: a partial page, whole pages, a partial page.

use crate::address::{PAGE_SIZE, PhysAddr, Segment};

/// Whether a segment covers some page only in part.
pub(crate) const fn is_partial(segment: &Segment) -> bool {
    (segment.phys.page_offset() | segment.len) & (PAGE_SIZE - 1) != 0
}

/// The pieces of `segment`, in order. The first and the last piece each lie within one page.
///
/// The segment must belong to a [`Request`](crate::Request): it is not empty and does not wrap.
pub(super) fn pieces(segment: Segment) -> impl Iterator<Item = Segment> {
    let offset = segment.phys.page_offset();
    let first = if offset == 0 { 0 } else { segment.len.min(PAGE_SIZE - offset) };
    let last = if first == segment.len { 0 } else { (offset + segment.len) % PAGE_SIZE };
    let between = segment.len - first - last;
    [(0, first), (first, between), (first + between, last)]
        .into_iter()
        .filter(|(_, len)| *len > 0)
        .map(move |(before, len)| Segment { phys: PhysAddr::new(segment.phys.as_u64() + before), len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        /// Compares with a byte-by-byte computation.
        #[test]
        fn a_segment_is_cut_where_pages_end(start in 0..3 * PAGE_SIZE, len in 1..5 * PAGE_SIZE) {
            let segment = Segment { phys: PhysAddr::new(start), len };
            let found: Vec<Segment> = pieces(segment).collect();
            let page = |byte: u64| byte / PAGE_SIZE;
            let whole = |of: u64| start <= of * PAGE_SIZE && (of + 1) * PAGE_SIZE <= start + len;
            let mut expected: Vec<Segment> = Vec::new();
            for byte in start..start + len {
                let goes_on = expected.last().is_some_and(|last| {
                    let before = last.phys.as_u64();
                    page(before) == page(byte) || whole(page(before)) && whole(page(byte))
                });
                match expected.last_mut() {
                    Some(last) if goes_on => last.len += 1,
                    _ => expected.push(Segment { phys: PhysAddr::new(byte), len: 1 }),
                }
            }
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(is_partial(&segment), found.iter().any(|piece| piece.len % PAGE_SIZE != 0));
        }
    }
}
