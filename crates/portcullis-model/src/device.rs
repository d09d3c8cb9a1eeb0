//! A device that does DMA.

use crate::ram::Ram;
use crate::vtd::{END_PS, Fault, Vtd};
use portcullis::table::Rights;
use portcullis::{Iova, PAGE_SIZE, PhysAddr, SourceId};
use thiserror::Error;

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Transfer {
    /// When the last transaction completed, in picoseconds.
    pub done_ps: u64,
    /// The number of transactions.
    pub transactions: u32,
    /// The sum of the transactions' latencies, from issue to completion, in picoseconds.
    pub latency_ps_sum: u64,
    /// The number of transactions that were refused.
    pub faults: u32,
    /// The first fault.
    pub first_fault: Option<Fault>,
}

/// Why a transfer of data failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DmaError {
    /// The request was refused.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The request was translated to an address without memory.
    #[error("the request was translated to {0}, where there is no memory")]
    NoMemory(PhysAddr),
}

/// A device behind a [`Vtd`]. The caller decides whether it behaves well.
///
/// It issues transactions in order and completes them in order, and keeps a bounded number of bytes in flight over
/// all its flows. So slow translations reduce its throughput.
pub struct Device {
    source: SourceId,
    transaction_bytes: u64,
    /// Completion times of the latest transactions; there are as many slots as transactions fit in flight.
    in_flight: Box<[u64]>,
    next: usize,
    last_done_ps: u64,
}

impl Device {
    /// A device that splits accesses into transactions of at most `transaction_bytes` (usually 512). It keeps at most
    /// `bytes_in_flight` in flight, but always allows one transaction.
    ///
    /// # Panics
    /// If `transaction_bytes` is zero.
    pub fn new(source: SourceId, transaction_bytes: u64, bytes_in_flight: u64) -> Self {
        let slots = (bytes_in_flight / transaction_bytes).max(1) as usize;
        Self { source, transaction_bytes, in_flight: vec![0; slots].into(), next: 0, last_done_ps: 0 }
    }

    /// Its source id.
    pub fn source(&self) -> SourceId {
        self.source
    }

    /// When there is room in flight for the next transaction, in picoseconds.
    ///
    /// An access that begins at that time runs ahead of the time of its call by no more than its own length.
    pub fn room_ps(&self) -> u64 {
        self.in_flight[self.next]
    }

    /// Accesses `len` bytes without moving data, to obtain times, misses and faults.
    ///
    /// Each transaction is translated when it is issued. A refused transaction takes its time too.
    pub fn access(&mut self, vtd: &Vtd, now_ps: u64, iova: Iova, len: u64, rights: Rights) -> Transfer {
        let hit_ps = vtd.parameters().hit_ps;
        let now_ps = now_ps.min(END_PS);
        let mut access = Transfer { done_ps: now_ps, ..Transfer::default() };
        let mut requests = vtd.requests();
        let mut done = 0;
        while done < len {
            let at = Iova::new(iova.as_u64().wrapping_add(done));
            done += self.transaction_bytes.min(PAGE_SIZE - at.page_offset()).min(len - done);
            let issue_ps = self.in_flight[self.next].max(now_ps);
            let ready_ps = match requests.translate(issue_ps, self.source, at, rights) {
                Ok(translated) => translated.ready_ps.max(issue_ps),
                Err(fault) => {
                    access.faults += 1;
                    access.first_fault.get_or_insert(fault);
                    issue_ps
                }
            };
            self.last_done_ps = self.last_done_ps.max(ready_ps + hit_ps);
            self.in_flight[self.next] = self.last_done_ps;
            self.next = if self.next + 1 == self.in_flight.len() { 0 } else { self.next + 1 };
            access.transactions += 1;
            access.latency_ps_sum += self.last_done_ps - issue_ps;
            access.done_ps = self.last_done_ps;
        }
        access
    }

    /// Writes data page by page, and stops at the first page that is refused.
    ///
    /// # Errors
    /// [`DmaError`]; the pages before the refused one have been written.
    pub fn write(&self, vtd: &Vtd, ram: &Ram, now_ps: u64, iova: Iova, data: &[u8]) -> Result<(), DmaError> {
        self.each_page(vtd, now_ps, iova, data.len(), Rights::WRITE, |phys, _, piece| {
            ram.write_bytes(phys, &data[piece])
        })
    }

    /// Reads data page by page, and stops at the first page that is refused.
    ///
    /// # Errors
    /// [`DmaError`]; the pages before the refused one have been read.
    pub fn read(&self, vtd: &Vtd, ram: &Ram, now_ps: u64, iova: Iova, data: &mut [u8]) -> Result<(), DmaError> {
        self.each_page(vtd, now_ps, iova, data.len(), Rights::READ, |phys, _, piece| {
            ram.read_bytes(phys, &mut data[piece]).is_some()
        })
    }

    /// Writes data that is translated now and lands `delay_ps` later, or when its translation is known if that is
    /// later still. Invalidations in between do not stop it.
    ///
    /// # Errors
    /// [`DmaError`]; the writes to the pages before the refused one are in flight.
    pub fn post_write(&self, vtd: &Vtd, now_ps: u64, iova: Iova, data: &[u8], delay_ps: u64) -> Result<(), DmaError> {
        self.each_page(vtd, now_ps, iova, data.len(), Rights::WRITE, |phys, ready_ps, piece| {
            let there = vtd.ram().contains(phys, piece.len());
            if there {
                vtd.post(ready_ps.max(now_ps.saturating_add(delay_ps)), phys, &data[piece]);
            }
            there
        })
    }

    /// Calls `act` for each page with the physical address, the time at which that address is known, and the part of
    /// the data.
    fn each_page(
        &self,
        vtd: &Vtd,
        now_ps: u64,
        iova: Iova,
        len: usize,
        rights: Rights,
        mut act: impl FnMut(PhysAddr, u64, std::ops::Range<usize>) -> bool,
    ) -> Result<(), DmaError> {
        let mut done = 0;
        while done < len {
            let at = Iova::new(iova.as_u64().wrapping_add(done as u64));
            let piece = done..len.min(done + (PAGE_SIZE - at.page_offset()) as usize);
            let translated = vtd.translate(now_ps, self.source, at, rights)?;
            done = piece.end;
            if !act(translated.phys, translated.ready_ps, piece) {
                return Err(DmaError::NoMemory(translated.phys));
            }
        }
        Ok(())
    }
}
