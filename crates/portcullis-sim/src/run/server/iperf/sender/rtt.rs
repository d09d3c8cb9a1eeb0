//! The round-trip time of a sender (RFC 6298).

use super::TcpParameters;

/// The estimate.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    smoothed_ps: u64,
    deviation_ps: u64,
    min_ps: u64,
}

impl Rtt {
    /// The estimate after the handshake.
    pub(super) fn new(handshake_ps: u64) -> Self {
        Self { smoothed_ps: handshake_ps, deviation_ps: handshake_ps / 2, min_ps: handshake_ps }
    }

    /// Takes the time of the first packet that an acknowledgement covers, and that of the last one. Only the latter can
    /// be the smallest: the others may have waited for the acknowledgement.
    pub(super) fn note(&mut self, first_ps: u64, last_ps: u64) {
        self.min_ps = self.min_ps.min(last_ps);
        self.deviation_ps = self.deviation_ps - self.deviation_ps / 4 + self.smoothed_ps.abs_diff(first_ps) / 4;
        self.smoothed_ps = self.smoothed_ps - self.smoothed_ps / 8 + first_ps / 8;
    }

    pub(super) fn smoothed_ps(&self) -> u64 {
        self.smoothed_ps
    }

    /// The smallest time. Linux forgets it after 300 s, which no run lasts.
    pub(super) fn min_ps(&self) -> u64 {
        self.min_ps
    }

    /// The retransmission timeout. As in Linux its minimum holds for what is added to the round-trip time.
    pub(super) fn timeout_ps(&self, parameters: &TcpParameters) -> u64 {
        self.smoothed_ps + (4 * self.deviation_ps).max(parameters.rto_min_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_deviation_above_its_minimum() {
        let (mut rtt, parameters) = (Rtt::new(100_000_000), TcpParameters::default());
        assert_eq!(rtt.timeout_ps(&parameters), 200_100_000_000);
        rtt.note(100_000_000, 80_000_000);
        assert_eq!((rtt.timeout_ps(&parameters), rtt.min_ps()), (200_100_000_000, 80_000_000));
        rtt.note(800_100_000_000, 90_000_000);
        assert!(rtt.timeout_ps(&parameters) > 800_000_000_000, "four deviations");
        assert_eq!(rtt.min_ps(), 80_000_000);
    }
}
