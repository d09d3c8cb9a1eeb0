//! Sub-page exposure (S8): bytes that the device can reach because their page is mapped, although no live buffer holds
//! them.

use crate::run::event::RunEvent;
use crate::run::live::{Extent, Live, LivePage, Slot, pieces};
use crate::run::world::{Observer, World};
use portcullis::mapper::Addressing;
use portcullis::{Iova, PAGE_SIZE, Segment};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A physical page with live mappings.
#[derive(Default)]
struct Page {
    /// The bytes that each mapping owns. Nearly always there are one or two.
    owned: SmallVec<[Extent; 2]>,
    since_ps: u64,
}

/// Integrates these bytes over time.
#[derive(Default)]
pub(in crate::run) struct Residual {
    pages: FxHashMap<u64, Page>,
    /// Mappings by ring entries that reach beyond their buffers: by how many bytes, and since when.
    beyond: FxHashMap<Slot, (u64, u64)>,
    bytes_ps: u128,
    /// The sum at the end of warm-up.
    warm_bytes_ps: u128,
}

impl Observer for Residual {
    fn note(&mut self, world: &World, event: &RunEvent<'_>) {
        let now_ps = world.engine.now_ps();
        match event {
            RunEvent::Mapped { slot, live } if is_by_entry(live) => match beyond(world, live) {
                0 => {}
                bytes => drop(self.beyond.insert(*slot, (bytes, now_ps))),
            },
            RunEvent::HandedBack { slot, live } if is_by_entry(live) => {
                let (bytes, since_ps) = self.beyond.remove(slot).unwrap_or_default();
                self.bytes_ps += u128::from(bytes) * u128::from(now_ps.saturating_sub(since_ps));
            }
            RunEvent::Mapped { live, .. } => self.mapped(&live.seen, now_ps),
            RunEvent::HandedBack { live, .. } => self.handed_back(&live.seen, now_ps),
            RunEvent::WarmedUp => self.warm_bytes_ps = self.total(now_ps),
            _ => {}
        }
    }
}

impl Residual {
    /// Records that a buffer has been mapped.
    fn mapped(&mut self, segments: &[Segment], now_ps: u64) {
        for (pfn, extent) in pieces(segments) {
            self.settle(pfn, now_ps).owned.push(extent);
        }
    }

    /// Records that a buffer has been handed back to its owner.
    fn handed_back(&mut self, segments: &[Segment], now_ps: u64) {
        for (pfn, extent) in pieces(segments) {
            let page = self.settle(pfn, now_ps);
            // A page without buffers stays in the map, because it is likely to get one again.
            if let Some(index) = page.owned.iter().position(|owned| *owned == extent) {
                page.owned.swap_remove(index);
            }
        }
    }

    /// Byte-picoseconds from the end of warm-up to `now_ps`.
    pub(in crate::run) fn since_warm_up(&self, now_ps: u64) -> u128 {
        self.total(now_ps) - self.warm_bytes_ps
    }

    /// Byte-picoseconds up to `now_ps`.
    pub(in crate::run) fn total(&self, now_ps: u64) -> u128 {
        // The sums do not depend on the order of the map.
        let open: u128 = self.pages.values().map(|page| page.exposed(now_ps)).sum();
        let lasted = |(bytes, since_ps): &(u64, u64)| u128::from(*bytes) * u128::from(now_ps.saturating_sub(*since_ps));
        self.bytes_ps + open + self.beyond.values().map(lasted).sum::<u128>()
    }

    /// The page, after its exposure so far has been added to the sum.
    fn settle(&mut self, pfn: u64, now_ps: u64) -> &mut Page {
        let page = self.pages.entry(pfn).or_default();
        self.bytes_ps += page.exposed(now_ps);
        page.since_ps = page.since_ps.max(now_ps);
        page
    }
}

fn is_by_entry(live: &Live) -> bool {
    matches!(live.addressing, Addressing::Entries { .. })
}

/// Bytes behind the buffers of a mapping to which its tables lead, up to the end of the page as the device sees it. An
/// exact entry leads to none. This is checked in the tables, not assumed.
fn beyond(world: &World, live: &Live) -> u64 {
    let (now_ps, source) = (world.engine.now_ps(), world.devices.borrow()[live.device].source());
    let leads = |iova: u64| world.vtd.in_tables(now_ps, source, Iova::new(iova)).is_some();
    let of_page = |page: LivePage| {
        let (end, rest) = (page.iova.as_u64() + u64::from(page.extent.1), PAGE_SIZE - u64::from(page.extent.1));
        if rest > 0 && (leads(end) || leads(end + rest - 1)) { rest } else { 0 }
    };
    live.pages().into_iter().map(of_page).sum()
}

impl Page {
    fn exposed(&self, now_ps: u64) -> u128 {
        let lasted_ps = now_ps.saturating_sub(self.since_ps);
        match self.owned.as_slice() {
            [] => 0,
            [(start, end)] => u128::from(PAGE_SIZE - u64::from(end - start)) * u128::from(lasted_ps),
            [one, other] => {
                let both = u64::from(one.1.min(other.1).saturating_sub(one.0.max(other.0)));
                let owned = u64::from(one.1 - one.0) + u64::from(other.1 - other.0) - both;
                u128::from(PAGE_SIZE - owned) * u128::from(lasted_ps)
            }
            _ => u128::from(PAGE_SIZE - self.owned_bytes()) * u128::from(lasted_ps),
        }
    }

    /// Bytes that some live buffer holds. Bytes that two buffers hold count once.
    fn owned_bytes(&self) -> u64 {
        let mut owned = self.owned.clone();
        owned.sort_unstable();
        let (mut bytes, mut counted_to) = (0, 0);
        for (start, end) in owned {
            bytes += u64::from(end.saturating_sub(start.max(counted_to)));
            counted_to = counted_to.max(end);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis::PhysAddr;

    fn half(index: u64) -> [Segment; 1] {
        [Segment { phys: PhysAddr::new(0x5000 + index * 2048), len: 2048 }]
    }

    #[test]
    fn two_halves_of_a_page_expose_each_other_only_while_one_is_gone() {
        let mut residual = Residual::default();
        residual.mapped(&half(0), 0);
        residual.mapped(&half(1), 10);
        assert_eq!(residual.total(10), 2048 * 10, "the second half, before it was mapped");
        assert_eq!(residual.total(50), 2048 * 10, "nothing while both are live");
        residual.handed_back(&half(0), 50);
        assert_eq!(residual.total(60), 2048 * 20, "the first half is reached through the page of the second");
        residual.handed_back(&half(1), 60);
        assert_eq!(residual.total(1000), 2048 * 20);
    }

    #[test]
    fn a_half_mapped_twice_is_owned_once() {
        let mut residual = Residual::default();
        residual.mapped(&half(0), 0);
        residual.mapped(&half(0), 0);
        assert_eq!(residual.total(10), 2048 * 10);
        residual.handed_back(&half(0), 10);
        assert_eq!(residual.total(20), 2048 * 20, "the other mapping still owns it");
    }

    #[test]
    fn a_buffer_across_pages_exposes_the_rest_of_both() {
        let mut residual = Residual::default();
        residual.mapped(&[Segment { phys: PhysAddr::new(0x1f00), len: 0x200 }], 0);
        assert_eq!(residual.total(1), u128::from(2 * PAGE_SIZE - 0x200));
    }
}
