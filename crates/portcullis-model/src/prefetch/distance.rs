//! Distance prefetching: predicts the distances that followed the current one before (Kandiraju and Sivasubramaniam,
//! ISCA'02).
//!
//! It stores distances and no addresses, so it depends only on the order of addresses. The only invalidation that
//! affects it is that of the page missed last.

use super::history::History;
use super::{Covered, Form, Page, Prefetcher};

pub(super) struct Distance {
    form: Form,
    /// Keyed by the bits of the distance.
    history: History<i64>,
    last: Option<Page>,
    last_distance: Option<i64>,
}

impl Distance {
    pub(super) fn new(form: Form, rows: usize, slots: usize) -> Self {
        Self { form, history: History::new(rows, slots), last: None, last_distance: None }
    }
}

impl Prefetcher for Distance {
    fn missed(&mut self, page: Page, predicted: &mut Vec<Page>) {
        let last = self.last.replace(page).filter(|last| last.domain == page.domain);
        let distance = last.map(|last| page.pfn.wrapping_sub(last.pfn) as i64);
        let Some(distance) = distance else {
            self.last_distance = None;
            return;
        };
        if let Some(before) = self.last_distance.replace(distance) {
            self.history.note(before as u64, distance);
        }
        let next = self.history.after(distance as u64).iter();
        predicted.extend(next.filter_map(|distance| page.at(*distance)));
    }

    fn invalidated(&mut self, covered: Covered, _dropped: &mut dyn Iterator<Item = Page>) {
        if self.form == Form::Baseline && self.last.is_some_and(|last| covered.contains(last)) {
            (self.last, self.last_distance) = (None, None);
        }
    }
}
