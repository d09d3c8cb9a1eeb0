//! The present and former owners of I/O pages. They tell an intended access from one that should not succeed.

use crate::run::live::Slot;
use portcullis::Rule;
use portcullis::table::Rights;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// How many former owners of a page are remembered. There is more than one, so that an access through a translation
/// that outlived two owners is still recognized.
const PAST_MAX: usize = 4;

/// An I/O page as one device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place {
    /// Number of the device.
    pub(super) device: usize,
    /// Number of the page.
    pub(super) pfn: u64,
}

/// A mapping's share of a page.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// The memory behind its first byte: the page or, if entries lead to bytes, the byte.
    pub(super) memory: u64,
    pub(super) rights: Rights,
    /// Bytes of the buffer in the page.
    pub(super) bytes: u16,
}

impl Share {
    fn grants(&self, memory: u64, rights: Rights) -> bool {
        self.memory == memory && self.rights.allows(rights)
    }
}

/// A mapping whose buffer the device may still use.
struct Holder {
    slot: Slot,
    share: Share,
    /// Whether its unmap has begun. Its buffer is not yet handed back.
    leaving: bool,
}

/// A mapping whose buffer has been handed back.
struct Past {
    share: Share,
    back_ps: u64,
    /// When the device last reached the page, or when the buffer was handed back.
    reached_ps: u64,
}

#[derive(Default)]
struct Page {
    /// There is more than one if mappings share addresses, or while the old owner of an address is being unmapped.
    holders: SmallVec<[Holder; 1]>,
    /// Former owners, the latest last.
    past: SmallVec<[Past; 1]>,
}

/// An access that should not have succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Breach {
    /// The broken rule, regardless of what is declared.
    pub(super) rule: Rule,
    /// When the reached buffer was handed back, if the access reached such a buffer.
    pub(super) back_ps: Option<u64>,
}

/// The I/O pages that were ever handed out.
#[derive(Default)]
pub(super) struct Owners {
    pages: FxHashMap<Place, Page>,
    /// The same pages, in the order of their first use.
    seen: Vec<Place>,
}

impl Owners {
    /// Every page that was ever handed out.
    pub(super) fn seen(&self) -> &[Place] {
        &self.seen
    }

    /// Records that a mapping has been made.
    pub(super) fn mapped(&mut self, place: Place, slot: Slot, share: Share) {
        let seen = &mut self.seen;
        let page = self.pages.entry(place).or_insert_with(|| {
            seen.push(place);
            Page::default()
        });
        page.holders.push(Holder { slot, share, leaving: false });
    }

    /// Records that its unmap begins.
    pub(super) fn leaving(&mut self, place: Place, slot: Slot) {
        let holders = self.pages.get_mut(&place).map(|page| &mut page.holders);
        if let Some(holder) = holders.and_then(|all| all.iter_mut().find(|one| one.slot == slot && !one.leaving)) {
            holder.leaving = true;
        }
    }

    /// Records that its buffer has been handed back.
    pub(super) fn handed_back(&mut self, place: Place, slot: Slot, now_ps: u64) {
        let Some(page) = self.pages.get_mut(&place) else { return };
        // A slot may be reused before this. The oldest holder is the one that leaves.
        if let Some(index) = page.holders.iter().position(|holder| holder.slot == slot && holder.leaving) {
            let share = page.holders.remove(index).share;
            if page.past.len() == PAST_MAX {
                page.past.remove(0);
            }
            page.past.push(Past { share, back_ps: now_ps, reached_ps: now_ps });
        }
    }

    /// Whether a device may still use some buffer in this page.
    pub(super) fn is_held(&self, place: Place) -> bool {
        self.pages.get(&place).is_some_and(|page| !page.holders.is_empty())
    }

    /// Whether a live mapping that is not being unmapped allows the access.
    pub(super) fn allows(&self, place: Place, memory: u64, rights: Rights) -> bool {
        let stands = |holder: &Holder| !holder.leaving && holder.share.grants(memory, rights);
        self.pages.get(&place).is_some_and(|page| page.holders.iter().any(stands))
    }

    /// The rights of the mapping that was handed back last.
    pub(super) fn past_rights(&self, place: Place) -> Option<Rights> {
        self.pages.get(&place)?.past.last().map(|past| past.share.rights)
    }

    /// Judges an access to `place` that needed `rights` and reached page `memory` of memory. Returns the breach, if it
    /// is one.
    pub(super) fn judge(&self, place: Place, memory: u64, rights: Rights) -> Option<Breach> {
        let beyond_all = Breach { rule: Rule::Reach, back_ps: None };
        let Some(Page { holders, past }) = self.pages.get(&place) else { return Some(beyond_all) };
        let grants =
            |leaving| holders.iter().any(|holder| holder.leaving == leaving && holder.share.grants(memory, rights));
        if grants(false) {
            return None;
        }
        let handed_out_again = holders.iter().any(|holder| !holder.leaving);
        if grants(true) {
            // The buffer is not handed back yet, so the access is allowed. But no other mapping may have the address.
            return handed_out_again.then_some(Breach { rule: Rule::Reuse, back_ps: None });
        }
        if let Some(past) = past.iter().rev().find(|past| past.share.grants(memory, rights)) {
            let rule = if holders.is_empty() { Rule::Strict } else { Rule::Reuse };
            return Some(Breach { rule, back_ps: Some(past.back_ps) });
        }
        let shares = holders.iter().map(|holder| holder.share).chain(past.iter().map(|past| past.share));
        let leads_there = shares.into_iter().any(|share| share.memory == memory);
        Some(if leads_there { Breach { rule: Rule::Rights, back_ps: None } } else { beyond_all })
    }

    /// Records that a handed-back buffer was reached. Returns by how much longer than known before its bytes have been
    /// exposed, in byte-picoseconds.
    pub(super) fn reached(&mut self, place: Place, memory: u64, breach: &Breach, at_ps: u64) -> u128 {
        let past = self.pages.get_mut(&place).into_iter().flat_map(|page| &mut page.past);
        let mut past = past.filter(|past| past.share.memory == memory && Some(past.back_ps) == breach.back_ps);
        past.next().map_or(0, |past| {
            let more_ps = at_ps.saturating_sub(past.reached_ps);
            past.reached_ps = past.reached_ps.max(at_ps);
            u128::from(past.share.bytes) * u128::from(more_ps)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { device: 0, pfn: 0x77 };
    const OLD: u64 = 5;
    const NEW: u64 = 9;

    fn share(memory: u64, rights: Rights) -> Share {
        Share { memory, rights, bytes: 1000 }
    }

    fn rule(owners: &Owners, memory: u64, rights: Rights) -> Option<Rule> {
        owners.judge(PLACE, memory, rights).map(|breach| breach.rule)
    }

    #[test]
    fn a_mapping_from_map_to_hand_back() {
        let mut owners = Owners::default();
        assert_eq!(rule(&owners, OLD, Rights::READ), Some(Rule::Reach), "never handed out");
        owners.mapped(PLACE, 1, share(OLD, Rights::READ));
        assert_eq!(rule(&owners, OLD, Rights::READ), None);
        assert_eq!(rule(&owners, OLD, Rights::WRITE), Some(Rule::Rights));
        assert_eq!(rule(&owners, NEW, Rights::READ), Some(Rule::Reach));
        owners.leaving(PLACE, 1);
        assert_eq!(rule(&owners, OLD, Rights::READ), None, "not back yet");
        owners.handed_back(PLACE, 1, 100);
        assert!(!owners.is_held(PLACE));
        let breach = Breach { rule: Rule::Strict, back_ps: Some(100) };
        assert_eq!(owners.judge(PLACE, OLD, Rights::READ), Some(breach));
        assert_eq!(rule(&owners, OLD, Rights::WRITE), Some(Rule::Rights), "a stale right that was never granted");
        assert_eq!(owners.reached(PLACE, OLD, &breach, 130), 1000 * 30);
        assert_eq!(owners.reached(PLACE, OLD, &breach, 150), 1000 * 20, "only what is new");
    }

    #[test]
    fn an_address_handed_out_again_leads_to_its_new_owner_only() {
        let mut owners = Owners::default();
        owners.mapped(PLACE, 1, share(OLD, Rights::WRITE));
        owners.leaving(PLACE, 1);
        owners.mapped(PLACE, 2, share(NEW, Rights::WRITE));
        assert_eq!(rule(&owners, NEW, Rights::WRITE), None);
        assert_eq!(rule(&owners, OLD, Rights::WRITE), Some(Rule::Reuse), "before the old one is back");
        owners.handed_back(PLACE, 1, 100);
        let breach = owners.judge(PLACE, OLD, Rights::WRITE);
        assert_eq!(breach, Some(Breach { rule: Rule::Reuse, back_ps: Some(100) }), "and after");
        owners.leaving(PLACE, 2);
        assert_eq!(rule(&owners, OLD, Rights::WRITE), Some(Rule::Reuse));
    }

    #[test]
    fn a_wider_right_left_over_from_the_last_owner_is_a_reuse() {
        let mut owners = Owners::default();
        owners.mapped(PLACE, 1, share(OLD, Rights::WRITE));
        owners.leaving(PLACE, 1);
        owners.handed_back(PLACE, 1, 100);
        owners.mapped(PLACE, 2, share(OLD, Rights::READ));
        assert_eq!(rule(&owners, OLD, Rights::WRITE), Some(Rule::Reuse));
    }

    #[test]
    fn mappings_that_share_an_address_hold_it_until_the_last_has_gone() {
        let mut owners = Owners::default();
        for slot in [1, 2] {
            owners.mapped(PLACE, slot, share(OLD, Rights::WRITE));
        }
        owners.leaving(PLACE, 1);
        owners.handed_back(PLACE, 1, 100);
        assert_eq!(rule(&owners, OLD, Rights::WRITE), None);
        owners.leaving(PLACE, 2);
        assert_eq!(rule(&owners, OLD, Rights::WRITE), None);
        owners.handed_back(PLACE, 2, 200);
        let breach = owners.judge(PLACE, OLD, Rights::WRITE);
        assert_eq!(breach, Some(Breach { rule: Rule::Strict, back_ps: Some(200) }), "counted from the last");
    }

    #[test]
    fn other_devices_have_other_pages() {
        let mut owners = Owners::default();
        owners.mapped(PLACE, 1, share(OLD, Rights::WRITE));
        let breach = owners.judge(Place { device: 1, ..PLACE }, OLD, Rights::WRITE);
        assert_eq!(breach.map(|breach| breach.rule), Some(Rule::Reach));
    }
}
