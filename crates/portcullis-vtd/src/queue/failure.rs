//! Errors of submissions as numbers, and the last failure of a slot as one word.

use portcullis::QueueError;

/// The last failed submission of a slot, as one word: the sequence, and below it the number of the error. Zero means
/// none.
#[derive(Clone, Copy)]
pub(super) struct Failure {
    pub(super) sequence: u64,
    pub(super) error: QueueError,
}

/// The errors with which submissions fail, by number.
const ERRORS: [QueueError; 4] = [QueueError::Descriptor, QueueError::Device, QueueError::Halted, QueueError::Gone];

/// The number of an error, less than four.
pub(super) fn number_of(error: QueueError) -> u64 {
    ERRORS.iter().position(|other| *other == error).unwrap_or(0) as u64
}

/// The error of a number, which may have further bits.
#[cold]
pub(super) fn error_of(number: u64) -> QueueError {
    *ERRORS.get(number as usize % (1 << Failure::SHIFT)).unwrap_or(&QueueError::Descriptor)
}

impl Failure {
    const SHIFT: u32 = 2;

    pub(super) fn encode(self) -> u64 {
        self.sequence << Self::SHIFT | number_of(self.error)
    }

    /// How the submission of this sequence has failed, if it has: `word` is that of its slot.
    #[inline(always)]
    pub(super) fn of(word: u64, sequence: u64) -> Option<QueueError> {
        // The sequence of no failure is zero, which comes before all others.
        if word >> Self::SHIFT < sequence { None } else { Some(error_of(word)) }
    }
}
