//! Figure 4: the latency of a transaction, with one connection per core.

use super::super::class::Class::{C2, R25};
use super::super::lab::{Bar, Lab, NONE, RR};
use super::super::served::ServedRun;
use super::super::{Figure, Made, Make, Point, Reason};
use super::{ATC15, DESIGNS, EIOVAR, R430, made, point, sample, table};

pub(super) const FIGURE_4: Figure = Figure {
    id: "atc15-fig4",
    title: "The latency of a transaction of netperf, with a connection on each of 1 to 16 cores",
    reasons: &[
        Reason::new(
            &["none, 1 core, us"],
            "The time of the client is that of another machine, because none was published for this one.",
        ),
        Reason::new(
            &["EiovaR more than none, 16 cores, us"],
            "Not explained: nothing but the locks makes ours grow with cores. The published latency without protection \
             grows by 12 us as well, and what makes it grow is not known and not modelled.",
        ),
        Reason::new(
            &["the three designs take no longer than none on 16 cores"],
            "Ours without protection takes as long on 16 cores as on one, so the work of the designs shows, at about a \
             microsecond. The published latency without protection grows by 12 us with cores, which hides it.",
        ),
    ],
    make: Make::FromRuns(figure_4),
    ..ATC15
};

const CORES_SHOWN: [u32; 5] = [1, 2, 4, 8, 16];

fn figure_4(lab: &Lab<'_>) -> Made {
    let run = |bar: Bar, cores| ServedRun { cores, ..lab.run(R430, RR, cores, bar) };
    let latency = |bar, cores| sample(lab, [&run(bar, cores)], |[one]| one.latency_us);
    let more = |cores| {
        sample(lab, [&run(EIOVAR, cores), &run(NONE, cores)], |[eiovar, none]| eiovar.latency_us - none.latency_us)
    };
    let none = lab.of(&run(NONE, 16)).latency_us;
    let is_short = DESIGNS.iter().all(|bar| lab.of(&run(*bar, 16)).latency_us <= none);
    let points = vec![
        point(R25, "none, 1 core, us", 29.0, latency(NONE, 1)),
        point(R25, "none, 16 cores, us", 41.0, latency(NONE, 16)),
        point(C2, "EiovaR more than none, 1 core, us", 1.2, more(1)),
        point(C2, "EiovaR more than none, 16 cores, us", 10.0, more(16)),
        Point::shape("the three designs take no longer than none on 16 cores", is_short).into(),
    ];
    let bars = [NONE, EIOVAR, DESIGNS[0], DESIGNS[1], DESIGNS[2]];
    let grid = table("microseconds", "cores", CORES_SHOWN, &bars, |bar, cores| latency(bar, cores).ours);
    made(lab, points, vec![grid])
}
