//! PCIe: reads with their own tags, and posted writes in order. Each access lies within a page.

use super::NicParameters;
use crate::schedule::Schedule;
use crate::vtd::Requests;
use portcullis::table::Rights;
use portcullis::{Iova, PhysAddr, SourceId};

/// A bounded number of bytes in flight.
struct Window {
    bytes: u64,
    used: u64,
    /// The bytes of each access, by the time of its completion.
    under_way: Schedule<u64>,
}

impl Window {
    fn new(bytes: u64) -> Self {
        Self { bytes, used: 0, under_way: Schedule::default() }
    }

    /// When there may be room for `len` bytes: `now_ps` if there is room now. A single access always has room.
    fn room_ps(&mut self, now_ps: u64, len: u64) -> u64 {
        while self.used > 0 && self.used + len > self.bytes {
            let Some((_, bytes)) = self.under_way.take(now_ps) else {
                return self.under_way.first_ps().unwrap_or(now_ps);
            };
            self.used -= bytes;
        }
        now_ps
    }

    fn add(&mut self, done_ps: u64, len: u64) {
        self.used += len;
        self.under_way.add(done_ps, len);
    }
}

/// An issued access.
#[derive(Clone, Copy)]
pub(super) struct Issued {
    /// The memory that it reaches, or `None` if it was refused.
    pub(super) phys: Option<PhysAddr>,
    pub(super) done_ps: u64,
}

/// Counters of the bus.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BusCounters {
    /// Transactions.
    pub transactions: u64,
    /// The sum of their latencies, in picoseconds: from issue to the translated address, plus a hit.
    pub latency_ps_sum: u128,
    /// Accesses that the IOMMU refused.
    pub faults: u64,
}

pub(super) struct Bus {
    source: SourceId,
    read_ps: u64,
    read_gbps: Option<f64>,
    transaction_bytes: u64,
    reads: Window,
    /// When the bus has carried all reads so far.
    reads_end_ps: u64,
    writes: Window,
    last_write_ps: u64,
    pub(super) counters: BusCounters,
}

impl Bus {
    pub(super) fn new(source: SourceId, parameters: &NicParameters) -> Self {
        Self {
            source,
            read_ps: parameters.read_ps,
            read_gbps: parameters.read_gbps,
            transaction_bytes: parameters.transaction_bytes,
            reads: Window::new(parameters.read_window_bytes),
            reads_end_ps: 0,
            writes: Window::new(parameters.write_window_bytes),
            last_write_ps: 0,
            counters: BusCounters::default(),
        }
    }

    pub(super) fn read_room_ps(&mut self, now_ps: u64, len: u64) -> u64 {
        self.reads.room_ps(now_ps, len).max(self.reads_end_ps)
    }

    pub(super) fn write_room_ps(&mut self, now_ps: u64, len: u64) -> u64 {
        self.writes.room_ps(now_ps, len)
    }

    /// Issues a read for which there is room.
    pub(super) fn read(&mut self, unit: &mut Requests<'_>, now_ps: u64, iova: Iova, len: u64) -> Issued {
        let (phys, ready_ps) = self.translate(unit, now_ps, iova, len, Rights::READ);
        let done_ps = ready_ps + self.read_ps;
        self.reads.add(done_ps, len);
        if let Some(read_gbps) = self.read_gbps {
            self.reads_end_ps = self.reads_end_ps.max(now_ps) + (len as f64 * 8.0 * 1e3 / read_gbps) as u64;
        }
        Issued { phys, done_ps }
    }

    /// Issues a posted write for which there is room. It lands after all earlier posted writes.
    pub(super) fn write(&mut self, unit: &mut Requests<'_>, now_ps: u64, iova: Iova, len: u64) -> Issued {
        let (phys, ready_ps) = self.translate(unit, now_ps, iova, len, Rights::WRITE);
        self.last_write_ps = self.last_write_ps.max(ready_ps + unit.parameters().hit_ps);
        self.writes.add(self.last_write_ps, len);
        Issued { phys, done_ps: self.last_write_ps }
    }

    /// The physical address of an access, and when it is known. The transactions of an access share one translation.
    fn translate(
        &mut self,
        unit: &mut Requests<'_>,
        now_ps: u64,
        iova: Iova,
        len: u64,
        rights: Rights,
    ) -> (Option<PhysAddr>, u64) {
        let translated = unit.translate(now_ps, self.source, iova, rights);
        let (phys, ready_ps) = match translated {
            Ok(translated) => (Some(translated.phys), translated.ready_ps.max(now_ps)),
            Err(_) => (None, now_ps),
        };
        let transactions = len.div_ceil(self.transaction_bytes);
        self.counters.transactions += transactions;
        let latency_ps = ready_ps - now_ps + unit.parameters().hit_ps;
        self.counters.latency_ps_sum += u128::from(latency_ps) * u128::from(transactions);
        self.counters.faults += u64::from(phys.is_none());
        (phys, ready_ps)
    }
}
