//! Captures written by hand: the text that the kernel would have printed.

use portcullis::{PAGE_SIZE, pages_spanned};
use portcullis_trace::Trace;
use std::sync::Arc;

/// The task, the CPU and the flags, as in the columns before the time.
pub(crate) type Who = (&'static str, u16, &'static str);

pub(crate) const TASK: Who = ("iperf-7", 0, ".....");
pub(crate) const OTHER_CPU: Who = ("iperf-8", 1, ".....");
pub(crate) const INTERRUPT: Who = ("iperf-7", 0, "d.h1.");

/// The direction of the device's accesses, as in `dma:` events.
pub(crate) const READS: &str = "TO_DEVICE";
pub(crate) const WRITES: &str = "FROM_DEVICE";

/// A buffer: the first page of I/O addresses that the traced kernel gave it, its physical address, and its length.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) page: u64,
    pub(crate) phys: u64,
    pub(crate) len: u64,
}

/// Buffer `number`, a whole page. Its I/O addresses and its memory are apart from those of other buffers.
pub(crate) fn buffer(number: u64) -> Buffer {
    Buffer { page: 0x1000 + 16 * number, phys: 0x100_0000 + 16 * number * PAGE_SIZE, len: PAGE_SIZE }
}

impl Buffer {
    fn offset(self) -> u64 {
        self.phys % PAGE_SIZE
    }

    /// The first address, the one after the last, and the bytes between them. All are whole pages.
    fn run(self) -> (u64, u64, u64) {
        let bytes = pages_spanned(self.offset(), self.len) * PAGE_SIZE;
        (self.page * PAGE_SIZE, self.page * PAGE_SIZE + bytes, bytes)
    }
}

/// A capture of one device.
#[derive(Default)]
pub(crate) struct Capture {
    text: String,
    time_us: u64,
}

impl Capture {
    /// Lets time pass until `time_us`.
    pub(crate) fn at(&mut self, time_us: u64) -> &mut Self {
        assert!(time_us >= self.time_us, "a capture goes forward");
        self.time_us = time_us;
        self
    }

    /// Adds an event at the present time.
    pub(crate) fn event(&mut self, (task, cpu, flags): Who, event: &str) -> &mut Self {
        let (seconds, micros) = (self.time_us / 1_000_000, self.time_us % 1_000_000);
        self.text += &format!("{task:>16}      [{cpu:03}] {flags} {seconds:>5}.{micros:06}: {event}\n");
        self
    }

    pub(crate) fn map(&mut self, who: Who, buffer: Buffer, direction: &str) -> &mut Self {
        let (from, to, bytes) = buffer.run();
        let phys = buffer.phys - buffer.offset();
        self.event(who, &format!("map: IOMMU: iova=0x{from:016x} - 0x{to:016x} paddr=0x{phys:016x} size={bytes}"));
        let (dma, len) = (from + buffer.offset(), buffer.len);
        let phys = buffer.phys;
        self.event(
            who,
            &format!(
                "dma_map_page: 0000:00:04.0 dir={direction} dma_addr={dma:x} size={len} phys_addr={phys:x} attrs="
            ),
        )
    }

    pub(crate) fn unmap(&mut self, who: Who, buffer: Buffer) -> &mut Self {
        let (from, to, bytes) = buffer.run();
        self.event(who, &format!("unmap: IOMMU: iova=0x{from:016x} - 0x{to:016x} size={bytes} unmapped_size={bytes}"))
    }

    pub(crate) fn read(&self) -> Arc<Trace> {
        let trace = Trace::read_from("by-hand.trace", self.text.as_bytes(), |_| ());
        Arc::new(trace.unwrap_or_else(|error| panic!("{error}\n{}", self.text)))
    }
}

#[test]
fn a_buffer_takes_the_pages_that_it_touches() {
    let across = Buffer { page: 0x40, phys: 0x9c40, len: 1522 };
    let trace = Capture::default().map(TASK, across, WRITES).unmap(TASK, across).read();
    assert_eq!(trace.mappings[0].pages, 2);
    assert_eq!((trace.segments[0].phys.as_u64(), trace.segments[0].len), (across.phys, across.len));
    assert!(trace.mappings[0].unmap_operation.is_some());
}
