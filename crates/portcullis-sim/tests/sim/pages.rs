//! Captures without `dma:` events: the range of the share has what the whole capture gives.

use super::{job, machine, measured};
use lzma_rust2::XzReader;
use portcullis::Protection::{Deferred, Strict};
use portcullis_designs::DesignId;
use portcullis_sim::{Job, Replay, Traffic, Work};
use portcullis_trace::{Events, Trace};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

const TRACES: [&str; 6] = [
    "e1000e-rx.strict.4cpu",
    "e1000e-tx.strict.4cpu",
    "nvme-seqread128k.strict.4cpu",
    "q-e1000e-rx.strict.2cpu",
    "q-e1000e-tx.lazy.2cpu",
    "q-nvme-randread4k.strict.2cpu",
];

/// The trace, and the trace without its `dma:` events.
fn whole_and_pages(name: &str) -> [Work; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../traces/{name}.trace.xz"));
    let file = BufReader::new(File::open(path).expect("a trace"));
    let mut text = String::new();
    XzReader::new(file, true).read_to_string(&mut text).expect("text");
    let pages: String = text.split_inclusive('\n').filter(|line| !line.contains(": dma_")).collect();
    [text, pages].map(|text| {
        let trace = Trace::read_from(name, text.as_bytes(), |_| ()).expect("a trace");
        Work::Trace(Replay::of(Arc::new(trace)))
    })
}

#[test]
fn the_range_has_the_share_of_the_whole_capture() {
    let machine = machine("cascadelake-cx5");
    let mut of_the_other_kind = machine.clone();
    for name in TRACES {
        let [whole, pages] = whole_and_pages(name);
        let Work::Trace(Replay { trace, .. }) = &pages else { unreachable!("a trace") };
        assert_eq!(trace.events, Events::Iommu);
        let wanted = if name.contains("nvme") { Traffic::Disk } else { Traffic::Network };
        assert_eq!((whole.traffic(&machine), pages.traffic(&machine)), (wanted, wanted), "{name}");
        of_the_other_kind.only_traffic = Some(if wanted == Traffic::Disk { Traffic::Network } else { Traffic::Disk });
        for (design, protection, batch) in
            [(DesignId::Magazine, Strict, 1), (DesignId::Magazine, Deferred, 1), (DesignId::Portcullis, Strict, 64)]
        {
            let run = |machine, work: &Work| measured(&Job { batch, ..job(machine, work.clone(), design, protection) });
            let share = run(&machine, &whole).estimate_vs_none;
            let [low, high] = run(&machine, &pages).estimate_vs_none_range;
            assert!((low..=high).contains(&share), "{name} {design:?} {protection}: {share} in {low} to {high}");
            assert!(high - low <= 0.35 + 1e-9, "{name} {design:?} {protection}: {low} to {high}");
            // A wrong kind of device gives another answer. A sender of long buffers costs a disk next to nothing too.
            let [low, high] = run(&of_the_other_kind, &pages).estimate_vs_none_range;
            let is_wrong = !(low..=high).contains(&share);
            assert!(
                is_wrong || protection == Deferred || batch > 1 || name.contains("-tx."),
                "{name} {design:?}: {share} in {low} to {high}"
            );
        }
    }
}
