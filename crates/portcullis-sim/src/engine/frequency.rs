//! The clock of the cores.

/// Converts between core cycles and picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Frequency {
    /// Picoseconds of a cycle, times 2^[`FRACTION_BITS`].
    cycle: u64,
    /// Cycles of a picosecond, times 2^[`FRACTION_BITS`].
    picosecond: u64,
}

const FRACTION_BITS: u32 = 32;

impl Frequency {
    /// A clock of `hz` cycles per second.
    pub fn new(hz: f64) -> Self {
        let unit = (1u64 << FRACTION_BITS) as f64;
        Self { cycle: (1e12 / hz * unit) as u64, picosecond: (hz / 1e12 * unit) as u64 }
    }

    /// The time that `cycles` take, in picoseconds.
    #[inline]
    pub fn picoseconds(self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.cycle) + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS) as u64
    }

    /// The cycles that pass in this time, rounded up.
    #[inline]
    pub fn cycles(self, picoseconds: u64) -> u64 {
        (u128::from(picoseconds) * u128::from(self.picosecond)).div_ceil(1 << FRACTION_BITS) as u64
    }
}
