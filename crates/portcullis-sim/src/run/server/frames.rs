//! The meaning of frames, which stands in their cookies.

/// Why a frame is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Opens a connection.
    Open,
    /// Part of a stream or of a response. The number counts the packets of the connection up to its end.
    Data,
    /// Acknowledges all packets up to the number.
    Acknowledgement,
    /// The same, and says that a packet before it is missing.
    Gap,
    /// A request. The number is the kind of the request: [`ASK`], [`SET`] or [`CONTROL`].
    Request,
    /// The response to a request, if it is a single packet.
    Response,
    /// Closes a connection.
    Close,
}

/// The kinds of requests: an ordinary one, one that stores a value, and a control message of Netperf.
pub(super) const ASK: u32 = 0;
pub(super) const SET: u32 = 1;
pub(super) const CONTROL: u32 = 2;

const KINDS: [Kind; 7] =
    [Kind::Open, Kind::Data, Kind::Acknowledgement, Kind::Gap, Kind::Request, Kind::Response, Kind::Close];

/// Bits of a cookie for the number. Three bits above are for the kind, and the others for the flow.
pub(super) const NUMBER_BITS: u32 = 17;
const FLOW_SHIFT: u32 = NUMBER_BITS + 3;
/// The number of flows that a cookie can tell apart.
pub(super) const FLOWS_MAX: u32 = 1 << (u32::BITS - FLOW_SHIFT);

/// A frame's flow, kind and number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meaning {
    pub(super) flow: usize,
    pub(super) kind: Kind,
    /// The lowest [`NUMBER_BITS`] bits of the number.
    pub(super) number: u32,
}

impl Meaning {
    pub(super) fn new(flow: usize, kind: Kind, number: u32) -> Self {
        Self { flow, kind, number: number & ((1 << NUMBER_BITS) - 1) }
    }

    pub(super) fn cookie(self) -> u32 {
        (self.flow as u32) << FLOW_SHIFT | (self.kind as u32) << NUMBER_BITS | self.number
    }

    /// The whole number, if it is near `count`.
    pub(super) fn number_near(self, count: u64) -> u64 {
        const UNUSED_BITS: u32 = u32::BITS - NUMBER_BITS;
        let ahead =
            (self.number << UNUSED_BITS).wrapping_sub((count as u32) << UNUSED_BITS).cast_signed() >> UNUSED_BITS;
        count.wrapping_add_signed(ahead.into())
    }

    pub(super) fn of(cookie: u32) -> Self {
        let kind = KINDS[(cookie >> NUMBER_BITS) as usize % 8 % KINDS.len()];
        Self::new((cookie >> FLOW_SHIFT) as usize, kind, cookie)
    }
}

/// How far `number` is ahead of `count`, of which it is the lowest bits. An older number seems to be far ahead.
pub(super) fn ahead(number: u32, count: u32) -> u32 {
    const UNUSED_BITS: u32 = u32::BITS - NUMBER_BITS;
    (number << UNUSED_BITS).wrapping_sub(count << UNUSED_BITS) >> UNUSED_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_has_all_of_a_meaning() {
        for (index, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
            for (flow, number) in [(0, 0), (4095, (1 << NUMBER_BITS) - 1), (7, 1234)] {
                let meaning = Meaning::new(flow, kind, number);
                assert_eq!(Meaning::of(meaning.cookie()), meaning);
            }
        }
        assert_eq!(FLOWS_MAX, 4096);
    }

    #[test]
    fn a_number_near_a_count_is_known() {
        let round = u64::from(1u32 << NUMBER_BITS);
        for number in [0, 1, 250, round - 1, round, 3 * round + 7] {
            let meaning = Meaning::new(0, Kind::Data, number as u32);
            for count in [number.saturating_sub(250), number, number + 250] {
                assert_eq!(meaning.number_near(count), number);
            }
        }
    }

    #[test]
    fn numbers_go_round() {
        let round = 1 << NUMBER_BITS;
        assert_eq!(ahead(40, 30), 10);
        assert_eq!(ahead(Meaning::new(0, Kind::Data, round + 20).number, round - 10), 30);
        assert!(ahead(30, 40) > round / 2, "an older number");
    }
}
