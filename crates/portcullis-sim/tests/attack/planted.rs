//! The malicious device finds each planted flaw by the name of the rule that it breaks. In the same design without the
//! flaw, under the same seed, it finds nothing.

use super::allocators::{self, Listed, Windowed};
use super::hardware::{self, OnUnit};
use super::mappers::{self, Mapping};
use super::shared_commits::Riding;
use super::{machine, rings};
use portcullis::Protection::{self, Deferred, Strict};
use portcullis::Rule;
use portcullis::mapper::Design;
use portcullis_designs::{DesignId, Identity, Magazine, Portcullis, Solaris, Stock};
use portcullis_model::PrefetchFlaw;
use portcullis_sim::attack::{
    Attacked, PROBES_CACHED_MIN, attack, attack_on_breaking_hardware, attack_on_flawed_prefetcher,
};
use portcullis_sim::{Job, LabDesign, LabPlatform, LabUnit, Machine, RunError, Work};
use portcullis_testkit::attack::passes;

/// The conditions of an attack.
struct Case {
    machine: Machine,
    rings: &'static str,
    protection: Protection,
    batch: usize,
    /// Whether the driver commits in two halves.
    halves: bool,
}

impl Case {
    fn new(rings: &'static str, protection: Protection) -> Self {
        Self { machine: machine(), rings, protection, batch: 1, halves: false }
    }

    /// Batches of a burst, in two halves.
    fn in_halves(rings: &'static str) -> Self {
        Self { batch: 16, halves: true, ..Self::new(rings, Strict) }
    }

    fn job(&self) -> Job<'_> {
        let mut work = rings(self.rings);
        if let Work::Rings(rings) = &mut work {
            rings.halves = self.halves;
        }
        let job = Job::new(&self.machine, work, DesignId::Stock, self.protection);
        Job { batch: self.batch, ..job }
    }

    fn job_of<D: Design<LabPlatform, LabUnit>>(&self) -> Job<'_> {
        Job { design: LabDesign::of::<D>(), ..self.job() }
    }

    fn attack<D: Design<LabPlatform, LabUnit>>(&self) -> Attacked {
        attack(&self.job_of::<D>())
    }

    /// Asserts that the device finds in `Flawed` that `rule` is broken, and no other rules except `consequences`, and
    /// that it finds nothing in `Sound`.
    fn finds<Flawed, Sound>(&self, rule: Rule, consequences: &[Rule])
    where
        Flawed: Design<LabPlatform, LabUnit>,
        Sound: Design<LabPlatform, LabUnit>,
    {
        passes(&self.attack::<Sound>(), "without the flaw");
        let attacked = self.attack::<Flawed>();
        let found = undeclared(&attacked);
        assert!(found.contains(&rule), "{rule}: {attacked:?}");
        let others: Vec<&Rule> =
            found.iter().filter(|other| **other != rule && !consequences.contains(other)).collect();
        assert!(others.is_empty(), "{rule} was expected, but {others:?} were found too: {attacked:?}");
    }
}

fn undeclared(attacked: &Attacked) -> Vec<Rule> {
    attacked.found.iter().filter(|found| !found.declared).map(|found| found.rule).collect()
}

/// One ring, and two rings that share addresses.
const ONE: &str = "operations=6000";
const TWO: &str = "count=2,operations=6000";
/// Rings whose commits meet.
const EIGHT: &str = "count=8,operations=6000";

#[test]
fn s1_a_device_in_the_domain_of_another() {
    Case::new(ONE, Strict)
        .finds::<OnUnit<Stock, { hardware::MIXES_UP_DOMAINS }>, OnUnit<Stock, { hardware::NONE }>>(Rule::Reach, &[]);
}

/// A single unmap takes a separate path through a design. The attack takes it too. In batches this design is sound.
#[test]
fn s2_a_single_unmap_that_is_committed_late() {
    type Late<B> = Mapping<B, { mappers::COMMITS_SINGLES_LATE }>;
    type Sound<B> = Mapping<B, { mappers::NONE }>;
    let singles = Case::new(ONE, Strict);
    let batches = Case { batch: 8, ..Case::new(ONE, Strict) };
    singles.finds::<Late<Portcullis>, Sound<Portcullis>>(Rule::Strict, &[]);
    passes(&batches.attack::<Late<Portcullis>>(), "in batches");
    singles.finds::<Late<Magazine>, Sound<Magazine>>(Rule::Strict, &[]);
    passes(&batches.attack::<Late<Magazine>>(), "in batches");
}

/// An address that was never flushed is handed out again.
#[test]
fn s2_no_flush() {
    Case::new(ONE, Strict).finds::<OnUnit<Stock, { hardware::LOSES_COMMANDS }>, OnUnit<Stock, { hardware::NONE }>>(
        Rule::Strict,
        &[Rule::Reuse],
    );
}

/// A commit that does not wait also hands the address out again before it is invalidated.
#[test]
fn s2_a_wait_that_is_not_waited_for() {
    let case = Case::new(ONE, Strict);
    let consequences = [Rule::Reuse];
    case.finds::<OnUnit<Stock, { hardware::NEVER_WAITS }>, OnUnit<Stock, { hardware::NONE }>>(
        Rule::Strict,
        &consequences,
    );
    case.finds::<OnUnit<Magazine, { hardware::NEVER_WAITS }>, OnUnit<Magazine, { hardware::NONE }>>(
        Rule::Strict,
        &consequences,
    );
    case.finds::<OnUnit<Portcullis, { hardware::NEVER_WAITS }>, OnUnit<Portcullis, { hardware::NONE }>>(
        Rule::Strict,
        &consequences,
    );
}

#[test]
fn s2_a_batch_that_returns_early() {
    let case = Case { batch: 16, ..Case::new(ONE, Strict) };
    case.finds::<OnUnit<Stock, { hardware::WAITS_FOR_THE_FIRST }>, OnUnit<Stock, { hardware::NONE }>>(
        Rule::Strict,
        &[Rule::Reuse],
    );
    passes(&Case::new(ONE, Strict).attack::<OnUnit<Stock, { hardware::WAITS_FOR_THE_FIRST }>>(), "in batches of one");
}

/// The commit before it is in another submission, which completed earlier.
#[test]
fn s2_a_combiner_that_returns_early() {
    let case = Case::new(EIGHT, Strict);
    case.finds::<OnUnit<Riding, { hardware::RETURNS_EARLY }>, OnUnit<Riding, { hardware::NONE }>>(
        Rule::Strict,
        &[Rule::Reuse],
    );
    case.finds::<OnUnit<Portcullis, { hardware::RETURNS_EARLY }>, OnUnit<Portcullis, { hardware::NONE }>>(
        Rule::Strict,
        &[Rule::Reuse],
    );
}

/// Between the halves the device still has the buffers, and that is no breach: the twins without a flaw pass.
#[test]
fn s2_a_buffer_that_is_handed_on_at_the_submission() {
    let case = Case::in_halves(ONE);
    case.finds::<Mapping<Stock, { mappers::HANDS_ON_AT_SUBMIT }>, Mapping<Stock, { mappers::NONE }>>(Rule::Strict, &[]);
    case.finds::<Mapping<Portcullis, { mappers::HANDS_ON_AT_SUBMIT }>, Mapping<Portcullis, { mappers::NONE }>>(
        Rule::Strict,
        &[],
    );
}

/// The driver waits at its next burst, when healthy hardware is done. Slow hardware is not.
#[test]
fn s2_a_second_half_that_does_not_wait() {
    let mut case = Case::in_halves(EIGHT);
    (case.machine.iommu.invalidation_ps, case.machine.iommu.wait_ps) = (20_000_000, 200_000_000);
    case.finds::<Mapping<Stock, { mappers::LOOKS_IN_PLACE_OF_A_WAIT }>, Mapping<Stock, { mappers::NONE }>>(
        Rule::Strict,
        &[],
    );
}

/// A wait that looks at a submission that completed earlier.
#[test]
fn s2_a_second_half_that_looks_at_the_wrong_submission() {
    let case = Case::in_halves(EIGHT);
    case.finds::<OnUnit<Portcullis, { hardware::RETURNS_EARLY }>, OnUnit<Portcullis, { hardware::NONE }>>(
        Rule::Strict,
        &[Rule::Reuse],
    );
}

/// By the end of the batch, the hardware has seen four times as many other pages as it can cache.
#[test]
fn s2_a_batch_that_forgets_its_first_unmap() {
    let case = Case { batch: 32, ..Case::new("ring=64,burst=32,pages=16,operations=2000", Strict) };
    case.finds::<OnUnit<Stock, { hardware::LOSES_THE_FIRST }>, OnUnit<Stock, { hardware::NONE }>>(
        Rule::Strict,
        &[Rule::Reuse],
    );
}

/// The breach is declared up to the bound, but not beyond it.
#[test]
fn s2_a_queue_whose_timer_never_comes() {
    let case = Case::new(ONE, Deferred);
    case.finds::<Mapping<Stock, { mappers::FORGETS_ITS_TIMER }>, Mapping<Stock, { mappers::NONE }>>(Rule::Strict, &[]);
}

#[test]
fn s3_an_address_freed_before_the_flush() {
    for protection in [Strict, Deferred] {
        // The address is claimed in one core's batch, and handed out to the other core.
        let case = Case { batch: 16, ..Case::new(TWO, protection) };
        case.finds::<Listed<{ allocators::REUSES_WHAT_IS_CLAIMED }>, Listed<{ allocators::NONE }>>(Rule::Reuse, &[]);
    }
}

#[test]
fn s3_a_window_used_again_too_early() {
    Case::new(ONE, Deferred)
        .finds::<Windowed<{ allocators::REUSES_WHAT_IS_CLAIMED }>, Windowed<{ allocators::NONE }>>(Rule::Reuse, &[]);
}

/// Nothing is invalidated before an address is handed out, and a ring gets its addresses back in turn.
#[test]
fn s3_a_map_that_does_not_invalidate() {
    Case::new(ONE, Deferred)
        .finds::<OnUnit<Solaris, { hardware::LOSES_COMMANDS }>, OnUnit<Solaris, { hardware::NONE }>>(Rule::Reuse, &[]);
}

/// The cached pointer to the freed page leads to its old entries, and once it is a table page again, to those of
/// another mapping.
#[test]
fn s4_a_leaf_only_hint_after_a_freed_table_page() {
    let mut case = Case::new("ring=8,burst=2,pages=512,operations=600", Strict);
    // Every mapping fills a leaf table, which is freed with it.
    case.machine.iommu.set("leaf_2m", "false").expect("a parameter");
    case.finds::<OnUnit<Stock, { hardware::LEAVES_POINTERS }>, OnUnit<Stock, { hardware::NONE }>>(
        Rule::Tables,
        &[Rule::Strict, Rule::Reach, Rule::Reuse],
    );
}

#[test]
fn s5_wider_rights() {
    let case = Case::new(ONE, Strict);
    case.finds::<Mapping<Stock, { mappers::WIDENS_RIGHTS }>, Mapping<Stock, { mappers::NONE }>>(Rule::Rights, &[]);
    case.finds::<Mapping<Magazine, { mappers::WIDENS_RIGHTS }>, Mapping<Magazine, { mappers::NONE }>>(
        Rule::Rights,
        &[],
    );
    // In `identity` the rights are a part of the address.
    case.finds::<Mapping<Identity, { mappers::WIDENS_RIGHTS }>, Mapping<Identity, { mappers::NONE }>>(
        Rule::Rights,
        &[],
    );
}

/// Acknowledgements, which the device should only read.
#[test]
fn s5_writes_through_what_may_be_read() {
    let case = Case::new("tx=0.25,operations=6000", Strict);
    case.finds::<Mapping<Stock, { mappers::LETS_READERS_WRITE }>, Mapping<Stock, { mappers::NONE }>>(Rule::Rights, &[]);
    case.finds::<Mapping<Identity, { mappers::LETS_READERS_WRITE }>, Mapping<Identity, { mappers::NONE }>>(
        Rule::Rights,
        &[],
    );
}

#[test]
fn s9_a_reserved_page() {
    Case::new(ONE, Strict)
        .finds::<Listed<{ allocators::HANDS_OUT_PAGE_ZERO }>, Listed<{ allocators::NONE }>>(Rule::Reserved, &[]);
}

/// Once the hardware refuses, a sound design hands back no more buffers, and says why.
#[test]
fn s11_a_queue_error_that_returns_the_buffer() {
    let case = Case::new(ONE, Strict);
    let attack = |flawed: bool| {
        let after = 2000;
        if flawed {
            attack_on_breaking_hardware(&case.job_of::<Mapping<Stock, { mappers::HIDES_ERRORS }>>(), after)
        } else {
            attack_on_breaking_hardware(&case.job_of::<Mapping<Stock, { mappers::NONE }>>(), after)
        }
    };
    let sound = attack(false);
    assert!(sound.found.is_empty(), "{sound:?}");
    assert!(matches!(sound.error, Some(RunError::Commit(_))), "{sound:?}");
    assert!(sound.probes_cached >= Some(PROBES_CACHED_MIN), "{sound:?}");
    assert_eq!(undeclared(&attack(true)), [Rule::Completion]);
}

/// The same between the halves of commits.
#[test]
fn s11_a_queue_error_between_the_halves_that_returns_the_buffers() {
    let case = Case::in_halves(ONE);
    let after = 2000;
    let sound = attack_on_breaking_hardware(&case.job_of::<Mapping<Stock, { mappers::NONE }>>(), after);
    assert!(sound.found.is_empty(), "{sound:?}");
    assert!(matches!(sound.error, Some(RunError::Commit(_))), "{sound:?}");
    let flawed = attack_on_breaking_hardware(&case.job_of::<Mapping<Stock, { mappers::HIDES_ERRORS }>>(), after);
    assert_eq!(undeclared(&flawed), [Rule::Completion]);
}

/// Buffers have more pages than the IOTLB has entries. When they are unmapped, some pages are in the buffer of a
/// prefetcher, or being walked for.
const LARGE: &str = "ring=4,pages=256,operations=600";

/// Attacks a design on hardware with a prefetcher that has `flaw`, and on the same hardware without the flaw.
fn a_flaw_of_the_prefetcher(rule: Rule, consequences: &[Rule], flaw: PrefetchFlaw) {
    for (design, prefetcher) in [(DesignId::Portcullis, "next"), (DesignId::Magazine, "adjacent")] {
        let mut case = Case::new(LARGE, Strict);
        case.machine.iommu.prefetcher = Some(prefetcher.parse().expect("a prefetcher"));
        // Walks take longer than an invalidation.
        case.machine.iommu.memory_read_ps = 1_000_000;
        let job = Job { design: design.into(), ..case.job() };
        passes(&attack(&job), "without the flaw");
        let attacked = attack_on_flawed_prefetcher(&job, flaw);
        let found = undeclared(&attacked);
        assert!(found.contains(&rule), "{rule}, {prefetcher}: {attacked:?}");
        assert!(
            found.iter().all(|one| *one == rule || consequences.contains(one)),
            "{rule}, {prefetcher}: {attacked:?}"
        );
    }
}

#[test]
fn s2_a_prefetch_that_lands_after_the_invalidation() {
    a_flaw_of_the_prefetcher(Rule::Strict, &[Rule::Reuse], PrefetchFlaw::LandsAfterInvalidation);
}

#[test]
fn s2_a_prefetch_buffer_that_page_selective_commands_spare() {
    a_flaw_of_the_prefetcher(Rule::Strict, &[Rule::Reuse], PrefetchFlaw::BufferIsSpared);
}

#[test]
fn s5_a_prefetched_page_that_skips_the_check_of_rights() {
    a_flaw_of_the_prefetcher(Rule::Rights, &[], PrefetchFlaw::RightsAreSkipped);
}
