//! Recency prefetching: pages that were evicted from the IOTLB one after the other will be requested one after the
//! other (Saulsbury et al., ISCA'00).
//!
//! An evicted page is pushed onto a stack. The original threads the stack through the page table; here it is a list
//! of bounded length. A missed page is removed from the stack, and its two neighbours there are predicted.

use super::{Covered, Form, Page, Prefetcher};
use crate::cache::{Cache, Replacement};

pub(super) struct Recency {
    form: Form,
    stack: Cache<()>,
}

impl Recency {
    pub(super) fn new(form: Form, length: usize) -> Self {
        Self { form, stack: Cache::new(length, 0, Replacement::Lru) }
    }
}

impl Prefetcher for Recency {
    fn missed(&mut self, page: Page, predicted: &mut Vec<Page>) {
        let (newer, older) = self.stack.neighbours(page.key());
        // The page that was evicted after this one is requested after it, if the order is the same. So it is
        // predicted first.
        predicted.extend(newer.into_iter().chain(older).map(Page::of_key));
        self.stack.remove(page.key());
    }

    fn evicted(&mut self, page: Page) {
        self.stack.insert(page.key(), ());
    }

    fn invalidated(&mut self, covered: Covered, dropped: &mut dyn Iterator<Item = Page>) {
        match self.form {
            // The dropped pages leave the IOTLB as if they had been evicted.
            Form::Modified => dropped.for_each(|page| self.evicted(page)),
            Form::Baseline => {
                let stack = &mut self.stack;
                if !covered.each(stack.len(), |page| _ = stack.remove(page.key())) {
                    stack.remove_where(|key| covered.contains(Page::of_key(key)));
                }
            }
        }
    }
}
