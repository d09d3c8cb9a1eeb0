//! The pages beside the one that was missed (Amit et al., 2010, §4.2).

use super::{Page, Prefetcher};

/// Which neighbours are predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// The next page and the previous page.
    Both,
    /// The next page.
    Up,
}

pub(super) struct Adjacent {
    pub(super) direction: Direction,
}

impl Prefetcher for Adjacent {
    fn missed(&mut self, page: Page, predicted: &mut Vec<Page>) {
        predicted.extend(page.at(1));
        if self.direction == Direction::Both {
            predicted.extend(page.at(-1));
        }
    }
}
