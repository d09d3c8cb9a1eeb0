//! The driver and the designs on QEMU's VT-d, in one program: what it is built of is built once, and machines run side by side.

mod breakage;
mod differential;
mod edu;
mod firmware;
mod take_over;
mod traffic;
