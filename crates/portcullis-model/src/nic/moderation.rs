//! Interrupt moderation: when the completions of a ring are announced.

use super::Moderation;

/// When to announce completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Announce {
    /// Not now: the driver has not requested it, or an event for it exists.
    Nothing,
    /// Now.
    Now,
    /// At this time, if [`Announcer::due`] still says so for this number.
    At(u64, u32),
}

/// Tracks which completions of a ring its driver has seen, and whether it has requested an interrupt.
#[derive(Default)]
pub(super) struct Announcer {
    armed: bool,
    /// How many completions have landed, and how many the driver had seen when it armed the interrupt.
    landed: u32,
    seen: u32,
    /// Whether an event exists for the current arming, and the number of that arming.
    is_set: bool,
    arming: u32,
}

impl Announcer {
    /// A completion has landed.
    pub(super) fn landed(&mut self, now_ps: u64, moderation: Moderation) -> Announce {
        self.landed = self.landed.wrapping_add(1);
        self.judge(now_ps, moderation)
    }

    /// The driver requests an interrupt for completions after the first `seen`.
    pub(super) fn arm(&mut self, now_ps: u64, seen: u32, moderation: Moderation) -> Announce {
        (self.armed, self.seen, self.is_set) = (true, seen, false);
        self.arming = self.arming.wrapping_add(1);
        self.judge(now_ps, moderation)
    }

    /// The time for `arming` has come. Returns whether to announce completions.
    pub(super) fn due(&mut self, arming: u32) -> bool {
        let is_due = self.armed && self.arming == arming;
        self.armed &= !is_due;
        is_due
    }

    fn judge(&mut self, now_ps: u64, moderation: Moderation) -> Announce {
        let new = self.landed.wrapping_sub(self.seen);
        if !self.armed || new == 0 {
            return Announce::Nothing;
        }
        if moderation.delay_ps == 0 || moderation.frames.is_some_and(|frames| new >= frames) {
            self.armed = false;
            return Announce::Now;
        }
        if std::mem::replace(&mut self.is_set, true) {
            return Announce::Nothing;
        }
        Announce::At(now_ps + moderation.delay_ps, self.arming)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODERATION: Moderation = Moderation { delay_ps: 100, frames: Some(3) };

    #[test]
    fn the_first_completion_sets_the_time_and_the_last_frame_comes_before_it() {
        let mut announcer = Announcer::default();
        assert_eq!(announcer.landed(5, MODERATION), Announce::Nothing, "the driver has not asked");
        assert_eq!(announcer.arm(10, 1, MODERATION), Announce::Nothing, "and has seen that one");
        let Announce::At(110, arming) = announcer.landed(10, MODERATION) else { panic!("no time was set") };
        assert_eq!(announcer.landed(20, MODERATION), Announce::Nothing);
        assert_eq!(announcer.landed(30, MODERATION), Announce::Now, "the third");
        assert!(!announcer.due(arming), "they were announced already");
        assert_eq!(announcer.landed(40, MODERATION), Announce::Nothing, "once is enough");
    }

    #[test]
    fn what_has_landed_before_arming_counts() {
        let mut announcer = Announcer::default();
        announcer.landed(1, MODERATION);
        let Announce::At(107, first) = announcer.arm(7, 0, MODERATION) else { panic!("no time was set") };
        let Announce::At(108, second) = announcer.arm(8, 0, MODERATION) else { panic!("no time was set") };
        assert!(!announcer.due(first) && announcer.due(second) && !announcer.due(second));
        let at_once = Moderation { delay_ps: 0, frames: None };
        assert_eq!(announcer.arm(9, 0, at_once), Announce::Now);
    }
}
