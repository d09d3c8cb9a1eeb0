//! The choices of work that loses packets, which are not those of its machine.

/// How a driver uses pages again that it has released.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Recycling {
    /// As mlx5 does: released pages stay mapped in a queue. Only the page at its head is used again, and only if no
    /// socket holds it.
    #[default]
    Driver,
    /// Never: each released page is unmapped.
    Never,
    /// Always: a released page counts as free at once, also if a socket still holds it. No kernel can do that.
    Always,
}

/// Which way the streams of a run go.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StreamDirection {
    /// The server receives all of them.
    #[default]
    Receive,
    /// It sends all of them.
    Send,
    /// Of two flows, it receives the first and sends the second.
    Both,
}

impl StreamDirection {
    /// Whether the server sends the stream of a flow.
    pub(super) fn sends(self, flow: usize) -> bool {
        match self {
            Self::Receive => false,
            Self::Send => true,
            Self::Both => flow % 2 == 1,
        }
    }
}

/// The choices of a run that are not those of its machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IperfChoices {
    /// How the driver uses pages again.
    pub recycling: Recycling,
    /// Whether sockets hold pages until they are read. Otherwise pages count as free when the kernel has them.
    pub holds: bool,
    /// Whether the kernel acknowledges each packet that is out of order, in place of Linux's rule.
    pub acknowledges_each: bool,
    /// Over how many regions of 2 MiB the addresses of the rings are spread at random when the card is opened, as
    /// after hours of use. 0 leaves them as they come. An input: published reuse distances. `None` stands for 70, or
    /// for as many as larger rings fill, and for 0 with batches, which are for designs that keep addresses together.
    pub regions: Option<u32>,
    /// Which way the streams go.
    pub direction: StreamDirection,
}

impl Default for IperfChoices {
    fn default() -> Self {
        Self {
            recycling: Recycling::Driver,
            holds: true,
            acknowledges_each: false,
            regions: None,
            direction: StreamDirection::Receive,
        }
    }
}

impl IperfChoices {
    /// Sets the value of a parameter, such as `never` of `recycle`. `None` if there is no such one.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match (key, value) {
            ("recycle", "driver") => self.recycling = Recycling::Driver,
            ("recycle", "never") => self.recycling = Recycling::Never,
            ("recycle", "always") => self.recycling = Recycling::Always,
            ("hold", "yes") => self.holds = true,
            ("hold", "no") => self.holds = false,
            ("ack", "linux") => self.acknowledges_each = false,
            ("ack", "each") => self.acknowledges_each = true,
            ("direction", "receive") => self.direction = StreamDirection::Receive,
            ("direction", "send") => self.direction = StreamDirection::Send,
            ("direction", "both") => self.direction = StreamDirection::Both,
            ("regions", value) => self.regions = Some(value.parse().ok().filter(|regions| *regions <= REGIONS_MAX)?),
            _ => return None,
        }
        Some(())
    }
}

/// The regions, if a run of single unmaps does not say another number. Assumed.
pub(super) const REGIONS: u32 = 70;
/// The most regions: 2 GiB of addresses.
const REGIONS_MAX: u32 = 1024;
/// The pages that a region of the scatter has.
pub(super) const REGION_PAGES: u32 = 512;
