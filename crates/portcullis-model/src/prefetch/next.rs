//! Predicts the pages that follow the missed page, which suffices for contiguous addresses.

use super::{Page, Prefetcher};

pub(super) struct Next {
    /// The number of pages to predict.
    pub(super) depth: i64,
}

impl Prefetcher for Next {
    fn missed(&mut self, page: Page, predicted: &mut Vec<Page>) {
        predicted.extend((1..=self.depth).map_while(|distance| page.at(distance)));
    }
}
