//! Segments of TCP streams that the card joins to one packet, as the cards of bnx2x do (TPA).
//!
//! The first segment is written to an entry of its ring, and a completion says so. What follows of its connection is
//! written without headers, one segment after another, to pages of a second ring. A second completion ends the packet.

use super::format::{Completion, Joined, Joins, PagesOfPacket};
use super::posted::{Write, Written};
use super::{Card, Due, Frame, RingNumber};
use crate::vtd::Requests;
use portcullis::Iova;

/// A segment of a TCP stream, in place of its headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpSegment {
    /// Its connection.
    pub connection: u64,
    /// Its number in the connection. A card joins only segments that follow one another.
    pub number: u32,
    /// The bytes of its headers. Only those of the first segment of a packet are kept.
    pub header_bytes: u32,
    /// Whether it must be the last of its packet: it has the flag PSH or FIN.
    pub ends: bool,
}

/// A frame in the receive buffer.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    pub(super) frame: Frame,
    /// If it is a segment that may be joined to others.
    pub(super) segment: Option<TcpSegment>,
}

/// A packet whose end was not announced yet.
pub(super) struct OpenPacket {
    /// Its own number, which tells it from later ones of the connection.
    id: u32,
    connection: u64,
    /// The number of the segment that may follow.
    next: u32,
    /// What its completion will say.
    end: Completion,
    segments: u16,
    pages: PagesOfPacket,
    /// What is unused of its last page: the address, and how many bytes.
    rest: (Iova, u64),
    /// When its latest segment came.
    latest_ps: u64,
}

/// What became of a segment.
#[derive(PartialEq, Eq)]
pub(super) enum Joining {
    /// It is part of a packet.
    Done,
    /// It waits for an entry or a page.
    Waits,
    /// It is a packet of its own.
    Alone,
}

impl Card {
    /// Joins the first segment that waits to an open packet, or begins one with it.
    pub(super) fn join(
        &mut self,
        unit: &mut Requests<'_>,
        number: RingNumber,
        joins: Joins,
        Arrived { frame, segment }: Arrived,
    ) -> Joining {
        let Some(segment) = segment.filter(|segment| segment.header_bytes < frame.bytes) else { return Joining::Alone };
        let is_same = |open: &OpenPacket| open.connection == segment.connection;
        if let Some(place) = self.rings[number].open.iter().position(is_same) {
            let Some(pages) = self.pages_for(number, place, joins, frame, segment) else {
                self.end_packet(number, place);
                return self.begin_packet(unit, number, joins, frame, segment);
            };
            if self.rings[joins.pages].ready.len() < pages {
                return Joining::Waits;
            }
            self.append(unit, number, place, joins, frame, segment);
            return Joining::Done;
        }
        self.begin_packet(unit, number, joins, frame, segment)
    }

    /// How many further pages an open packet needs for a segment. `None` if the segment must not be part of it.
    fn pages_for(
        &self,
        number: RingNumber,
        place: usize,
        joins: Joins,
        frame: Frame,
        segment: TcpSegment,
    ) -> Option<usize> {
        let (open, payload) = (&self.rings[number].open[place], frame.bytes - segment.header_bytes);
        let page_bytes = u64::from(joins.page_bytes);
        let pages = u64::from(payload).saturating_sub(open.rest.1).div_ceil(page_bytes) as usize;
        let fits = open.end.bytes + payload <= joins.bytes_max
            && pages <= self.parameters.fetch_entries as usize
            && open.pages.has_room(pages);
        (fits && segment.number == open.next).then_some(pages)
    }

    fn append(
        &mut self,
        unit: &mut Requests<'_>,
        number: RingNumber,
        place: usize,
        joins: Joins,
        frame: Frame,
        segment: TcpSegment,
    ) {
        self.rings[number].arrived.pop_front();
        let mut left = u64::from(frame.bytes - segment.header_bytes);
        while left > 0 {
            if self.rings[number].open[place].rest.1 == 0 {
                let pages = &mut self.rings[joins.pages];
                let (entry, entries) = (pages.ready.pop_front(), pages.config.entries);
                let Some((entry, page)) = entry.and_then(|entry| Some((entry.number, *entry.pieces.first()?))) else {
                    break;
                };
                let open = &mut self.rings[number].open[place];
                open.pages.push((entry % entries) as u16);
                open.rest = (page.iova, joins.page_bytes.min(page.bytes).into());
            }
            let (at, room) = self.rings[number].open[place].rest;
            let len = room.min(left);
            left -= len;
            self.rings[number].open[place].rest = (Iova::new(at.as_u64().wrapping_add(len)), room - len);
            let what = if left == 0 { Written::Segment(frame.bytes) } else { Written::Data };
            self.writes.push_back(Write { iova: at, len, what });
        }
        let open = &mut self.rings[number].open[place];
        open.end.bytes += frame.bytes - segment.header_bytes;
        open.end.cookie = frame.cookie;
        (open.segments, open.next, open.latest_ps) =
            (open.segments.saturating_add(1), segment.number.wrapping_add(1), self.now_ps);
        if segment.ends {
            self.end_packet(number, place);
        }
        self.fetch(unit, joins.pages);
    }

    /// Begins a packet with the first segment that waits, unless it must stay alone.
    fn begin_packet(
        &mut self,
        unit: &mut Requests<'_>,
        number: RingNumber,
        joins: Joins,
        frame: Frame,
        segment: TcpSegment,
    ) -> Joining {
        let ring = &mut self.rings[number];
        if segment.ends || ring.open.len() >= joins.packets_max as usize {
            return Joining::Alone;
        }
        let Some(entry) = ring.ready.pop_front() else { return Joining::Waits };
        ring.arrived.pop_front();
        let end = Completion::of_frame(entry.number, frame);
        ring.open.push(OpenPacket {
            id: ring.completed,
            connection: segment.connection,
            next: segment.number.wrapping_add(1),
            end,
            segments: 1,
            pages: PagesOfPacket::default(),
            rest: (Iova::new(0), 0),
            latest_ps: self.now_ps,
        });
        let id = ring.completed;
        let parts = entry.parts(0, frame.bytes.into());
        self.writes.extend(parts.map(|(iova, len)| Write { iova, len, what: Written::Data }));
        self.complete(number, Completion { joined: Joined::Start, ..end });
        self.set_due(self.now_ps + joins.silence_ps, Due::Silence(number, id));
        self.fetch(unit, number);
        Joining::Done
    }

    /// Announces the end of an open packet.
    fn end_packet(&mut self, number: RingNumber, place: usize) {
        let OpenPacket { end, segments, pages, .. } = self.rings[number].open.swap_remove(place);
        self.complete(number, Completion { joined: Joined::End { segments, pages }, ..end });
    }

    /// Ends an open packet if none of its connection has come for long.
    pub(super) fn look_for_silence(&mut self, unit: &mut Requests<'_>, number: RingNumber, id: u32) {
        let ring = &self.rings[number];
        let Some(joins) = ring.config.format.joins else { return };
        let Some(place) = ring.open.iter().position(|open| open.id == id) else { return };
        let due_ps = ring.open[place].latest_ps + joins.silence_ps;
        if due_ps > self.now_ps {
            return self.set_due(due_ps, Due::Silence(number, id));
        }
        self.end_packet(number, place);
        self.write_on(unit);
    }
}
