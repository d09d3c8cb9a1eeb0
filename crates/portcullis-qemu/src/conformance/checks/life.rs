//! A random sequence of operations that is the same every time: maps, DMA within and without the rights, unmaps one
//! by one and in batches, DMA to unmapped addresses, and devices that are attached and detached.

use crate::conformance::driven::page;
use crate::conformance::rig::{A, C};
use crate::conformance::wiring::{Wired, WiredUnit};
use crate::conformance::{Check, Checked, Seen, Stage, agree};
use portcullis::mapper::Design;
use portcullis::{Access, Iova, IovaRange, PAGE_SIZE, PhysAddr, Protection};
use portcullis_designs::{Eiovar, Identity, Magazine, Stock};

const SEED: u64 = 0x706f_7274_6375_6c6c;
const STEPS: u64 = 400;
/// The most mappings alive at a time.
const LIVE_MAX: usize = 24;
/// The number of addresses remembered after their unmap.
const DEAD_MAX: usize = 16;

pub(super) const CHECKS: &[Check] = &[
    Check::driven("random-life-under-stock", life::<Stock>),
    Check::driven("random-life-under-eiovar", life::<Eiovar>),
    Check::driven("random-life-under-identity", life::<Identity>),
    Check::driven("random-life-under-magazine", life::<Magazine>),
];

/// Pseudorandom numbers: splitmix64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ word >> 31) % limit as u64) as usize
    }
}

#[derive(Clone, Copy)]
struct Mapped {
    iova: Iova,
    phys: PhysAddr,
    pages: u64,
    access: Access,
}

impl Mapped {
    fn range(&self) -> IovaRange {
        IovaRange::new(self.iova.pfn(), self.pages).expect("a mapping has pages")
    }

    /// The IOVA and the physical address of one of its pages.
    fn at(&self, page: u64) -> (Iova, PhysAddr) {
        (Iova::new(self.iova.as_u64() + page * PAGE_SIZE), PhysAddr::new(self.phys.as_u64() + page * PAGE_SIZE))
    }
}

fn life<D: Design<Wired, WiredUnit>>(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<D>(Protection::Strict)?;
    space.domain.attach(A)?;
    let mut numbers = Numbers(SEED);
    let (mut live, mut dead) = (Vec::<Mapped>::new(), Vec::<Mapped>::new());
    let mut guest = false;
    for step in 0..STEPS {
        match numbers.below(10) {
            0..=2 if live.len() < LIVE_MAX => {
                let pages = [1, 1, 1, 2, 3, 8][numbers.below(6)];
                let access =
                    [Access::DeviceReads, Access::DeviceWrites, Access::DeviceReadsAndWrites][numbers.below(3)];
                let phys = page(16 * numbers.below(256) as u64);
                let iova = space.map(phys, pages * PAGE_SIZE, access)?;
                dead.retain(|gone| !gone.range().overlaps(IovaRange::new(iova.pfn(), pages).expect("a mapping")));
                live.push(Mapped { iova, phys, pages, access });
            }
            0..=6 if !live.is_empty() => {
                let mapped = live[numbers.below(live.len())];
                let (iova, phys) = mapped.at(numbers.below(mapped.pages as usize) as u64);
                let reads = numbers.below(2) == 0;
                let asks = if reads { Access::DeviceReads } else { Access::DeviceWrites };
                let device = if guest && numbers.below(3) == 0 { C } else { A };
                let seen = if reads { space.read(device, iova, phys)? } else { driven.write(device, iova, phys)? };
                let granted = mapped.access.rights().allows(asks.rights());
                let fits = if granted { seen == Seen::Landed } else { seen.is_blocked() };
                agree!(fits, true, "step {step}: {asks:?} of {iova}, mapped for {:?}: {seen:?}", mapped.access);
            }
            7 if !live.is_empty() => {
                let mut batch = space.domain.raw_batch();
                let mut going = Vec::new();
                for _ in 0..=numbers.below(live.len().min(4)) {
                    let mapped = live.swap_remove(numbers.below(live.len()));
                    batch.unmap(mapped.range())?;
                    going.push(mapped);
                }
                batch.commit()?;
                dead.extend(going);
                // If mappings share addresses, another live mapping may still use one.
                dead.retain(|gone| !live.iter().any(|mapped| mapped.range().overlaps(gone.range())));
                dead.drain(..dead.len().saturating_sub(DEAD_MAX));
            }
            8 if !dead.is_empty() => {
                let gone = dead[numbers.below(dead.len())];
                let (iova, phys) = gone.at(numbers.below(gone.pages as usize) as u64);
                let seen = driven.write(A, iova, phys)?;
                agree!(seen.is_blocked(), true, "step {step}: a write to {iova}, unmapped: {seen:?}");
            }
            9 if numbers.below(4) == 0 => {
                if guest {
                    space.domain.detach(C)?
                } else {
                    space.domain.attach(C)?
                }
                guest = !guest;
            }
            _ => {
                let Some(gone) = dead.last() else { continue };
                let seen = driven.write(A, gone.iova, gone.phys)?;
                agree!(seen.is_blocked(), true, "step {step}: a write to {}, just unmapped: {seen:?}", gone.iova);
            }
        }
    }
    agree!(dead.is_empty(), false, "something was unmapped");
    Ok(())
}
