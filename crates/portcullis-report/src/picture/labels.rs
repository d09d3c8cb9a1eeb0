//! Places the names of points near their points, without overlap.

use super::canvas::width;

/// A rectangle of pixels: left, top, right, bottom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rect {
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) right: i32,
    pub(super) bottom: i32,
}

impl Rect {
    /// The square around a mark.
    pub(super) const fn around((x, y): (i32, i32), radius: i32) -> Self {
        Self { left: x - radius, top: y - radius, right: x + radius, bottom: y + radius }
    }

    pub(super) const fn overlaps(self, other: Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    const fn within(self, outer: Self) -> bool {
        self.left >= outer.left && self.top >= outer.top && self.right <= outer.right && self.bottom <= outer.bottom
    }

    /// The distance to the square around a mark, in pixels of the longer direction.
    const fn apart(self, mark: Self) -> i32 {
        let (across, down) =
            (max(self.left - mark.right, mark.left - self.right), max(self.top - mark.bottom, mark.top - self.bottom));
        max(0, max(across, down))
    }

    /// The point of the rectangle that is nearest to another point.
    fn nearest(self, (x, y): (i32, i32)) -> (i32, i32) {
        (x.clamp(self.left, self.right), y.clamp(self.top, self.bottom))
    }
}

const fn max(one: i32, other: i32) -> i32 {
    if one > other { one } else { other }
}

/// A point whose name is to be placed.
pub(super) struct Point {
    pub(super) at: (i32, i32),
    pub(super) name: String,
    pub(super) bold: bool,
    /// The area in which the name may lie.
    pub(super) within: Rect,
}

/// The place of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) rect: Rect,
    /// A line from the point to the name, if they are not side by side.
    pub(super) leader: Option<[(i32, i32); 2]>,
}

/// The gap between a mark and its name, and the free room at both ends of a name.
const GAP: i32 = 1;
pub(super) const BESIDE: i32 = 3;
/// How far a name may be moved: lines up or down, steps to the side, and the width of a step.
const LINES: i32 = 16;
const STEPS: i32 = 12;
const STEP: i32 = 14;
/// A name within this distance needs no leader.
const NEAR: i32 = 10;

/// The penalties of a place, on the scale of [`candidates`]: crossing an edge, covering a name or a mark, a leader
/// across a name or a mark, and any leader.
const OUTSIDE: i32 = 5000;
const COVERED: i32 = 1000;
const CROSSED: i32 = 60;
const LED: i32 = 30;

/// Places names of height `px` beside marks of `radius`, in the order of the points. Each name takes the best free
/// place.
pub(super) fn place(points: &[Point], px: u32, radius: i32) -> Vec<Place> {
    let marks: Vec<Rect> = points.iter().map(|point| Rect::around(point.at, radius)).collect();
    let mut taken: Vec<Place> = Vec::with_capacity(points.len());
    for point in points {
        let own = Rect::around(point.at, radius);
        let others = || marks.iter().filter(|mark| **mark != own);
        let led = |mut place: Place| {
            // A name that could also belong to another mark gets a leader too.
            let (distance, doubtful) = (place.rect.apart(own), |mark: &Rect| place.rect.apart(*mark) <= NEAR);
            if distance > NEAR || others().any(|mark| doubtful(mark) && place.rect.apart(*mark) <= distance) {
                place.leader = Some([point.at, place.rect.nearest(point.at)]);
            }
            place
        };
        let against = |place: &Place| {
            let covered = marks.iter().filter(|mark| mark.overlaps(place.rect)).count()
                + taken.iter().filter(|other| other.rect.overlaps(place.rect)).count();
            let crossed = others().filter(|mark| crosses(place.leader, **mark)).count()
                + taken.iter().filter(|other| crosses(place.leader, other.rect)).count()
                + taken.iter().filter(|other| crosses(other.leader, place.rect)).count();
            let outside = i32::from(!place.rect.within(point.within));
            OUTSIDE * outside + COVERED * covered as i32 + CROSSED * crossed as i32
        };
        let candidates = candidates(point, px, radius).into_iter().map(|(distance, rect)| {
            let place = led(Place { rect, leader: None });
            (distance + LED * i32::from(place.leader.is_some()), place)
        });
        taken.extend(candidates.min_by_key(|(distance, place)| distance + against(place)).map(|(_, place)| place));
    }
    taken
}

/// Whether a leader crosses a rectangle.
fn crosses(leader: Option<[(i32, i32); 2]>, rect: Rect) -> bool {
    leader.is_some_and(|leader| along(leader).any(|at| Rect::around(at, 1).overlaps(rect)))
}

/// Points on a line, a few pixels apart.
fn along([(x0, y0), (x1, y1)]: [(i32, i32); 2]) -> impl Iterator<Item = (i32, i32)> {
    let pieces = ((x1 - x0).abs().max((y1 - y0).abs()) / 3).max(1);
    (0..=pieces).map(move |piece| (x0 + (x1 - x0) * piece / pieces, y0 + (y1 - y0) * piece / pieces))
}

/// Candidate places for the name of a point, each with its distance.
fn candidates(point: &Point, px: u32, radius: i32) -> Vec<(i32, Rect)> {
    let (width, height) = (width(&point.name, px, point.bold) + 2 * BESIDE, px as i32 + 2);
    let (x, y) = point.at;
    let mut candidates = Vec::new();
    for line in -LINES..=LINES {
        let top = y - height / 2 + line * height;
        for step in 0..=STEPS {
            let (right_of, left_of) = (x + radius + GAP + step * STEP, x - radius - GAP - width - step * STEP);
            // Above and below, there is also the place centred on the point.
            let centred = (step == 0 && line != 0).then_some(x - width / 2);
            for left in [Some(right_of), Some(left_of), centred].into_iter().flatten() {
                let rect = Rect { left, top, right: left + width, bottom: top + height };
                let (near_x, near_y) = rect.nearest(point.at);
                // A name is preferably to the right, then to the left, then above.
                let habit = i32::from(left != right_of) + i32::from(line > 0);
                candidates.push((4 * (near_x - x).abs() + 5 * (near_y - y).abs() + habit, rect));
            }
        }
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Rect = Rect { left: 70, top: 0, right: 360, bottom: 300 };

    fn named(points: &[((i32, i32), &str)]) -> Vec<Point> {
        let point =
            |(at, name): &((i32, i32), &str)| Point { at: *at, name: (*name).to_owned(), bold: false, within: BOUNDS };
        points.iter().map(point).collect()
    }

    #[test]
    fn a_name_alone_stands_to_the_right() {
        let places = place(&named(&[((100, 100), "stock")]), 12, 5);
        assert_eq!((places[0].rect.left, places[0].leader), (100 + 5 + GAP, None));
        let edge = place(&named(&[((350, 100), "stock")]), 12, 5);
        assert!(edge[0].rect.right < 350, "there is no room to the right: {edge:?}");
    }

    #[test]
    fn nineteen_names_of_a_crowd_keep_off_each_other_and_off_the_marks() {
        let names =
            ["stock", "eiovar", "freebsd:fixed", "solaris", "macos", "identity", "kmalloc", "magazine", "riommu"];
        let mut crowd = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let index = index as i32;
            crowd.push(((300 + 6 * index, 280), *name));
            crowd.push(((110 + 5 * index, 40 + 3 * index), *name));
        }
        crowd.push(((70, 20), "none, static"));
        let points = named(&crowd);
        let places = place(&points, 12, 5);
        assert_eq!(places.len(), 19);
        for (index, one) in places.iter().enumerate() {
            assert!(one.rect.within(BOUNDS), "{one:?}");
            for other in &places[index + 1..] {
                assert!(!one.rect.overlaps(other.rect), "{one:?} and {other:?}");
            }
            for point in &points {
                assert!(!one.rect.overlaps(Rect::around(point.at, 5)), "{one:?} covers {:?}", point.at);
            }
        }
    }

    #[test]
    fn names_of_one_point_keep_off_each_other() {
        let names = ["eiovar", "eiovar:k=512", "magazine", "magazine:queue=global", "kmalloc", "eiovar:k=64"];
        let points = named(&names.map(|name| ((200, 250), name)));
        let places = place(&points, 12, 5);
        for (index, one) in places.iter().enumerate() {
            assert!(one.rect.within(BOUNDS) && places[index + 1..].iter().all(|other| !one.rect.overlaps(other.rect)));
        }
    }

    #[test]
    fn a_name_far_from_its_point_is_led_to() {
        let crowd: Vec<_> = (0..12).map(|index| ((200 + index, 150), "fast-and-safe")).collect();
        let places = place(&named(&crowd), 12, 5);
        let led = places.iter().filter(|place| place.leader.is_some()).count();
        assert!(led >= 6, "{led} of 12");
        for (place, (at, _)) in places.iter().zip(&crowd) {
            assert!(place.leader.is_none_or(|[from, _]| from == *at));
        }
    }
}
