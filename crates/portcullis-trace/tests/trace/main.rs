//! Reading traces: bundled traces are compared with an independent count, synthetic ones cover what those lack, and
//! broken ones test the errors.

mod cases;
mod compression;
mod devices;
mod files;
mod formats;
mod grouping;
mod joining;
mod malformed;
mod merged;
mod one_kind_of_event;
mod payloads;
mod printed;
mod properties;
mod second_capture;

use lzma_rust2::XzReader;
use portcullis_trace::{Trace, TraceError};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The pairs in the folder `traces`, without the endings `.trace.xz` and `.qemu.xz`.
const BUNDLED: [&str; 3] = ["q-e1000e-rx.strict.2cpu", "q-e1000e-tx.lazy.2cpu", "q-nvme-randread4k.strict.2cpu"];

fn bundled(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(file)
}

fn unpacked(file: &str) -> String {
    let mut text = String::new();
    XzReader::new(File::open(bundled(file)).unwrap(), true).read_to_string(&mut text).unwrap();
    text
}

fn read(text: impl AsRef<[u8]>) -> Result<Trace, TraceError> {
    Trace::read_from("test.trace", text.as_ref(), |_| ())
}

/// A capture, line by line.
#[derive(Default)]
struct Text {
    text: String,
    time_us: u64,
}

/// The task, the CPU and the flags, as in the columns before the time.
type Who = (&'static str, u16, &'static str);

const TASK: Who = ("fio-7", 0, ".....");
const OTHER_CPU: Who = ("fio-8", 1, ".....");
const INTERRUPT: Who = ("fio-7", 0, "d.h1.");

impl Text {
    fn event(&mut self, (task, cpu, flags): Who, event: &str) -> &mut Self {
        self.time_us += 1;
        let (seconds, micros) = (self.time_us / 1_000_000, self.time_us % 1_000_000);
        self.text += &format!("{task:>16}      [{cpu:03}] {flags} {seconds:>5}.{micros:06}: {event}\n");
        self
    }

    fn line(&mut self, line: &str) -> &mut Self {
        self.text += line;
        self.text += "\n";
        self
    }

    fn map(&mut self, who: Who, iova: u64, phys: u64, size: u64) -> &mut Self {
        let end = iova + size;
        self.event(who, &format!("map: IOMMU: iova=0x{iova:016x} - 0x{end:016x} paddr=0x{phys:016x} size={size}"))
    }

    fn unmap(&mut self, who: Who, iova: u64, size: u64) -> &mut Self {
        let end = iova + size;
        self.event(who, &format!("unmap: IOMMU: iova=0x{iova:016x} - 0x{end:016x} size={size} unmapped_size={size}"))
    }

    fn dma_map(&mut self, who: Who, device: &str, direction: &str, iova: u64, size: u64) -> &mut Self {
        let event =
            format!("dma_map_page: {device} dir={direction} dma_addr={iova:x} size={size} phys_addr=dead000 attrs=");
        self.event(who, &event)
    }

    fn dma_unmap(&mut self, who: Who, device: &str, iova: u64, size: u64) -> &mut Self {
        self.event(who, &format!("dma_unmap_page: {device} dir=TO_DEVICE dma_addr={iova:x} size={size} attrs="))
    }

    fn read(&self) -> Trace {
        read(&self.text).unwrap_or_else(|error| panic!("{error}\n{}", self.text))
    }
}
