//! e1000e: bursts of frames, looped back into buffers that share pages, cross pages and begin at odd bytes.

use super::*;
use portcullis_qemu::e1000e::{E1000e, FRAME_BYTES_MAX, RECEIVE_BYTES, RING_BUFFERS, Received};
use std::collections::VecDeque;
use std::time::Duration;

const FRAMES: usize = 1024;
const BURST: usize = 48;
/// The shortest frame that returns unchanged; shorter frames are padded.
const FRAME_BYTES_MIN: u64 = 60;
/// Destination, source, and a type without special treatment.
const HEADER: [u8; 14] = [0x52, 0x54, 0, 1, 2, 3, 0x52, 0x54, 0, 4, 5, 6, 0x88, 0xb5];
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Returns the number of frames.
pub(crate) fn run(world: &mut World, domain: &DynDomain, who: &str) -> usize {
    let mut nic = E1000e::start(&world.machine.function(NIC), domain).unwrap();
    let mut sources: VecDeque<_> = (0..BURST).map(|_| world.buffer(2)).collect();
    let halves: Vec<_> = (0..16).flat_map(|_| world.buffer(1).split_at(RECEIVE_BYTES)).collect();
    // Buffers that span two pages, at different offsets in the first.
    let crossing = |index| world.buffer(2).lending(PAGE_SIZE - 61 * index as u64, RECEIVE_BYTES);
    let crossing: Vec<_> = (halves.len()..RING_BUFFERS).map(crossing).collect();
    // The order of the ring: a half page, a crossing buffer, a half page, ...
    let mut idle: VecDeque<GuestBuffer> = VecDeque::with_capacity(RING_BUFFERS);
    let (mut halves, mut crossing) = (halves.into_iter(), crossing.into_iter());
    while idle.len() < RING_BUFFERS {
        idle.extend(halves.next().into_iter().chain(crossing.next()));
    }
    let rings = live(domain);
    // The physical addresses of the buffers that the device has, in order.
    let mut posted = VecDeque::new();
    let mut frames = 0;
    while frames < FRAMES {
        for buffer in idle.drain(..) {
            buffer.fill(UNTOUCHED);
            posted.push_back(buffer.lent());
            nic.post(buffer).unwrap();
        }
        let mut burst = Vec::with_capacity(BURST);
        for source in sources.drain(..) {
            let (source, frame) = fill(world, source);
            burst.push((source.lent(), frame));
            nic.send(source).unwrap();
        }
        let [transmitting, receiving] = nic.latest().map(|latest| latest.expect("a buffer just given"));
        assert_one_way(world, domain, transmitting, Access::DeviceReads, who);
        assert_one_way(world, domain, receiving, Access::DeviceWrites, who);
        nic.ring();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        while sent.len() < burst.len() || received.len() < burst.len() {
            // The unmaps of both rings are in flight before one is waited for.
            let collected = (nic.collect_sent().unwrap(), nic.collect_received().unwrap());
            sent.extend(collected.0.wait().unwrap());
            received.extend(collected.1.wait().unwrap());
            assert!(begun.elapsed() < ANSWER_MAX, "{who}: {} sent, {} received", sent.len(), received.len());
        }
        for ((segment, frame), (sent, received)) in burst.into_iter().zip(sent.into_iter().zip(received)) {
            assert_eq!(sent.lent(), segment, "{who}: sent in order");
            sources.push_back(sent);
            assert!(received.whole, "{who}: {received:?}");
            let Received { buffer, len, .. } = received;
            let place = (Some(buffer.lent()), len as usize);
            assert_eq!(place, (posted.pop_front(), frame.len()), "{who}: received in order, and in full");
            let (area, offset) = (buffer.all(), buffer.lent().phys.as_u64() - buffer.all().phys.as_u64());
            let mut memory = vec![UNTOUCHED; area.len as usize];
            memory[offset as usize..][..frame.len()].copy_from_slice(&frame);
            assert_bytes(world, area.phys, &memory, || format!("{who}: frame {frames}"));
            idle.push_back(buffer);
            frames += 1;
        }
        assert_live(domain, rings, posted.len(), who);
        tick(world, domain);
    }
    assert_eq!(nic.stop().unwrap().len(), posted.len(), "{who}: unused buffers are returned");
    frames
}

/// Writes a frame of random length somewhere into `buffer`. Many have the maximum length and cross into the second
/// page.
fn fill(world: &mut World, buffer: GuestBuffer) -> (GuestBuffer, Vec<u8>) {
    let long = world.random.random_bool(0.3);
    let len = if long { FRAME_BYTES_MAX } else { world.random.random_range(FRAME_BYTES_MIN..=FRAME_BYTES_MAX) };
    let offset = world.random.random_range(0..PAGE_SIZE);
    let mut frame = world.random_bytes(len as usize);
    frame[..HEADER.len()].copy_from_slice(&HEADER);
    buffer.write(offset, &frame);
    (buffer.lending(offset, len), frame)
}
