//! How far apart the uses of an entry of PTcache-L3 are: how many other regions of 2 MiB the card writes to between two
//! writes to the same one (Fast & Safe, §2).

use portcullis::Iova;

/// A region has 2^21 bytes: what an entry of PTcache-L3 covers.
const REGION_SHIFT: u32 = 21;
/// So many uses are enough for a mean.
const USES_MAX: u64 = 20_000;

/// The regions, the one used last at the end.
#[derive(Default)]
pub(super) struct Reuse {
    used: Vec<u64>,
    uses: u64,
    distances: u64,
}

impl Reuse {
    /// Notes a page that was written to.
    pub(super) fn note(&mut self, iova: Iova) {
        if self.uses >= USES_MAX {
            return;
        }
        let region = iova.as_u64() >> REGION_SHIFT;
        if let Some(place) = self.used.iter().rposition(|used| *used == region) {
            self.distances += (self.used.len() - 1 - place) as u64;
            self.uses += 1;
            self.used.remove(place);
        }
        self.used.push(region);
    }

    /// The mean number of other regions. `None` if no region was used twice.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.uses > 0).then(|| self.distances as f64 / self.uses as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_that_of_a_stack() {
        let mut reuse = Reuse::default();
        for region in [1, 2, 3, 1, 1, 3] {
            reuse.note(Iova::new(region << REGION_SHIFT | 0x1000));
        }
        // 1 after 2 and 3; 1 at once; 3 after 1.
        assert_eq!(reuse.mean(), Some(f64::from(2 + 1) / 3.0));
        assert_eq!(Reuse::default().mean(), None);
    }
}
