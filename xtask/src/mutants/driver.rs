//! Flaws of the VT-d driver.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[];
