//! Checks that the host keeps its promises, and runs the VT-d driver over it: on a unit in software, whose device
//! reaches exactly the mapped page.

use custom_host::Host;
use portcullis::designs::Portcullis;
use portcullis::{Access, Open, PAGE_SIZE, PhysAddr, Protection, SourceId};
use portcullis_model::{Clock, Device, ModelMmio, Parameters, Ram, Vtd};
use portcullis_vtd::{Unit, UnitConfig};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// Bus 0, device 3, function 0.
const DEVICE: SourceId = SourceId::new(0, 3, 0);
const TABLE_PAGES: usize = 256;

/// The memory of a machine, and a host that has some of its pages for tables.
fn machine() -> (Arc<Ram>, Host) {
    let ram = Arc::new(Ram::new(PhysAddr::new(1 << 30), 64 << 20));
    // The host may keep references for as long as it likes, so the memory is never freed.
    let kept: &'static Arc<Ram> = Box::leak(Box::new(ram.clone()));
    let pages: Vec<_> =
        (0..TABLE_PAGES).map(|_| ram.allocate().expect("a page")).map(|page| (page, kept.frame(page))).collect();
    // SAFETY: the pages were allocated for the host alone.
    let host = unsafe { Host::new(pages) };
    (ram, host)
}

#[test]
fn the_host_keeps_its_promises() {
    let (_, host) = machine();
    portcullis_testkit::host::check(&host);
    assert_eq!(host.lent(), 0, "the kit has returned its table pages");
}

/// The unit's clock: the clock of this machine.
struct Now(Instant);

impl Clock for Now {
    fn now_ps(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).map_or(u64::MAX, |ns| ns.saturating_mul(1000))
    }
}

/// Stops the unit, also after a panic.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_unit_comes_up_and_serves_a_device() -> Result<(), Box<dyn Error>> {
    let (ram, host) = machine();
    let vtd = Arc::new(Vtd::new(Parameters { coherent: true, ..Parameters::qemu() }, ram.clone()));
    let clock = Now(Instant::now());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // The unit works on its own thread while the driver waits.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                vtd.advance(clock.now_ps());
                thread::yield_now();
            }
        });
        let _stop = Stop(&stop);
        serve(&host, &ram, &vtd, &clock)
    })?;
    assert_eq!(host.lent(), 0, "all table pages were returned");
    Ok(())
}

fn serve(host: &Host, ram: &Ram, vtd: &Arc<Vtd>, clock: &Now) -> Result<(), Box<dyn Error>> {
    let unit = Unit::bring_up(ModelMmio::new(vtd.clone(), clock), host, UnitConfig::default())?;
    let domain = Portcullis::open(&unit, host, Protection::Strict)?;
    domain.attach(DEVICE)?;

    let device = Device::new(DEVICE, 512, PAGE_SIZE);
    let buffer = ram.allocate()?;
    // SAFETY: from here on, only the device uses the page, and no reference to it exists.
    let iova = unsafe { domain.map_raw(buffer, PAGE_SIZE, Access::DeviceWrites) }?;
    assert!(device.write(vtd, ram, clock.now_ps(), iova, b"through the gate").is_ok());
    let mut landed = [0; 16];
    ram.read_bytes(buffer, &mut landed).expect("the buffer lies in memory");
    assert_eq!(&landed, b"through the gate");

    domain.unmap_raw(iova, PAGE_SIZE)?;
    assert!(device.write(vtd, ram, clock.now_ps(), iova, b"too late").is_err(), "the device has lost the page");

    drop(domain);
    // SAFETY: the only device behind it makes no more accesses.
    unsafe { unit.shut_down() }?;
    Ok(())
}
