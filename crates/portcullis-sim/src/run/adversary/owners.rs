//! Who owns which I/O page, and who owned it before: what tells an access that is meant to be from one that is not.

use crate::run::live::Slot;
use portcullis::Rule;
use portcullis::table::Rights;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Former owners of a page that are remembered. More than one, so that what an access through a translation that outlived two
/// owners reaches is known for what it is.
const PAST_MAX: usize = 4;

/// An I/O page as one device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place {
    /// Number of the device.
    pub(super) device: usize,
    /// Number of the page.
    pub(super) pfn: u64,
}

/// What a mapping has of a page.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// The memory behind its first byte: the page or, where entries lead to bytes, the byte.
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

/// A mapping whose buffer is with the device.
struct Holder {
    slot: Slot,
    share: Share,
    /// Its unmap has begun, and its buffer is not yet back.
    leaving: bool,
}

/// A mapping whose buffer is back.
struct Past {
    share: Share,
    back_ps: u64,
    /// When the device reached the page last, or when the buffer went back.
    reached_ps: u64,
}

#[derive(Default)]
struct Page {
    /// More than one where mappings share addresses, or while the owner of an address is on its way out.
    holders: SmallVec<[Holder; 1]>,
    /// The latest last.
    past: SmallVec<[Past; 1]>,
}

/// An access that should not have succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Breach {
    /// The rule, as if nothing were declared.
    pub(super) rule: Rule,
    /// When the buffer that it reached went back, if that is what it reached.
    pub(super) back_ps: Option<u64>,
}

/// The I/O pages that were ever handed out.
#[derive(Default)]
pub(super) struct Owners {
    pages: FxHashMap<Place, Page>,
    /// The same, in the order of their first use.
    seen: Vec<Place>,
}

impl Owners {
    /// Every page that was ever handed out.
    pub(super) fn seen(&self) -> &[Place] {
        &self.seen
    }

    /// A mapping has been made.
    pub(super) fn mapped(&mut self, place: Place, slot: Slot, share: Share) {
        let seen = &mut self.seen;
        let page = self.pages.entry(place).or_insert_with(|| {
            seen.push(place);
            Page::default()
        });
        page.holders.push(Holder { slot, share, leaving: false });
    }

    /// Its unmap begins.
    pub(super) fn leaving(&mut self, place: Place, slot: Slot) {
        let holders = self.pages.get_mut(&place).map(|page| &mut page.holders);
        if let Some(holder) = holders.and_then(|all| all.iter_mut().find(|one| one.slot == slot && !one.leaving)) {
            holder.leaving = true;
        }
    }

    /// Its buffer is its owner's again.
    pub(super) fn handed_back(&mut self, place: Place, slot: Slot, now_ps: u64) {
        let Some(page) = self.pages.get_mut(&place) else { return };
        // A slot may be used again before this; the oldest is the one that goes.
        if let Some(index) = page.holders.iter().position(|holder| holder.slot == slot && holder.leaving) {
            let share = page.holders.remove(index).share;
            if page.past.len() == PAST_MAX {
                page.past.remove(0);
            }
            page.past.push(Past { share, back_ps: now_ps, reached_ps: now_ps });
        }
    }

    /// Whether some buffer in that page is with the device.
    pub(super) fn is_held(&self, place: Place) -> bool {
        self.pages.get(&place).is_some_and(|page| !page.holders.is_empty())
    }

    /// Whether a mapping that stands allows the access.
    pub(super) fn allows(&self, place: Place, memory: u64, rights: Rights) -> bool {
        let stands = |holder: &Holder| !holder.leaving && holder.share.grants(memory, rights);
        self.pages.get(&place).is_some_and(|page| page.holders.iter().any(stands))
    }

    /// The rights of the mapping that went last.
    pub(super) fn past_rights(&self, place: Place) -> Option<Rights> {
        self.pages.get(&place)?.past.last().map(|past| past.share.rights)
    }

    /// What is wrong, if anything is, with an access to `place` that needed `rights` and reached page `memory` of memory.
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
            // Not back yet, so the device may; but nobody else may have the address.
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

    /// Notes that a buffer which is back was reached, and returns for how long more than was known its bytes have been exposed,
    /// in byte-picoseconds.
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
