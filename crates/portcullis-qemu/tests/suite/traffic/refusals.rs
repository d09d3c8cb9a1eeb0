//! Requests that the drivers refuse without changing anything.

use super::*;
use portcullis_designs::Stock;
use portcullis_qemu::e1000e::{E1000e, RECEIVE_BYTES, RING_BUFFERS};
use portcullis_qemu::nvme::{DEPTH, Nvme, Operation};
use portcullis_qemu::{DriverError, NotTaken};
use std::fmt::Debug;

/// On a machine whose clock stands still.
#[test]
fn drivers_refuse_what_cannot_be_and_change_nothing() {
    let setup = QemuSetup::new(Accelerator::Stopped)
        .arguments(["-blockdev", "driver=null-co,node-name=drive,size=1048576,read-zeroes=on"])
        .device("nvme,addr=5,serial=1,drive=drive")
        .arguments(["-netdev", "hubport,id=hub,hubid=0"])
        .device("e1000e,addr=6,netdev=hub");
    let machine = QemuMachine::start(setup).unwrap_or_else(|error| panic!("{error}"));
    let host = machine.host();
    let buffer = |pages| GuestBuffer::new(machine.memory(), pages).unwrap();
    let unit = Unit::bring_up(VtdMmio(machine.clone()), host.clone(), portcullis_vtd::UnitConfig::default()).unwrap();
    let domain = Stock::open(&unit, host, Protection::Strict).unwrap();
    for device in [NVME, NIC] {
        domain.attach(device).unwrap();
    }
    let live = || domain.usage().live_ranges;
    let nothing = live();
    let (controller, nic) = (machine.function(NVME), machine.function(NIC));
    let other = Nvme::start(&nic, &domain).err().unwrap();
    assert_eq!(other.to_string(), "the device says that it is 0x20000; expected class 0x010802, an NVMe controller");
    let other = E1000e::start(&controller, &domain).err().unwrap();
    assert_eq!(other.to_string(), "the device says that it is 0x101b36; expected 0x10d38086, an e1000e");
    assert_eq!(live(), nothing, "{}", Rule::Errors);

    let mut nvme = Nvme::start(&controller, &domain).unwrap();
    let mut nic = E1000e::start(&nic, &domain).unwrap();
    let rings = live();
    /// Checks that the buffer is returned.
    fn refused<T: Debug>(tried: Result<T, NotTaken>) -> (GuestBuffer, DriverError) {
        let NotTaken { buffer, error } = tried.expect_err("it cannot be");
        (buffer.expect("it is not lost"), error)
    }
    let mut data = buffer(17);
    for (offset, len) in [(0, 0), (0, 511), (2, 512), (0, 129 * 512)] {
        let (back, error) = refused(nvme.submit(Operation::Read, 0, data.lending(offset, len)));
        assert!(matches!(error, DriverError::Buffer { len: told, .. } if told == len), "{error:?}");
        data = back;
    }
    for len in [0, 13, 1523] {
        let (back, error) = refused(nic.send(data.lending(0, len)));
        assert!(matches!(error, DriverError::Buffer { len: told, .. } if told == len), "{error:?}");
        data = back;
    }
    let (data, error) = refused(nic.post(data.lending(0, RECEIVE_BYTES - 1)));
    assert!(matches!(error, DriverError::Buffer { .. }), "{error:?}");
    assert_eq!(live(), rings, "{}", Rule::Errors);
    drop(data);

    let block = || buffer(1).lending(0, 512);
    let room = || buffer(1).lending(0, RECEIVE_BYTES);
    for _ in 0..DEPTH {
        nvme.submit(Operation::Read, 0, block()).unwrap();
    }
    assert_eq!(refused(nvme.submit(Operation::Read, 0, block())).1, DriverError::Full);
    for _ in 0..RING_BUFFERS {
        nic.post(room()).unwrap();
        nic.send(block()).unwrap();
    }
    assert_eq!(refused(nic.post(room())).1, DriverError::Full);
    assert_eq!(refused(nic.send(block())).1, DriverError::Full);
    assert_eq!(live(), rings + DEPTH + 2 * RING_BUFFERS, "{}", Rule::Errors);
    nvme.ring();
    let mut done = Vec::new();
    while done.len() < DEPTH {
        done.extend(nvme.reap().unwrap());
    }
    assert!(nvme.reap().unwrap().is_empty(), "none is in flight");
    drop(done);

    // The controller refuses this command, and the buffer is returned nevertheless.
    nvme.submit(Operation::Read, nvme.blocks(), block()).unwrap();
    nvme.ring();
    assert_ne!(nvme.reap().unwrap()[0].status, 0, "beyond the end of the drive");
    assert_eq!(live(), rings + 2 * RING_BUFFERS, "{}", Rule::Errors);
    // A command that the controller was not told about, and buffers that the device has not used, are returned at the
    // stop.
    nvme.submit(Operation::Write, 0, block()).unwrap();
    assert_eq!(nvme.stop().unwrap().len(), 1);
    assert_eq!(nic.stop().unwrap().len(), 2 * RING_BUFFERS);
    assert_eq!(live(), nothing, "{}", Rule::Errors);
    assert_eq!(machine.memory().buffer_pages_lent(), 0);

    // A driver that is dropped with a buffer on the ring loses the buffer and the ring, because the device may still
    // write there.
    let mut nic = E1000e::start(&machine.function(NIC), &domain).unwrap();
    nic.post(room()).unwrap();
    let pages = machine.memory().buffer_pages_lent();
    drop(nic);
    assert_eq!(machine.memory().buffer_pages_lent(), pages);
    assert!(live() > nothing, "{}", Rule::Errors);
}
