//! The advice: what it says about real traces, and on which assumptions it depends.

use super::{bundled, machine, replay};
use portcullis::{Protection, SubPage};
use portcullis_designs::DesignId;
use portcullis_sim::advice::{Advice, Today, advise};
use portcullis_sim::compare::{ClockMode, ComparePlan, Item, Settings};
use portcullis_sim::prefetch::Hints;
use portcullis_sim::{LabDesign, Machine, PayloadRule};

fn plan(name: &str, machine: Machine, designs: &[DesignId]) -> ComparePlan {
    let item =
        Item { name: name.to_owned(), device: None, work: replay(&bundled(name)), machine, set: Settings::new() };
    ComparePlan {
        items: vec![item],
        designs: designs.iter().map(|design| LabDesign::from(*design).into()).collect(),
        protections: vec![Protection::Strict, Protection::Deferred],
        batch: None,
        clock: ClockMode::Model,
        seed: 1,
        leaf_only_hint: true,
        merge_min: None,
        hints: Hints::NONE,
        sub_page: SubPage::Expose,
        payload: PayloadRule::Shown,
        is_stopped: || false,
    }
}

fn advice(plan: &ComparePlan) -> Advice {
    let comparison = plan.execute(|_| ());
    advise(plan, &comparison, Today::Lazy, |_| ()).remove(0)
}

/// Designs that Linux has, and designs that it might get.
const DESIGNS: [DesignId; 4] = [DesignId::Unprotected, DesignId::Magazine, DesignId::FastAndSafe, DesignId::Portcullis];

#[test]
fn on_disks_strict_costs_next_to_nothing_and_the_first_sentence_says_how_to_turn_it_on() {
    for name in ["q-nvme-randread4k.strict.2cpu", "nvme-seqread128k.strict.4cpu"] {
        // What it depends on is tried in other tests.
        let mut machine = machine("cascadelake-cx5");
        machine.assumed.clear();
        let advice = advice(&plan(name, machine, &DESIGNS));
        let first = advice.text.split(". ").next().unwrap_or_default();
        assert!(first.starts_with("Turn strict protection on") && first.contains("`iommu.strict=1`"), "{first}");
        assert!(first.contains("next to nothing") && first.contains("disks are the limit"), "{first}");
        // All designs tie, and none is called the winner. The advice names what is available today, and no other
        // design.
        let best = advice.best.strict.expect("a strict run");
        assert_eq!((best.design, best.batch), ("magazine", 1), "the simplest wins a tie");
        assert!(advice.text.contains("none is better here"), "{}", advice.text);
        assert!(!advice.text.contains("`portcullis`") && !advice.text.contains("Choose"), "{}", advice.text);
    }
}

#[test]
fn on_received_packets_it_says_what_strict_costs_today_and_what_would_lower_it() {
    let advice = advice(&plan("q-e1000e-rx.strict.2cpu", machine("cascadelake-cx5"), &DESIGNS));
    let first = advice.text.split(". ").next().unwrap_or_default();
    for part in
        ["Strict protection with Linux as it is", "`iommu.strict=1`", "costs an estimated", " %", "CPUs are the limit"]
    {
        assert!(first.contains(part), "{part} in {first}");
    }
    let at = |part: &str| advice.text.find(part).unwrap_or_else(|| panic!("{part} in {}", advice.text));
    let order =
        [at("Deferred, its default"), at("What would lower it"), at("the price of batches"), at("assumed constants")];
    assert!(order.is_sorted(), "{}", advice.text);
    // A design in batches is compared with today's design in the same batches.
    assert!(advice.text.contains("where `magazine` in the same batches would cost"), "{}", advice.text);
    assert!(advice.text.contains("`--payload` sets it"), "{}", advice.text);
}

#[test]
fn it_hangs_on_what_would_change_it() {
    let name = "q-nvme-randread4k.strict.2cpu";
    let mut machine = machine("cascadelake-cx5");
    machine
        .assumed
        .retain(|key, _| key == "unprotected_cycles_per_request" || key == "invalidation_ps" || key == "map");
    let designs = [DesignId::Unprotected, DesignId::Magazine, DesignId::Portcullis];
    // What is assumed about a constant changes no run, so the same runs serve all of these machines.
    let comparison = plan(name, machine.clone(), &designs).execute(|_| ());
    let of = |machine: &Machine| {
        let plan = plan(name, machine.clone(), &designs);
        advise(&plan, &comparison, Today::Lazy, |_| ()).remove(0).sensitivity.expect("constants are assumed")
    };
    // Within these narrow ranges, no constant matters.
    for (key, range) in
        [("unprotected_cycles_per_request", [5_000.0, 6_000.0]), ("invalidation_ps", [300_000.0, 400_000.0])]
    {
        machine.assumed.insert(key.to_owned(), range);
    }
    let narrow = of(&machine);
    assert_eq!((narrow.constants, narrow.changes.len()), (3, 0), "{narrow:?}");
    // Each way of trying finds a change: by arithmetic, by runs on other hardware, and by runs after counted steps
    // predict a change.
    for (key, at) in [("unprotected_cycles_per_request", 50_000.0), ("invalidation_ps", 3_000_000.0), ("map", 5_000.0)]
    {
        let mut wide = machine.clone();
        let range = wide.assumed.get_mut(key).expect("it is assumed");
        range[1] = at;
        let found = of(&wide);
        let [change] = &found.changes[..] else { panic!("{key}: {found:?}") };
        assert_eq!((change.key.as_str(), change.at), (key, at));
        assert!(change.then.starts_with("strict protection would cost "), "{change:?}");
        // The predicted change matches the advice on such a machine.
        wide.set(key, &format!("{at:.0}")).expect("a value");
        wide.assumed.clear();
        let there = advice(&plan(name, wide, &designs));
        assert!(there.text.starts_with("Strict protection with Linux as it is"), "{key}: {}", there.text);
    }
}

#[test]
fn what_is_set_is_not_assumed_and_what_is_swept_is_not_tried() {
    let name = "q-nvme-randread4k.strict.2cpu";
    let mut machine = machine("cascadelake-cx5");
    machine.assumed.retain(|key, _| key == "map" || key == "unmap");
    machine.set("map", "40").expect("a price");
    let mut plan = plan(name, machine, &[DesignId::Unprotected, DesignId::Magazine]);
    assert_eq!(advice(&plan).sensitivity.map(|sensitivity| sensitivity.constants), Some(1));
    plan.items.push(plan.items[0].clone());
    assert!(advice(&plan).sensitivity.is_some(), "the same capture twice");
    plan.items[1].set.insert("iotlb_entries".to_owned(), 8.into());
    assert!(advice(&plan).sensitivity.is_none(), "the same work on other hardware: something is swept");
}

#[test]
fn with_batches_of_its_own_choice_it_is_tried_as_well() {
    let mut machine = machine("cascadelake-cx5");
    machine.assumed.retain(|key, _| key == "chunk_write");
    machine.assumed.insert("chunk_write".to_owned(), [3.0, 20_000.0]);
    let mut plan =
        plan("q-e1000e-rx.strict.2cpu", machine, &[DesignId::Unprotected, DesignId::Identity, DesignId::Portcullis]);
    plan.batch = Some(16);
    let sensitivity = advice(&plan).sensitivity.expect("constants are assumed");
    let then = sensitivity.changes.first().map(|change| change.then.as_str());
    assert!(
        then.is_some_and(
            |then| then == "in batches of 16 `identity` would be better than `portcullis`, which is the best now"
        ),
        "{sensitivity:?}"
    );
}
