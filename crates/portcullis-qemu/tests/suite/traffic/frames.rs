//! e1000e: bursts of frames, looped back into buffers that share pages, cross pages and begin at odd bytes.

use super::*;
use portcullis_qemu::e1000e::{E1000e, FRAME_BYTES_MAX, RECEIVE_BYTES, RING_BUFFERS};
use std::collections::VecDeque;
use std::time::Duration;

const FRAMES: usize = 1024;
const BURST: usize = 48;
/// The shortest that comes back as it went out: shorter ones are padded.
const FRAME_BYTES_MIN: u64 = 60;
/// To, from, and a type that nobody treats in any way.
const HEADER: [u8; 14] = [0x52, 0x54, 0, 1, 2, 3, 0x52, 0x54, 0, 4, 5, 6, 0x88, 0xb5];
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Memory for one buffer, and where in it the buffer is.
#[derive(Clone, Copy)]
struct Place {
    area: PhysAddr,
    bytes: usize,
    offset: u64,
}

impl Place {
    /// A buffer that begins anywhere in the first of two pages.
    fn two_pages(buffers: &mut Buffers, offset: u64) -> Self {
        Self { area: buffers.take(2).unwrap(), bytes: 2 * PAGE_SIZE as usize, offset }
    }

    /// A page, as two buffers.
    fn halves(buffers: &mut Buffers) -> [Self; 2] {
        let page = buffers.take(1).unwrap().as_u64();
        [page, page + RECEIVE_BYTES].map(|half| Self {
            area: PhysAddr::new(half),
            bytes: RECEIVE_BYTES as usize,
            offset: 0,
        })
    }

    fn buffer(&self) -> PhysAddr {
        PhysAddr::new(self.area.as_u64() + self.offset)
    }
}

/// Returns how many frames there were.
pub(crate) fn run<D: Design<QemuHost, Vtd>>(
    world: &mut World,
    domain: &Domain<D, QemuHost, Vtd>,
    buffers: &mut Buffers,
    who: &str,
) -> usize {
    let mut nic = E1000e::start(&world.machine.function(NIC), domain, buffers).unwrap();
    let sources: Vec<_> = (0..BURST).map(|_| Place::two_pages(buffers, 0)).collect();
    let halves = (0..16).flat_map(|_| Place::halves(buffers)).collect::<Vec<_>>();
    let crossing = (halves.len()..RING_BUFFERS).map(|index| Place::two_pages(buffers, PAGE_SIZE - 61 * index as u64));
    // As the ring has them: a half, one that crosses, a half, ...
    let mut idle: VecDeque<Place> = VecDeque::with_capacity(RING_BUFFERS);
    let (mut halves, mut crossing) = (halves.into_iter(), crossing.collect::<Vec<_>>().into_iter());
    while idle.len() < RING_BUFFERS {
        idle.extend(halves.next().into_iter().chain(crossing.next()));
    }
    let rings = live(domain);
    let mut posted = VecDeque::new();
    let mut frames = 0;
    while frames < FRAMES {
        for place in idle.drain(..) {
            world.memory.fill(place.area, place.bytes, UNTOUCHED);
            nic.post(place.buffer()).unwrap();
            posted.push_back(place);
        }
        let burst: Vec<_> = sources.iter().map(|place| fill(world, *place)).collect();
        for (segment, _) in &burst {
            nic.send(*segment).unwrap();
        }
        let [transmitting, receiving] = nic.latest().map(|latest| latest.expect("a buffer just given"));
        assert_one_way::<D>(world, transmitting, Access::DeviceReads, who);
        assert_one_way::<D>(world, receiving, Access::DeviceWrites, who);
        nic.ring();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        while sent.len() < burst.len() || received.len() < burst.len() {
            sent.extend(nic.sent().unwrap());
            received.extend(nic.received().unwrap());
            assert!(begun.elapsed() < ANSWER_MAX, "{who}: {} sent, {} received", sent.len(), received.len());
        }
        for ((segment, frame), (sent, received)) in burst.into_iter().zip(sent.into_iter().zip(received)) {
            assert_eq!(sent, segment, "{who}: sent in order");
            let place: Place = posted.pop_front().expect("a posted buffer for each frame");
            assert!(received.whole, "{who}: {received:?}");
            let whole = Segment { phys: place.buffer(), len: frame.len() as u64 };
            assert_eq!(received.frame, whole, "{who}: received in order, and in full");
            let mut memory = vec![UNTOUCHED; place.bytes];
            memory[place.offset as usize..][..frame.len()].copy_from_slice(&frame);
            assert_bytes(world, place.area, &memory, || format!("{who}: frame {frames}"));
            idle.push_back(place);
            frames += 1;
        }
        assert_live(domain, rings, posted.len(), who);
        tick(world, domain);
    }
    nic.stop().unwrap();
    frames
}

/// Writes a frame of any length somewhere into `place`; many are as long as can be, and cross into the second page.
fn fill(world: &mut World, place: Place) -> (Segment, Vec<u8>) {
    let long = world.random.random_bool(0.3);
    let len = if long { FRAME_BYTES_MAX } else { world.random.random_range(FRAME_BYTES_MIN..=FRAME_BYTES_MAX) };
    let offset = world.random.random_range(0..PAGE_SIZE);
    let mut frame = world.random_bytes(len as usize);
    frame[..HEADER.len()].copy_from_slice(&HEADER);
    let segment = Segment { phys: PhysAddr::new(place.area.as_u64() + offset), len };
    world.memory.write(segment.phys, &frame);
    (segment, frame)
}
