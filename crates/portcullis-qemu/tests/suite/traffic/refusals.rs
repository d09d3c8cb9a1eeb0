//! What the drivers refuse, and that nothing changes by it.

use super::*;
use portcullis::designs::Stock;
use portcullis_qemu::DriverError;
use portcullis_qemu::e1000e::{E1000e, RING_BUFFERS};
use portcullis_qemu::nvme::{DEPTH, Nvme, Operation};

/// Here on a machine whose clock stands still.
#[test]
fn drivers_refuse_what_cannot_be_and_change_nothing() {
    let setup = QemuSetup::new(Accelerator::Stopped)
        .arguments(["-blockdev", "driver=null-co,node-name=drive,size=1048576,read-zeroes=on"])
        .device("nvme,addr=5,serial=1,drive=drive")
        .arguments(["-netdev", "hubport,id=hub,hubid=0"])
        .device("e1000e,addr=6,netdev=hub");
    let machine = QemuMachine::start(setup).unwrap_or_else(|error| panic!("{error}"));
    let (host, mut buffers) = (machine.host(), Buffers::of(machine.memory()));
    let unit = Unit::bring_up(VtdMmio(machine.clone()), host.clone(), portcullis_vtd::UnitConfig::default()).unwrap();
    let domain = Domain::<Stock, _, _>::new(&unit, host, Protection::Strict).unwrap();
    for device in [NVME, NIC] {
        domain.attach(device).unwrap();
    }
    let live = || domain.usage().live_ranges;
    let nothing = live();
    let (controller, nic) = (machine.function(NVME), machine.function(NIC));
    let other = Nvme::start(&nic, &domain, &mut buffers).err().unwrap();
    assert_eq!(other.to_string(), "the device says that it is 0x20000; expected class 0x010802, an NVMe controller");
    let other = E1000e::start(&controller, &domain, &mut buffers).err().unwrap();
    assert_eq!(other.to_string(), "the device says that it is 0x101b36; expected 0x10d38086, an e1000e");
    assert_eq!(live(), nothing, "{}", Rule::Errors);

    let mut nvme = Nvme::start(&controller, &domain, &mut buffers).unwrap();
    let mut nic = E1000e::start(&nic, &domain, &mut buffers).unwrap();
    let rings = live();
    let phys = buffers.take(17).unwrap();
    for (offset, len) in [(0, 0), (0, 511), (2, 512), (0, 129 * 512)] {
        let data = Segment { phys: phys.checked_add(offset).unwrap(), len };
        let refused = nvme.submit(Operation::Read, 0, data);
        assert!(matches!(refused, Err(DriverError::Buffer { len: told, .. }) if told == len), "{refused:?}");
    }
    for len in [0, 13, 1523] {
        let refused = nic.send(Segment { phys, len });
        assert!(matches!(refused, Err(DriverError::Buffer { len: told, .. }) if told == len), "{refused:?}");
    }
    assert_eq!(live(), rings, "{}", Rule::Errors);

    let block = Segment { phys, len: 512 };
    for _ in 0..DEPTH {
        nvme.submit(Operation::Read, 0, block).unwrap();
    }
    assert_eq!(nvme.submit(Operation::Read, 0, block), Err(DriverError::Full));
    for _ in 0..RING_BUFFERS {
        nic.post(phys).unwrap();
        nic.send(block).unwrap();
    }
    assert_eq!(nic.post(phys), Err(DriverError::Full));
    assert_eq!(nic.send(block), Err(DriverError::Full));
    assert_eq!(live(), rings + DEPTH + 2 * RING_BUFFERS, "{}", Rule::Errors);
    nvme.ring();
    let mut done = Vec::new();
    while done.len() < DEPTH {
        done.extend(nvme.reap().unwrap());
    }
    assert_eq!(nvme.reap(), Ok(vec![]), "none is in flight");

    // The controller refuses this one, and the buffer comes back all the same.
    nvme.submit(Operation::Read, nvme.blocks(), block).unwrap();
    nvme.ring();
    assert_ne!(nvme.reap().unwrap()[0].status, 0, "beyond the end of the drive");
    assert_eq!(live(), rings + 2 * RING_BUFFERS, "{}", Rule::Errors);
    // A command that the controller has not been told of, and buffers that the device has not used, come back at the stop.
    nvme.submit(Operation::Write, 0, block).unwrap();
    nvme.stop().unwrap();
    nic.stop().unwrap();
    assert_eq!(live(), nothing, "{}", Rule::Errors);
}
