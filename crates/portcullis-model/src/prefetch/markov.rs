//! Markov prefetching: predicts the pages that followed the missed page at its last misses (Joseph and Grunwald,
//! ISCA'97).

use super::history::History;
use super::{Covered, Form, Page, Prefetcher};

pub(super) struct Markov {
    form: Form,
    /// Keyed by page.
    history: History<Page>,
    last: Option<Page>,
}

impl Markov {
    pub(super) fn new(form: Form, rows: usize, slots: usize) -> Self {
        Self { form, history: History::new(rows, slots), last: None }
    }
}

impl Prefetcher for Markov {
    fn missed(&mut self, page: Page, predicted: &mut Vec<Page>) {
        if let Some(last) = self.last.replace(page) {
            self.history.note(last.key(), page);
        }
        predicted.extend_from_slice(self.history.after(page.key()));
    }

    fn invalidated(&mut self, covered: Covered, _dropped: &mut dyn Iterator<Item = Page>) {
        if self.form == Form::Modified {
            return;
        }
        self.last = self.last.filter(|last| !covered.contains(*last));
        let history = &mut self.history;
        if !covered.each(history.len(), |page| history.forget(page.key())) {
            history.forget_where(|key| covered.contains(Page::of_key(key)));
        }
        // An invalidated page must not remain as a successor of other pages.
        history.forget_followers(|page| covered.contains(*page));
    }
}
