//! Acknowledgements that are on their way. Some may be lost: the card drops frames for which it has no room, and the
//! kernel those for which its ring has none. The others keep their order.

use super::receiver::Acknowledgement;
use crate::run::server::frames::{Kind, Meaning};
use std::collections::VecDeque;

/// Those of a flow.
#[derive(Default)]
pub(super) struct Answers {
    /// How many were taken or given up.
    taken: u64,
    waiting: VecDeque<Acknowledgement>,
}

impl Answers {
    /// Adds one. Returns the meaning of its frame.
    pub(super) fn add(&mut self, flow: usize, acknowledgement: Acknowledgement) -> Meaning {
        let number = self.taken + self.waiting.len() as u64;
        self.waiting.push_back(acknowledgement);
        Meaning::new(flow, Kind::Acknowledgement, number as u32)
    }

    /// Takes the one that arrives. Those before it were lost.
    pub(super) fn take(&mut self, meaning: Meaning) -> Option<Acknowledgement> {
        let number = meaning.number_near(self.taken);
        let lost = number.checked_sub(self.taken).filter(|lost| *lost < self.waiting.len() as u64)?;
        self.taken = number + 1;
        self.waiting.drain(..lost as usize);
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::SmallVec;

    #[test]
    fn what_arrives_is_taken_and_what_was_before_it_is_lost() {
        let mut answers = Answers::default();
        let answer = |next| Acknowledgement { next, sacked: SmallVec::new(), window: 250 };
        let sent: Vec<Meaning> = (0..300_000).map(|next| answers.add(3, answer(next))).collect();
        for next in (0..300_000).filter(|next| next % 7 == 3) {
            assert_eq!(answers.take(sent[next]), Some(answer(next as u64)));
        }
        assert!(answers.waiting.len() < 7);
        assert_eq!(answers.take(sent[299_995]), None, "it was given up");
    }
}
