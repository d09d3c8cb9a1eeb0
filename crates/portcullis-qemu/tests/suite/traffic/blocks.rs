//! NVMe: 32 commands in flight, written and read back through buffers of 1 to 8 pages that begin anywhere.

use super::*;
use portcullis::mapper::Mapper;
use portcullis_qemu::nvme::{CommandId, DEPTH, Nvme, Operation};
use std::collections::BTreeMap;

const COMMANDS: usize = 1024;
pub(crate) const DRIVE_BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 512;
/// Each place in the queue has a separate part of the drive, so commands in flight together do not overlap.
const PART_BLOCKS: u64 = (DRIVE_BYTES / BLOCK_BYTES / DEPTH) as u64;
const DATA_BLOCKS_MAX: u64 = 8 * PAGE_SIZE / BLOCK_BYTES as u64;
/// The largest data needs one page more if it does not begin with a page, and another page follows it.
const AREA_PAGES: u64 = 10;
const AREA_BYTES: usize = (AREA_PAGES * PAGE_SIZE) as usize;

/// A place in the queue. Commands complete in any order, so each place has a separate random generator.
struct Place {
    part: u64,
    random: Pcg64Mcg,
    /// The number of commands still to be submitted.
    left: usize,
    /// The blocks last written and not read back yet: the first one, and their number.
    written: Option<(u64, u64)>,
}

/// A place whose buffer the driver has, and not the device.
struct Idle {
    place: Place,
    area: GuestBuffer,
}

/// A command in flight, and the expected contents of memory after it has completed.
struct Flight {
    place: Place,
    operation: Operation,
    memory: Vec<u8>,
}

/// Returns the number of commands.
pub(crate) fn run(world: &mut World, domain: &DynDomain, who: &str) -> usize {
    let mut nvme = Nvme::start(&world.machine.function(NVME), domain).unwrap();
    assert_eq!((nvme.blocks() * nvme.block_bytes(), nvme.block_bytes()), (DRIVE_BYTES as u64, BLOCK_BYTES as u64));
    let mut idle: Vec<Idle> = (0..DEPTH as u64)
        .map(|index| Idle {
            area: world.buffer(AREA_PAGES),
            place: Place {
                part: index * PART_BLOCKS,
                random: Pcg64Mcg::seed_from_u64(world.random.random()),
                left: COMMANDS / DEPTH,
                written: None,
            },
        })
        .collect();
    let rings = live(domain);
    let mut flying: BTreeMap<CommandId, Flight> = BTreeMap::new();
    let (mut commands, mut most) = (0, 0);
    loop {
        // At the end, data that was written is still read back.
        for idle in idle.drain(..).filter(|Idle { place, .. }| place.left > 0 || place.written.is_some()) {
            let (command, flight) = submit(world, &mut nvme, idle);
            if commands % 64 == 0 {
                let access = match flight.operation {
                    Operation::Read => Access::DeviceWrites,
                    Operation::Write => Access::DeviceReads,
                };
                assert_one_way(world, domain, nvme.iova(command).expect("it was just submitted"), access, who);
            }
            assert!(flying.insert(command, flight).is_none(), "{who}: {command:?} is in flight twice");
            commands += 1;
        }
        most = most.max(flying.len());
        if flying.is_empty() {
            break;
        }
        nvme.ring();
        let collected = nvme.collect().unwrap();
        // The driver goes on while the hardware invalidates: with what is free, and with its timer.
        tick(world, domain);
        for done in collected.wait().unwrap() {
            assert_eq!(done.status, 0, "{who}: {:?}", done.command);
            let Flight { place, operation, memory } = flying.remove(&done.command).expect("a command in flight");
            let area = done.data.expect("its buffer");
            assert_bytes(world, area.all().phys, &memory, || format!("{who}: {operation:?} of part {}", place.part));
            idle.push(Idle { place, area });
        }
        assert_live(domain, rings, flying.len(), who);
        tick(world, domain);
    }
    assert_eq!(most, DEPTH, "{who}: the queue was never full");
    assert!(nvme.stop().unwrap().is_empty(), "{who}: none was in flight");
    commands
}

fn submit(world: &mut World, nvme: &mut Nvme<'_, dyn Mapper>, Idle { mut place, area }: Idle) -> (CommandId, Flight) {
    place.left = place.left.saturating_sub(1);
    let random = &mut place.random;
    // Data that was written last is read back. Otherwise new data is written or, now and then, old data is read.
    let (operation, block, blocks) = match place.written.take() {
        Some((block, blocks)) => (Operation::Read, block, blocks),
        None => {
            let blocks = random.random_range(1..=DATA_BLOCKS_MAX);
            let block = place.part + random.random_range(0..=PART_BLOCKS - blocks);
            (if random.random_bool(0.1) { Operation::Read } else { Operation::Write }, block, blocks)
        }
    };
    // Half of the buffers begin with a page.
    let offset = if random.random_bool(0.5) { 0 } else { random.random_range(0..PAGE_SIZE / 4) * 4 };
    let data = area.lending(offset, blocks * BLOCK_BYTES as u64);
    let in_area = offset as usize..(offset + data.lent().len) as usize;
    let on_drive = block as usize * BLOCK_BYTES..(block + blocks) as usize * BLOCK_BYTES;
    let mut memory = vec![UNTOUCHED; AREA_BYTES];
    data.fill(UNTOUCHED);
    match operation {
        Operation::Read => memory[in_area].copy_from_slice(&world.drive[on_drive]),
        Operation::Write => {
            random.fill(&mut memory[in_area.clone()]);
            data.write(offset, &memory[in_area.clone()]);
            world.drive[on_drive].copy_from_slice(&memory[in_area]);
            place.written = Some((block, blocks));
        }
    }
    (nvme.submit(operation, block, data).unwrap(), Flight { place, operation, memory })
}
