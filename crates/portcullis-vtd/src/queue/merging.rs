//! One command for a crowd: if many CPUs share a submission, one that covers all their pages may replace theirs.
//!
//! If it takes the hardware as long as one for a page does, a submission no longer takes longer the more CPUs share it.
//! Its price is the IOTLB entries of other live pages in between, which devices must look up again. It drops no table
//! pointers, because only commands that say that nothing but leaves has changed are merged. A command for a whole
//! domain cannot say that (§6.5.2.4).

use super::Words;
use super::cells::Post;
use super::ring::{Ring, distance, read, write};
use portcullis::table::Frame;

/// Which submissions are merged.
#[derive(Clone, Copy)]
pub(super) struct Merging {
    /// The fewest commits in them.
    pub(super) commits_min: u8,
    /// The most bits that one command can leave open: the number of pages it covers is two to this power.
    pub(super) mask_max: u8,
}

impl Merging {
    /// Replaces the commands from slot `first` to the tail by one, if they are of enough `commits` and one can cover
    /// all. The hardware does not know of them yet, nor is the wait behind them written.
    #[inline(never)]
    pub(super) fn merge(self, ring: &mut Ring, page: &Frame, first: u8, commits: u64, form: u64) {
        if commits < u64::from(self.commits_min) {
            return;
        }
        let count = distance(first, ring.tail);
        let commands = (0..count).map(|at| read(page, first.wrapping_add(at as u8)));
        if let Some(covering) = covering(commands, form, self.mask_max) {
            write(page, first, covering);
            ring.tail = first.wrapping_add(1);
        }
    }
}

/// The smallest command that covers all of `commands`. `None` if there is none: if they are of different domains, not
/// all page-selective, as those of `form` are, and for leaves only, or too far apart.
fn covering(mut commands: impl Iterator<Item = Words>, form: u64, mask_max: u8) -> Option<Words> {
    let post = |words| Post::of(words, form).filter(|post| post.is_leaf_only());
    let first = post(commands.next()?)?;
    let mut all = first;
    for words in commands {
        all = all.covering(post(words)?, mask_max)?;
    }
    Some(all.descriptor(form))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::descriptors::{InvalidationDescriptor, IotlbScope, OnePage};
    use portcullis::Iova;
    use portcullis::iommu::DomainId;
    use proptest::prelude::*;
    use std::vec::Vec;

    const FORM: OnePage = OnePage::new(true, true, true);

    fn command((domain, pfn, mask, leaf_only): (u16, u64, u8, bool)) -> Words {
        let scope = IotlbScope::Pages { domain: DomainId(domain), first: Iova::new(pfn << 12), mask, leaf_only };
        InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true }.encode()
    }

    /// The domain and the pages, first and last.
    fn covered(words: Words) -> (u16, u64, u64) {
        match InvalidationDescriptor::decode(words).expect("a command") {
            InvalidationDescriptor::Iotlb {
                scope: IotlbScope::Pages { domain, first, mask, leaf_only: true },
                drain_writes: true,
                drain_reads: true,
            } => {
                let open = (1 << mask) - 1;
                assert_eq!(first.pfn() & open, 0, "no reserved bit is set");
                (domain.0, first.pfn(), first.pfn() | open)
            }
            other => panic!("{other:?}"),
        }
    }

    fn of(commands: &[(u16, u64, u8, bool)], mask_max: u8) -> Option<(u16, u64, u64)> {
        covering(commands.iter().copied().map(command), FORM.form(), mask_max).map(covered)
    }

    #[test]
    fn what_cannot_be_merged_is_left() {
        let page = |pfn| (7, pfn, 0, true);
        assert_eq!(of(&[page(0x12), page(0x17)], 18), Some((7, 0x10, 0x17)));
        assert_eq!(of(&[page(0x10), page(0x17)], 2), None, "farther apart than a mask reaches");
        assert_eq!(of(&[page(0x10), (8, 0x11, 0, true)], 18), None, "another domain");
        assert_eq!(of(&[page(0x10), (7, 0x11, 0, false)], 18), None, "tables have changed");
        assert_eq!(of(&[(7, 0x11, 0, false), page(0x10)], 18), None);
        let global = InvalidationDescriptor::Iotlb { scope: IotlbScope::Global, drain_writes: true, drain_reads: true };
        let others = [command(page(0x10)), global.encode()];
        assert_eq!(covering(others.into_iter(), FORM.form(), 18), None, "not page-selective");
    }

    proptest! {
        #[test]
        fn all_pages_are_covered_and_none_beyond_their_block(
            posted in prop::collection::vec((0u64..1 << 36, 0u8..19), 1..64),
            near in any::<bool>(),
            mask_max in prop_oneof![Just(18), Just(36)],
        ) {
            let base = posted[0].0;
            // Pages of one allocator are near each other.
            let pfn = |pfn: u64| if near { base & !0xffff | pfn & 0xffff } else { pfn };
            let ranges: Vec<_> = posted.iter().map(|(at, mask)| {
                let open = (1u64 << mask) - 1;
                (pfn(*at) & !open, pfn(*at) | open, *mask)
            }).collect();
            let commands: Vec<_> = ranges.iter().map(|(first, _, mask)| (7, *first, *mask, true)).collect();
            let first = ranges.iter().map(|(first, ..)| *first).min().expect("one at least");
            let last = ranges.iter().map(|(_, last, _)| *last).max().expect("one at least");
            // By counting up, not by the bits.
            let mask = (0..=36u8).find(|mask| first >> mask == last >> mask).expect("addresses have 36 bits");
            let expected = (mask <= mask_max).then(|| (7, first >> mask << mask, last | ((1 << mask) - 1)));
            prop_assert_eq!(of(&commands, mask_max), expected);
        }
    }
}
