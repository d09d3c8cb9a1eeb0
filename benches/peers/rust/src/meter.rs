//! The meter in `../meter.c`, which times every peer.

use crate::allocators::Pages;
use crate::ring::Ring;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulong, c_void};

#[repr(C)]
struct Row {
    design: *const c_char,
    protection: *const c_char,
    workload: *const c_char,
}

#[repr(C)]
struct Thread {
    body: extern "C" fn(*mut c_void, c_ulong),
    state: *mut c_void,
}

/// Threads do separate pairs, and a row reports their mean.
const EACH: c_uint = 0;

unsafe extern "C" {
    fn peers_begin();
    fn peers_end();
    fn peers_measure(row: *const Row, threads: *const Thread, count: c_int, share: c_uint, pairs: c_ulong) -> c_ulong;
}

/// The document of results. It ends when this is dropped.
pub(crate) struct Document(());

impl Document {
    /// Begins the document. A program has one document.
    pub(crate) fn begin() -> Self {
        // SAFETY: it takes no arguments, and sets up the meter's own state.
        unsafe { peers_begin() };
        Self(())
    }

    /// Measures a row: `pairs` pairs on each ring, each on a separate thread.
    pub(crate) fn measure<A: Pages>(&self, design: &str, workload: &str, rings: &mut [&mut Ring<A>], pairs: u64) {
        let [design, protection, workload] =
            [design, "none", workload].map(|text| CString::new(text).expect("no zeros"));
        let row = Row { design: design.as_ptr(), protection: protection.as_ptr(), workload: workload.as_ptr() };
        let threads: Vec<Thread> =
            rings.iter_mut().map(|ring| Thread { body: body::<A>, state: (&raw mut **ring).cast() }).collect();
        // SAFETY: the row and the threads outlive the call. Each ring is lent to one thread, which is allowed because
        // the ring is `Send`. The thread has ended when the call returns.
        unsafe { peers_measure(&row, threads.as_ptr(), threads.len() as c_int, EACH, pairs) };
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        // SAFETY: the document was begun.
        unsafe { peers_end() };
    }
}

extern "C" fn body<A: Pages>(state: *mut c_void, pairs: c_ulong) {
    // SAFETY: `measure` has passed a ring of this type, for this thread alone.
    let ring = unsafe { &mut *state.cast::<Ring<A>>() };
    ring.run(pairs);
}
