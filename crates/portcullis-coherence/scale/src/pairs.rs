//! The work: each CPU unmaps its oldest page and maps another, all in one domain.

use crate::Row;
use crate::host::Host;
use crate::witness::Witness;
use portcullis::designs::Portcullis;
use portcullis::iommu::Iommu;
use portcullis::{Access, DomainOf, Iova, Open, PAGE_SIZE, PhysAddr, Protection};
use portcullis_coherence::{Costs, Count, count, now, pause, run, work};
use rand::RngExt;
use rand_pcg::Pcg32;
use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::rc::Rc;

/// What a driver does for a packet beside the map and the unmap, in cycles, all of it in memory of its own.
const OTHER_WORK_CYCLES: u64 = 12;
/// CPUs begin within so many cycles.
const BEGIN_CYCLES: u64 = 4096;

/// How much each CPU does.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    /// Pages that are mapped at any time.
    pub(crate) live: u64,
    /// Pairs before the count begins, in live pages.
    pub(crate) warm_up: u64,
    /// Pairs that are counted.
    pub(crate) pairs: u64,
    /// Chooses when each CPU begins.
    pub(crate) start: u64,
}

/// What is counted, from the moment when all CPUs are warm until the first has made its pairs.
#[derive(Default)]
struct Counted {
    /// CPUs that are warm.
    ready: Cell<usize>,
    begun: Cell<Option<Count>>,
    row: Cell<Option<Row>>,
    /// Pairs that all CPUs have made since, and cycles that these took.
    pairs: Cell<u64>,
    cycles: Cell<u64>,
}

type Pages<I> = &'static DomainOf<Portcullis, &'static Host, &'static I>;

/// The mappings of a CPU.
struct Fifo<I: Iommu + 'static> {
    domain: Pages<I>,
    witness: &'static Witness,
    cpu: usize,
    mapped: VecDeque<Iova>,
    /// There are twice as many buffers as mappings. Their memory is never touched, so there is none.
    first_buffer: u64,
    next: u64,
    buffers: u64,
}

impl<I: Iommu> Fifo<I> {
    fn map(&mut self) {
        let phys = PhysAddr::new(self.first_buffer + self.next * PAGE_SIZE);
        self.next = (self.next + 1) % self.buffers;
        // SAFETY: no device is attached to the domain.
        let iova = unsafe { self.domain.map_raw(phys, PAGE_SIZE, Access::DeviceWrites) };
        self.mapped.push_back(iova.expect("a map"));
    }

    fn pair(&mut self) {
        work(OTHER_WORK_CYCLES);
        let oldest = self.mapped.pop_front().expect("live mappings");
        self.witness.begin(self.cpu, oldest);
        self.domain.unmap_raw(oldest, PAGE_SIZE).expect("an unmap");
        assert!(self.witness.has_seen(self.cpu), "S2: {oldest} is not invalidated");
        self.map();
    }
}

/// Counts the pairs of `cpus` CPUs. The hardware tells `witness` what it has invalidated.
pub(crate) fn measure<I: Iommu + 'static>(
    costs: Costs,
    cpus: usize,
    extent: Extent,
    host: &'static Host,
    iommu: &'static I,
    witness: &'static Witness,
) -> Result<Row, Box<dyn Error>> {
    let domain: Pages<I> = Box::leak(Box::new(Portcullis::open(iommu, host, Protection::Strict)?));
    let counted = Rc::new(Counted::default());
    let inner = counted.clone();
    let before = witness.commands();
    run(costs, cpus, move |cpu| {
        let counted = &inner;
        work(Pcg32::new(extent.start, cpu as u64).random_range(0..BEGIN_CYCLES));
        let first_buffer = (1 << 32) + ((cpu as u64) << 30);
        let mut fifo =
            Fifo { domain, witness, cpu, mapped: VecDeque::new(), first_buffer, next: 0, buffers: 2 * extent.live };
        (0..extent.live).for_each(|_| fifo.map());
        (0..extent.warm_up * extent.live).for_each(|_| fifo.pair());
        counted.ready.set(counted.ready.get() + 1);
        while counted.ready.get() < cpus {
            pause();
        }
        let begun = counted.begun.get().unwrap_or_else(count);
        counted.begun.set(Some(begun));
        for _ in 0..extent.pairs {
            let from = now();
            fifo.pair();
            counted.pairs.set(counted.pairs.get() + 1);
            counted.cycles.set(counted.cycles.get() + now() - from);
        }
        if counted.row.get().is_none() {
            counted.row.set(Some(Row::new(count() - begun, counted.pairs.get(), counted.cycles.get())));
        }
    });
    let live = cpus as u64 * extent.live;
    if domain.usage().live_ranges as u64 != live {
        return Err(format!("{} live ranges in place of {live}", domain.usage().live_ranges).into());
    }
    let unmaps = cpus as u64 * (extent.warm_up * extent.live + extent.pairs);
    let commands = (witness.commands() - before) as f64 / unmaps as f64;
    Ok(Row { commands, ..counted.row.get().expect("the first CPU that ended has left it") })
}
