//! Cutting a segment at page boundaries: a partial page, whole pages, a partial page.

use crate::address::{PAGE_SIZE, PhysAddr, Segment};

/// Whether a segment covers some page only in part.
pub(crate) const fn is_partial(segment: &Segment) -> bool {
    (segment.phys.page_offset() | segment.len) & (PAGE_SIZE - 1) != 0
}

/// The pieces of `segment`, in order. The first and the last piece each lie within one page.
///
/// The segment must belong to a [`Request`](crate::Request): it is not empty and does not wrap.
pub(crate) fn pieces(segment: Segment) -> impl Iterator<Item = Segment> {
    let offset = segment.phys.page_offset();
    let first = if offset == 0 { 0 } else { segment.len.min(PAGE_SIZE - offset) };
    let last = if first == segment.len { 0 } else { (offset + segment.len) % PAGE_SIZE };
    let between = segment.len - first - last;
    [(0, first), (first, between), (first + between, last)]
        .into_iter()
        .filter(|(_, len)| *len > 0)
        .map(move |(before, len)| Segment { phys: PhysAddr::new(segment.phys.as_u64() + before), len })
}

/// The part of `segment` in its page `number`; its first page is number 0.
///
/// The segment must belong to a [`Request`](crate::Request), and have that page.
pub(crate) fn part_in_page(segment: &Segment, number: u64) -> Segment {
    debug_assert!(number < segment.pages(), "page {number} of {segment:?}");
    let (first, last) = (segment.phys.as_u64(), segment.phys.as_u64() + (segment.len - 1));
    let page = PAGE_SIZE * (first / PAGE_SIZE + number);
    let phys = first.max(page);
    Segment { phys: PhysAddr::new(phys), len: last.min(page + (PAGE_SIZE - 1)) - phys + 1 }
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

        /// Also at the end of the address space.
        #[test]
        fn the_parts_in_pages_follow_each_other(start in 0..3 * PAGE_SIZE, len in 1..5 * PAGE_SIZE, is_high: bool) {
            let start = if is_high { u64::MAX - len - start } else { start };
            let segment = Segment { phys: PhysAddr::new(start), len };
            let mut at = start;
            for number in 0..segment.pages() {
                let part = part_in_page(&segment, number);
                prop_assert_eq!(part.phys.as_u64(), at);
                prop_assert_eq!(part.pages(), 1);
                at += part.len;
                prop_assert!(at % PAGE_SIZE == 0 || number == segment.pages() - 1);
            }
            prop_assert_eq!(at, start + len);
        }
    }
}
