//! Each allocation of the driver is refused once. The result is a typed error, nothing changes or leaks, and the same
//! call succeeds when there is memory again. No allocation is made with a lock held.

use super::domains::TABLES;
use super::fake_unit::FakeUnit;
use super::host::Host;
use super::inherits::left_on;
use super::strict_host::{Registers, Strict, driver, driver_bytes, refuse_at, refused_and_locked};
use super::{bring_up, close, open};
use crate::{BringUpError, TakeOver, Unit, UnitConfig, Units};
use portcullis::NoMemory;
use portcullis::iommu::{AttachError, DomainId, Iommu, SourceId};
use std::sync::atomic::{AtomicBool, Ordering};

type Driver<'a> = Unit<Registers<'a>, Strict<'a>>;

/// More devices than the lists first have room for, on several buses.
const DEVICES: usize = 20;

fn device(number: usize) -> SourceId {
    SourceId::from_requester((((number % 3) << 8) + 0x20 + number) as u16)
}

/// The observable state of a unit and of the host.
fn seen(host: &Host, fakes: &[FakeUnit<'_>]) -> impl PartialEq + core::fmt::Debug {
    let of_unit = |fake: &FakeUnit<'_>| {
        let contexts: Vec<_> = (0..DEVICES).map(|number| fake.context(device(number))).collect();
        (contexts, fake.with(|state| (state.root, state.status, state.commands.clone())))
    };
    (host.fake.frames_lent(), fakes.iter().map(of_unit).collect::<Vec<_>>())
}

/// What a refused call must leave unchanged.
#[derive(Clone, Copy, PartialEq)]
enum Keeps {
    Everything,
    /// Lists that have grown in the call may stay large.
    Lists,
}

/// A host with two units.
struct Rig<'a> {
    host: &'a Host,
    fakes: &'a [FakeUnit<'a>],
}

impl<'a> Rig<'a> {
    /// Calls the driver, and repeats the call if it was refused memory.
    fn call<R>(&self, what: &str, keeps: Keeps, call: impl Fn() -> Result<R, AttachError>) -> R {
        let (before, bytes, (refused, _)) = (seen(self.host, self.fakes), driver_bytes(), refused_and_locked());
        let called = driver(&call);
        let is_refused = refused_and_locked().0 > refused;
        match called {
            Ok(result) => {
                assert!(!is_refused, "{what}: it continued without memory");
                result
            }
            Err(error) => {
                assert_eq!((error, is_refused), (NoMemory.into(), true), "{what}");
                assert_eq!(seen(self.host, self.fakes), before, "{what}");
                assert!(keeps == Keeps::Lists || driver_bytes() == bytes, "{what}: memory was lost");
                driver(call).unwrap_or_else(|error| panic!("{what}, with memory: {error}"))
            }
        }
    }

    /// Takes over a unit that is on or off.
    fn take_over(&self, index: usize) -> Driver<'a> {
        let config = UnitConfig { wait_us_max: 50, ..UnitConfig::default() };
        self.call("take over", Keeps::Everything, || {
            let registers = Registers(&self.fakes[index]);
            // SAFETY: no memory is behind the fake unit.
            let unit = unsafe { Unit::take_over(registers, Strict(self.host), config, TakeOver::Always, |_| Ok(())) };
            unit.map_err(|error| match error {
                BringUpError::NoMemory(error) => error.into(),
                other => panic!("{other}"),
            })
        })
    }
}

/// Makes all calls that allocate, with allocation number `number` refused. Returns whether there was such an
/// allocation.
fn run(number: usize) -> bool {
    let host = Host::new(true);
    let fakes = [FakeUnit::new(&host), FakeUnit::new(&host)];
    left_on(&fakes[0], &host);
    refuse_at(number);
    let rig = Rig { host: &host, fakes: &fakes };
    let units = [rig.take_over(0), rig.take_over(1)];
    let unit = &units[0];
    assert_eq!(unit.inherited_devices().count(), 3);
    // Ids 2 and 5 belong to the previous owner.
    let ids = (1..).filter(|id| ![2, 5].contains(id)).map(DomainId);
    let domains: Vec<DomainId> = ids.take(DEVICES).collect();
    for id in &domains {
        // The next id is used, so a refused call has taken none.
        assert_eq!(rig.call("open", Keeps::Everything, || open(unit, TABLES)), *id);
    }
    for (number, domain) in domains.iter().enumerate() {
        rig.call("attach", Keeps::Everything, || unit.attach(*domain, device(number)));
    }
    (0..DEVICES).for_each(|number| assert!(fakes[0].context(device(number)).is_some()));

    let joined = Units::new(&units, Strict(&host), |device: SourceId| Some(usize::from(device.requester() & 1)), 50);
    let joined = joined.expect("two units");
    for id in 1..=DEVICES as u16 {
        assert_eq!(rig.call("open everywhere", Keeps::Lists, || open(&joined, TABLES)), DomainId(id));
    }
    driver(|| {
        (1..=DEVICES as u16).for_each(|id| close(&joined, DomainId(id)).expect("open"));
        drop(joined);
    });
    // SAFETY: no memory is behind the fake units.
    driver(|| units.map(|unit| unsafe { unit.shut_down() }.expect("it stops")));
    let (refused, locked) = refused_and_locked();
    assert_eq!((host.fake.frames_lent(), driver_bytes(), locked), (0, 0, 0), "allocation {number}");
    refuse_at(usize::MAX);
    refused > 0
}

/// An interrupt attaches a device of the same bus while the page for its context table is allocated. That page is
/// then not needed.
#[test]
fn what_another_call_has_brought_meanwhile_goes_back() {
    let host: &Host = Box::leak(Box::new(Host::new(true)));
    let fake: &FakeUnit<'_> = Box::leak(Box::new(FakeUnit::new(host)));
    let unit: &super::Driver<'_> = Box::leak(Box::new(bring_up(fake, host)));
    let domain = open(unit, TABLES).expect("an id");
    let lent = host.fake.frames_lent();
    let interrupted = AtomicBool::new(false);
    host.on_lend(move || {
        if !interrupted.swap(true, Ordering::Relaxed) {
            unit.attach(domain, device(3)).expect("a free device");
        }
    });
    unit.attach(domain, device(0)).expect("a free device");
    assert_eq!(host.fake.frames_lent(), lent + 1, "one context table");
    assert!([0, 3].iter().all(|number| fake.context(device(*number)).is_some()));
}

#[test]
fn every_allocation_can_be_refused() {
    let allocations = (0..).take_while(|number| run(*number)).count();
    assert!(allocations > 25, "there are more than {allocations}");
}
