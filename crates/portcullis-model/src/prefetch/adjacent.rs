//! The pages beside the one that was missed (Amit et al., 2010, §4.2).

use super::{Page, Prefetcher};

/// Where the other page is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// The page after, and the page before.
    Both,
    /// The page after.
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
