//! Designs of other crates say what their work costs, or are compared with no other.

use portcullis::Protection::Strict;
use portcullis::invalidation::Deferral;
use portcullis::iova::{Claim, IovaAllocator, IovaRequest};
use portcullis::mapper::{AssembledMapper, Design, DesignInfo, DomainSetup, Info};
use portcullis::platform::Step;
use portcullis::proof::Proof;
use portcullis::{Iommu, IovaRange, MapError, NewDomainError, Platform, SubPage, UnmapError};
use portcullis_designs::{DesignId, Stock};
use portcullis_sim::advice::{Today, advise};
use portcullis_sim::compare::{ClockMode, ComparePlan, Item, Settings};
use portcullis_sim::prefetch::Hints;
use portcullis_sim::{LabDesign, Machine, PayloadRule, Work};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::Mutex;

/// No step is reported.
const SILENT: i64 = -1;

/// A design whose allocator is a map from addresses to lengths. It reports a step of this many cycles.
#[derive(Debug)]
struct Mine<const CYCLES: i64>;

impl<const CYCLES: i64> DesignInfo for Mine<CYCLES> {
    const INFO: Info = Info { id: if CYCLES < 0 { "silent" } else { "priced" }, options: &[], ..Stock::INFO };
}

// SAFETY: a mapper assembled from sound parts is sound.
unsafe impl<P: Platform, I: Iommu, const CYCLES: i64> Design<P, I> for Mine<CYCLES> {
    type Mapper = AssembledMapper<Slots<CYCLES>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        Ok(to.write(AssembledMapper::new(Slots(Mutex::default()), Deferral::Global, setup)?))
    }
}

/// The first page behind all others, from 16 MiB on. Lengths by first page; a claimed range stays until it is freed.
struct Slots<const CYCLES: i64>(Mutex<BTreeMap<u64, (u64, bool)>>);

impl<const CYCLES: i64> Slots<CYCLES> {
    fn report<P: Platform>(&self, platform: &P) {
        if let Ok(cycles) = u64::try_from(CYCLES) {
            platform.probe(Step::Own { cycles });
        }
    }
}

// SAFETY: a range stays in the map until it is freed, and no two overlap.
unsafe impl<P: Platform, const CYCLES: i64> IovaAllocator<P> for Slots<CYCLES> {
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        self.report(platform);
        let mut slots = self.0.lock().expect("whole");
        let first = slots.last_key_value().map_or(0x1000, |(first, (pages, _))| first + pages);
        slots.insert(first, (request.pages, false));
        IovaRange::new(first, request.pages).ok_or(MapError::Empty)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        self.report(platform);
        match self.0.lock().expect("whole").get_mut(&range.first_pfn()) {
            Some((pages, is_claimed)) if *pages == range.pages() && !*is_claimed => {
                *is_claimed = true;
                Ok(Claim::Held)
            }
            _ => Err(UnmapError::NotMapped(range.start())),
        }
    }

    fn free(&self, platform: &P, range: IovaRange, _: &Proof) {
        self.report(platform);
        self.0.lock().expect("whole").remove(&range.first_pfn());
    }

    fn live(&self) -> usize {
        self.0.lock().expect("whole").len()
    }
}

/// The cycles of a page under this design, strict, whether it is priced, and the advice.
fn compared(design: LabDesign) -> (f64, bool, String) {
    let machine = Machine::by_id("cascadelake-cx5").expect("a machine");
    let work = Work::parse("rings:count=2,operations=4000").expect("a workload");
    let designs = [DesignId::Unprotected, DesignId::Magazine].map(LabDesign::from);
    let plan = ComparePlan {
        items: vec![Item { name: "rings".into(), device: None, work, machine, set: Settings::new() }],
        designs: designs.into_iter().chain([design]).map(Into::into).collect(),
        protections: vec![Strict],
        batch: Some(64),
        sub_page: SubPage::Expose,
        clock: ClockMode::Model,
        seed: 1,
        leaf_only_hint: true,
        merge_min: None,
        hints: Hints::NONE,
        payload: PayloadRule::Shown,
        is_stopped: || false,
    };
    let comparison = plan.execute(|_| ());
    let row = comparison.results.iter().find(|row| row.design == design.info().id).expect("its row");
    let outcome = row.outcome().expect("a result");
    let advice = advise(&plan, &comparison, Today::Lazy, |_| ());
    (outcome.cycles_per_page, outcome.unpriced, advice[0].text.clone())
}

/// What the advice says if magazine is compared with another design that is about as good.
const BOTH: &str = "All 2 strict runs";

#[test]
fn an_allocator_that_reports_no_steps_is_named_and_never_crowned() {
    let (silent, is_unpriced, advice) = compared(LabDesign::of::<Mine<SILENT>>());
    assert!(is_unpriced && !advice.contains(BOTH), "{advice}");
    // With a price it is compared, even if the price is nothing.
    let (free, is_unpriced, advice) = compared(LabDesign::of::<Mine<0>>());
    assert!(!is_unpriced && advice.contains(BOTH), "{advice}");
    assert!((free - silent).abs() < 0.5, "{free} for {silent}");
    // A map, a claim and a free for each page.
    let (priced, ..) = compared(LabDesign::of::<Mine<100>>());
    assert!((priced - free - 300.0).abs() < 3.0, "{priced} for {free}");
}

#[test]
fn designs_of_the_list_are_priced() {
    for id in [DesignId::Stock, DesignId::Identity, DesignId::Portcullis] {
        let (_, is_unpriced, _) = compared(id.into());
        assert!(!is_unpriced, "{id:?}");
    }
}
