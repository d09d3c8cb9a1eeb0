//! Distance prefetching: which distance followed this one the last times (Kandiraju and Sivasubramaniam, ISCA'02).
//!
//! It knows no addresses, only how far they are apart: so it lives on the order of addresses alone, and no invalidation touches it
//! but that of the page missed last.

use super::history::History;
use super::{Covered, Form, Page, Prefetcher};

pub(super) struct Distance {
    form: Form,
    /// By the distance, its bits taken as a number.
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
