//! What a piece of work carries: the kind of its device, and how many bytes of each buffer.

pub(crate) mod pages;

use portcullis::Access;
use portcullis_trace::{Events, Trace};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The kind of device for which the buffers are. It decides what limits the rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    /// A network card: its link is the limit, and packets may be shorter than their buffers.
    #[default]
    Network,
    /// A disk: requests and bytes per second are limits, and it fills its buffers.
    Disk,
}

impl Traffic {
    /// Parses `network` or `disk`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "network" => Some(Self::Network),
            "disk" => Some(Self::Disk),
            _ => None,
        }
    }
}

/// What is known about the kind of device of some work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// The kind for which it counts.
    pub(crate) traffic: Traffic,
    /// Whether nothing shows it, so that it may be a disk's too.
    pub(crate) is_unknown: bool,
}

/// Disks read and write multiples of this.
const SECTOR_BYTES: u64 = 512;

/// The kind of device that a trace is of; `None` if it does not show.
///
/// A disk's buffers are all whole sectors, which packet headers never are. But a card may have nothing but receive
/// buffers of whole sectors.
pub(crate) fn of(trace: &Trace) -> Option<Traffic> {
    if trace.events == Events::Iommu {
        return pages::kind(trace);
    }
    let whole = |bytes: u64| bytes.is_multiple_of(SECTOR_BYTES);
    let is_of_sectors = trace.segments.iter().all(|segment| whole(segment.len) && whole(segment.phys.as_u64()));
    let is_a_disks = is_of_sectors && pages::kind(trace) != Some(Traffic::Network);
    Some(if is_a_disks { Traffic::Disk } else { Traffic::Network })
}

/// How many bytes of a buffer a network card writes, as the user says.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum PayloadRule {
    /// As many as the capture shows. If it shows nothing, from one byte to the whole buffer.
    #[default]
    Shown,
    /// This many bytes, or all of a smaller buffer.
    Bytes(u64),
    /// This share of each buffer.
    Share(f64),
}

impl PayloadRule {
    /// Parses a number of bytes, `128`, or a share with a decimal point, `0.5`.
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains('.') {
            return text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0).map(Self::Share);
        }
        text.parse().ok().filter(|bytes| *bytes > 0).map(Self::Bytes)
    }
}

impl fmt::Display for PayloadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shown => f.write_str("shown"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            // The point lets it be parsed as a share again.
            Self::Share(share) => write!(f, "{share:?}"),
        }
    }
}

impl Serialize for PayloadRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The least and the most bytes that a device moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Payload {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Payload {
    pub(crate) const fn exactly(bytes: u64) -> Self {
        Self { min: bytes, max: bytes }
    }

    /// The number of bytes, if it is known exactly.
    pub(crate) fn known(self) -> Option<u64> {
        (self.min == self.max).then_some(self.max)
    }
}

impl std::ops::AddAssign for Payload {
    fn add_assign(&mut self, other: Self) {
        self.min += other.min;
        self.max += other.max;
    }
}

/// What is known about the payload of a run's buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadSource {
    pub(crate) traffic: Traffic,
    pub(crate) rule: PayloadRule,
    /// Whether buffers are full by default, as those of synthetic work are.
    pub(crate) full: bool,
}

impl PayloadSource {
    /// The payload of a buffer of `len` bytes. `shown` is what the capture shows about it.
    pub(crate) fn of(self, access: Access, len: u64, shown: Option<Payload>) -> Payload {
        // The owner filled a buffer that is sent, and a disk fills every buffer that it gets. Either may stand for
        // more: for what its card receives beside it, or for further requests.
        if access == Access::DeviceReads || self.traffic == Traffic::Disk {
            return Payload::exactly(shown.map_or(len, |shown| shown.max.max(len)));
        }
        match self.rule {
            PayloadRule::Bytes(bytes) => Payload::exactly(bytes.min(len)),
            PayloadRule::Share(share) => Payload::exactly(((len as f64 * share).round() as u64).clamp(1.min(len), len)),
            PayloadRule::Shown if self.full => Payload::exactly(len),
            PayloadRule::Shown => shown.unwrap_or(Payload { min: 1.min(len), max: len }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: PayloadSource = PayloadSource { traffic: Traffic::Network, rule: PayloadRule::Shown, full: false };

    #[test]
    fn bytes_have_no_point_and_shares_do() {
        assert_eq!(PayloadRule::parse("128"), Some(PayloadRule::Bytes(128)));
        assert_eq!(PayloadRule::parse("0.5"), Some(PayloadRule::Share(0.5)));
        assert_eq!(PayloadRule::parse("1.0").map(|rule| rule.to_string()), Some("1.0".to_owned()));
        for text in ["0", "-1", "0.0", "1.5", "NaN.", "many", ""] {
            assert_eq!(PayloadRule::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_what_a_network_card_writes_is_unknown() {
        let range = SOURCE.of(Access::DeviceWrites, 1522, None);
        assert_eq!((range, range.known()), (Payload { min: 1, max: 1522 }, None));
        assert_eq!(SOURCE.of(Access::DeviceReads, 54, None).known(), Some(54));
        let disk = PayloadSource { traffic: Traffic::Disk, ..SOURCE };
        assert_eq!(disk.of(Access::DeviceWrites, 4096, None).known(), Some(4096));
        let shown = Some(Payload { min: 98, max: 98 });
        assert_eq!(SOURCE.of(Access::DeviceWrites, 1522, shown).known(), Some(98));
    }

    #[test]
    fn what_the_user_says_comes_before_what_the_capture_shows() {
        let shown = Some(Payload { min: 98, max: 98 });
        let said = |rule| PayloadSource { rule, ..SOURCE }.of(Access::DeviceWrites, 1522, shown).known();
        assert_eq!(said(PayloadRule::Bytes(128)), Some(128));
        assert_eq!(said(PayloadRule::Bytes(9000)), Some(1522));
        assert_eq!(said(PayloadRule::Share(0.5)), Some(761));
    }
}
