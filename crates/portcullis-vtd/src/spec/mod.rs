//! Constants and types of the Intel Virtualization Technology for Directed I/O specification, revision 3.x, without
//! behaviour. Section numbers are those of revision 3.x; in revision 4.x the register chapter is 11 instead of 10.

pub mod descriptors;
pub mod faults;
pub mod interrupts;
pub mod registers;
pub mod tables;

#[cfg(test)]
mod tests;
