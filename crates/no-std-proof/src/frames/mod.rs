//! Each operation of each design as a separate function, so that `cargo xtask frames` can measure the stack below it.
//!
//! Types are static here, so that calls go where they would go in a kernel that has chosen its design.
//! [`FRAME_ROOTS`] leads from the object to the functions. For a domain whose design is chosen at run time, it also
//! leads to the table of functions of its mapper.

mod planted;
mod roots;
mod unit;

use crate::host::Host;
use portcullis::mapper::{Design, DesignInfo, Mapper};
use portcullis_designs::*;
use portcullis_vtd::{MappedRegisters, Unit};

/// The hardware of every domain here.
type Hardware = &'static Unit<MappedRegisters, Host>;

/// An operation, as xtask reads it from the object.
#[repr(C)]
pub struct Root {
    design: *const u8,
    design_len: usize,
    operation: *const u8,
    operation_len: usize,
    function: *const (),
    /// Both halves of a pointer to the mapper of the design: null, and its table of functions. Both are null if no
    /// call goes through such a table.
    mapper: [*const (); 2],
    /// Whether drivers call it for each buffer, or timers do.
    is_fast: usize,
}

// SAFETY: it is read from the object, and by no code.
unsafe impl Sync for Root {}

impl Root {
    const fn new(design: &'static str, operation: &'static str, is_fast: bool, function: *const ()) -> Self {
        Self {
            design: design.as_ptr(),
            design_len: design.len(),
            operation: operation.as_ptr(),
            operation_len: operation.len(),
            function,
            mapper: [core::ptr::null(); 2],
            is_fast: is_fast as usize,
        }
    }

    /// The same operation for a domain that calls its mapper, one of design `D`, through a table of functions.
    const fn through<D: Design<Host, Hardware, Mapper: 'static>>(mut self) -> Self {
        let mapper: *const dyn Mapper = core::ptr::null::<D::Mapper>();
        // SAFETY: a pointer to a trait object has two halves, both pointers.
        self.mapper = unsafe { core::mem::transmute::<*const dyn Mapper, [*const (); 2]>(mapper) };
        self
    }
}

macro_rules! table {
    ($($design:ident),*) => {
        /// The operations of every design.
        #[used]
        #[unsafe(no_mangle)]
        pub static FRAME_ROOTS: [[Root; roots::COUNT]; [$(stringify!($design)),*].len()] =
            [$(roots::of::<$design>($design::INFO.id)),*];
    };
}

portcullis_designs::for_each_design!(table);

/// Two more designs: one whose map has a large frame, which must be found, and its twin without.
#[used]
#[unsafe(no_mangle)]
pub static FRAME_PLANTS: [[Root; roots::COUNT]; 2] =
    [roots::of::<planted::Planted>("planted"), roots::of::<planted::Twin>("twin")];

/// The operations that belong to no design.
#[used]
#[unsafe(no_mangle)]
pub static FRAME_UNIT: [Root; unit::COUNT] = unit::ROOTS;
