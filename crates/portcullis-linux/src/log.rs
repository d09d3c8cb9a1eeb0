//! The kernel's log, and the handling of panics.

use crate::errno::Errno;
use crate::kernel::{pcs_panic, pcs_print};
use core::fmt::{self, Write};
use core::panic::PanicInfo;

/// The most bytes of a line of the log. The rest is cut off.
const LINE_BYTES: usize = 200;

struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Line {
    #[inline(never)]
    fn of(text: fmt::Arguments<'_>) -> Self {
        let mut line = Self { bytes: [0; LINE_BYTES], len: 0 };
        // An error means only that the line was cut off.
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

/// Prints a line to the log, which is rate-limited.
#[cold]
#[inline(never)]
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let line = Line::of(text);
    // SAFETY: the line has this many bytes.
    unsafe { pcs_print(line.bytes.as_ptr().cast(), line.len) }
}

/// Logs what was refused and why. Returns the error number.
#[cold]
#[inline(never)]
pub(crate) fn refused(what: &str, error: &(impl Errno + fmt::Display)) -> i32 {
    print(format_args!("{what}: {error}"));
    error.errno()
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let line = Line::of(format_args!("{info}"));
    // SAFETY: the line has this many bytes.
    unsafe { pcs_panic(line.bytes.as_ptr().cast(), line.len) }
}
