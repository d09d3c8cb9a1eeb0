//! The timers of Linux count in ticks.

/// A tick with `HZ` 250, as distributions build Linux 6.0.
pub(super) const JIFFY_PS: u64 = 4_000_000_000;

/// When a timer expires that is set for `jiffies` ticks. It is one tick later than asked for, because the timer wheel
/// rounds up (`calc_index` of Linux, `kernel/time/timer.c`): a timer never expires early, though a part of the present
/// tick is over.
pub(super) fn expires_ps(now_ps: u64, jiffies: u64, jiffy_ps: u64) -> u64 {
    (now_ps / jiffy_ps).saturating_add(jiffies).saturating_add(1).saturating_mul(jiffy_ps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_expires_with_a_tick_and_never_early() {
        for now_ps in [0, 1, JIFFY_PS - 1, JIFFY_PS] {
            let end_ps = expires_ps(now_ps, 3, JIFFY_PS);
            assert_eq!(end_ps % JIFFY_PS, 0);
            assert!((3 * JIFFY_PS..=4 * JIFFY_PS).contains(&(end_ps - now_ps)));
        }
    }
}
