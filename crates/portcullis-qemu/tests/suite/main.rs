//! The driver and the designs on QEMU's VT-d, in one program, so that shared code is built once and machines run in
//! parallel.

mod breakage;
mod differential;
mod edu;
mod firmware;
mod interrupts;
mod take_over;
mod traffic;
