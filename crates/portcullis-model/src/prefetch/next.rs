//! The pages that follow the one that was missed: all that a contiguous address order asks for.

use super::{Page, Prefetcher};

pub(super) struct Next {
    /// How many.
    pub(super) depth: i64,
}

impl Prefetcher for Next {
    fn missed(&mut self, page: Page, predicted: &mut Vec<Page>) {
        predicted.extend((1..=self.depth).map_while(|distance| page.at(distance)));
    }
}
