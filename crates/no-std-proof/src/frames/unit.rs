//! The operations of a unit.

use super::{Host, Root};
use crate::frames::Hardware;
use alloc::boxed::Box;
use core::mem::MaybeUninit;
use portcullis::{DomainConfig, DynDomain, NewDomainError, QueueError};
use portcullis_designs::DesignId;
use portcullis_vtd::spec::faults::FaultRecord;
use portcullis_vtd::{
    BringUpError, Handover, Interrupts, MappedRegisters, NotSwitched, Prepared, RegisterError, TakeOver, Unit,
    UnitConfig, switch_all,
};

type Vtd = Unit<MappedRegisters, Host>;
type PreparedVtd = Prepared<MappedRegisters, Host>;

macro_rules! roots {
    ($($operation:literal $function:path;)*) => {
        /// The number of operations.
        pub(super) const COUNT: usize = [$($operation),*].len();

        /// All operations.
        pub(super) const ROOTS: [Root; COUNT] = [$(Root::new("(unit)", $operation, false, $function as *const ())),*];
    };
}

roots! {
    "bring up" bring_up;
    "prepare" prepare;
    "switch" switch;
    "switch all" switch_several;
    "hand back" hand_back;
    "submit words" submit_words;
    "halt" halt;
    "resume" resume;
    "faults" faults;
    "shut down" shut_down;
    "open, by name" open_by_name;
}

fn bring_up(to: &mut MaybeUninit<Vtd>, registers: MappedRegisters) -> Result<(), BringUpError> {
    to.write(Unit::bring_up(registers, Host, UnitConfig::default())?);
    Ok(())
}

fn prepare(to: &mut MaybeUninit<PreparedVtd>, registers: MappedRegisters) -> Result<(), BringUpError> {
    let config = UnitConfig { interrupts: Interrupts::Foreign, ..UnitConfig::default() };
    to.write(Unit::prepare(registers, Host, config, TakeOver::Never, |_| Ok(()))?);
    Ok(())
}

unsafe fn switch(prepared: &mut MaybeUninit<PreparedVtd>, to: &mut MaybeUninit<Vtd>) -> Result<(), BringUpError> {
    // SAFETY: the caller's promise, passed on.
    to.write(unsafe { prepared.assume_init_read().switch() }?);
    Ok(())
}

/// A unit of several.
struct OfSeveral(Handover<MappedRegisters, Host>);

impl AsMut<Handover<MappedRegisters, Host>> for OfSeveral {
    fn as_mut(&mut self) -> &mut Handover<MappedRegisters, Host> {
        &mut self.0
    }
}

unsafe fn switch_several(units: &mut [&mut OfSeveral]) -> Result<(), NotSwitched> {
    // SAFETY: the caller's promise, passed on.
    unsafe { switch_all(units) }
}

unsafe fn hand_back(unit: &mut OfSeveral) -> Result<(), RegisterError> {
    // SAFETY: as above.
    unsafe { unit.0.hand_back() }
}

fn submit_words(unit: &Vtd, words: &[[u64; 2]]) -> Result<(), QueueError> {
    unit.submit_words(words)
}

fn halt(unit: &Vtd) -> Result<(), RegisterError> {
    unit.halt()
}

fn resume(unit: &Vtd) -> Result<(), BringUpError> {
    unit.resume()
}

fn faults(unit: &Vtd, to: &mut [FaultRecord]) -> Result<bool, RegisterError> {
    let mut to = to.iter_mut();
    unit.faults(&mut |record| to.next().into_iter().for_each(|to| *to = record))
}

unsafe fn shut_down(unit: &mut MaybeUninit<Vtd>) -> Result<(), RegisterError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { unit.assume_init_read().shut_down() }
}

/// Opens a domain of any design.
fn open_by_name(
    to: &mut MaybeUninit<Box<DynDomain>>,
    design: &str,
    unit: Hardware,
    config: &DomainConfig<'_>,
) -> Result<bool, NewDomainError> {
    let Some(design) = DesignId::by_id(design) else { return Ok(false) };
    to.write(DynDomain::open(design, unit, Host, config)?);
    Ok(true)
}
