//! A capture of several devices, and the part of it that is of one.

use super::merged::merged;
use super::{TASK, Text, bundled, read, unpacked};
use portcullis::Access;
use portcullis_trace::{Operation, Trace};

const CARD: &str = "0000:3b:00.0";
const DISK: &str = "0000:5e:00.0";
const RECEIVE: &str = "q-e1000e-rx.strict.2cpu.trace.xz";
const RANDOM: &str = "q-nvme-randread4k.strict.2cpu.trace.xz";

/// A capture in which two devices work at the same time, at the same addresses.
fn both() -> Trace {
    let (card, disk) = (unpacked(RECEIVE), unpacked(RANDOM));
    let device = "0000:00:04.0";
    read(merged((&card, [device, CARD]), (&disk, [device, DISK]), 2)).expect("a capture")
}

/// What the operations of a capture do, on CPUs from `first_cpu` on.
fn work(trace: &Trace, first_cpu: u16) -> Vec<(u16, bool, u32, u64, Access, u32)> {
    let of = |operation: &Operation| {
        let mapping = &trace.mappings[operation.mapping as usize];
        let is_map = trace.operations[mapping.map_operation as usize] == *operation;
        let phys = trace.segments_of(mapping).iter().map(|segment| segment.phys.as_u64() + segment.len).sum();
        (operation.cpu - first_cpu, is_map, mapping.pages, phys, mapping.access, operation.mapping)
    };
    trace.operations.iter().map(of).collect()
}

#[test]
fn each_part_is_the_capture_of_its_device_alone() {
    let both = both();
    let traced = both.traced_devices();
    assert_eq!(
        traced.iter().map(|one| one.device.as_str()).collect::<Vec<_>>(),
        [DISK, CARD],
        "in order of appearance"
    );
    for (name, file, first_cpu) in [(CARD, RECEIVE, 0), (DISK, RANDOM, 2)] {
        let index = both.device_names.iter().position(|device| device == name).expect(name);
        let part = both.of_device(index as u16);
        let alone = Trace::read(&bundled(file), |_| ()).expect("a capture");
        assert_eq!(work(&part, first_cpu), work(&alone, 0), "{name}");
        assert_eq!(part.payloads, alone.payloads, "{name}");
        assert_eq!((part.devices.len(), part.device_names[0].as_str()), (1, name));
        let counts = |trace: &Trace| {
            let counted = trace.statistics;
            (counted.pages, counted.maps, counted.unmatched_maps, counted.cpus)
        };
        assert_eq!(counts(&part), counts(&alone), "{name}");
        assert_eq!((traced[index].maps, traced[index].pages), (part.mappings.len() as u64, part.statistics.pages));
    }
    // What is of neither device would be missing here.
    assert_eq!(both.operations.len(), [0, 1].map(|index| both.of_device(index).operations.len()).iter().sum::<usize>());
}

#[test]
fn what_no_event_gives_to_a_device_has_no_name() {
    let mut text = Text::default();
    text.map(TASK, 0x1000, 0x8000, 4096).dma_map(TASK, CARD, "TO_DEVICE", 0x1000, 4096);
    text.map(TASK, 0x9000, 0x9000, 4096);
    let trace = text.read();
    assert_eq!(trace.device_names, [CARD, ""]);
    assert_eq!(trace.traced_devices().iter().map(|one| one.maps).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn what_was_received_is_shared_by_length_and_nothing_is_lost() {
    let trace = Trace::read(&bundled(RECEIVE), |_| ()).expect("a capture");
    let written = |trace: &Trace| {
        let payload = |one: &portcullis_trace::Payload| (trace.mappings[one.mapping as usize].access, one.bytes);
        trace.payloads.iter().map(payload).collect::<Vec<_>>()
    };
    for bytes in [1, 1_000_003, 10_000_000_000] {
        let all = written(&trace.clone().with_received(bytes));
        assert!(all.iter().all(|(access, _)| *access == Access::DeviceWrites), "what is sent is known already");
        assert_eq!(all.iter().map(|(_, bytes)| bytes).sum::<u64>(), bytes);
    }
    // Ten times as many bytes as there is room for: each buffer gets ten times its length.
    let room: u64 = trace
        .mappings
        .iter()
        .filter(|mapping| mapping.access == Access::DeviceWrites)
        .flat_map(|mapping| trace.segments_of(mapping))
        .map(|segment| segment.len)
        .sum();
    let ten_times = trace.clone().with_received(10 * room);
    for payload in &ten_times.payloads {
        let mapping = &ten_times.mappings[payload.mapping as usize];
        let len: u64 = ten_times.segments_of(mapping).iter().map(|segment| segment.len).sum();
        assert_eq!(payload.bytes, 10 * len);
    }
}

#[test]
fn a_driver_that_maps_no_more_to_receive_has_its_sends() {
    let mut text = Text::default();
    text.map(TASK, 0x1000, 0x8000, 4096).dma_map(TASK, CARD, "TO_DEVICE", 0x1000, 4096);
    let trace = text.read().with_received(123_456);
    assert_eq!(trace.payload_of(0), Some(4096 + 123_456), "what is sent, and what is received beside it");
}
