//! The kernel's log, and what becomes of a panic.

use crate::errno::Errno;
use crate::kernel::{pcs_panic, pcs_print};
use core::fmt::{self, Write};
use core::panic::PanicInfo;

/// What a line of the log may have; the rest is left out.
const LINE_BYTES: usize = 200;

struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Line {
    #[inline(never)]
    fn of(text: fmt::Arguments<'_>) -> Self {
        let mut line = Self { bytes: [0; LINE_BYTES], len: 0 };
        // An error says that it was cut off.
        let _ = line.write_fmt(text);
        line
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        if taken < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// A line for the log, which limits how many there are.
#[cold]
#[inline(never)]
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let line = Line::of(text);
    // SAFETY: so many bytes are there.
    unsafe { pcs_print(line.bytes.as_ptr().cast(), line.len) }
}

/// Says what was refused and why. Returns the number for that.
#[cold]
#[inline(never)]
pub(crate) fn refused(what: &str, error: &(impl Errno + fmt::Display)) -> i32 {
    print(format_args!("{what}: {error}"));
    error.errno()
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let line = Line::of(format_args!("{info}"));
    // SAFETY: so many bytes are there.
    unsafe { pcs_panic(line.bytes.as_ptr().cast(), line.len) }
}
