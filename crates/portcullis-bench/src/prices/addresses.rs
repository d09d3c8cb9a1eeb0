//! Timings of address allocators alone.

use super::sampler::{RING, Subject, all_differ, check};
use crate::BenchError;
use crate::host::Native;
use crate::meter::Meter;
use crate::work::raw::parts::{free, range};
use portcullis::iova::{IovaAllocator, IovaRequest, MagazineAllocator, TreeAllocator};
use portcullis::{Access, IovaRange, Lifetime, MapError, Stream};
use portcullis_designs::fast_and_safe::WindowAllocator;
use std::hint::black_box;

/// Bits of the addresses.
const WIDTH: u8 = 48;
/// Ranges that are taken at a time. They fit into one magazine.
const FEW: usize = 32;
/// How many times a sample takes this number.
const TURNS: usize = 128;
/// The numbers of nodes that a short and a long search pass.
pub(super) const NODES: [usize; 2] = [64, 576];

const fn request(pages: u64) -> IovaRequest {
    IovaRequest { pages, access: Access::DeviceWrites, stream: Stream(None), lifetime: Lifetime::Transient }
}

fn refused(error: MapError) -> BenchError {
    BenchError::Map(error.into())
}

/// Takes as many pages as there are slots.
#[inline(always)]
fn fill<A: IovaAllocator<Native<true>>>(
    allocator: &A,
    platform: &Native<true>,
    slots: &mut [IovaRange],
) -> Result<(), BenchError> {
    let request = black_box(request(1));
    for slot in slots {
        *slot = allocator.allocate(platform, &request).map_err(refused)?;
    }
    Ok(())
}

#[inline(always)]
fn claim<A: IovaAllocator<Native<true>>>(
    allocator: &A,
    platform: &Native<true>,
    range: IovaRange,
) -> Result<(), BenchError> {
    let _ = black_box(allocator.claim(platform, range).map_err(|error| BenchError::Unmap(error.into()))?);
    Ok(())
}

/// Checks that `slots` were filled with different pages, and that `allocator` counts them.
fn check_filled<A: IovaAllocator<Native<true>>>(allocator: &A, slots: &[IovaRange]) -> Result<(), BenchError> {
    check(
        allocator.live() == slots.len() && all_differ(slots.iter().map(|range| range.first_pfn()), slots.len()),
        "addresses taken",
    )
}

fn check_returned<A: IovaAllocator<Native<true>>>(allocator: &A) -> Result<(), BenchError> {
    check(allocator.live() == 0, "addresses given back")
}

fn slots(count: usize) -> Box<[IovaRange]> {
    vec![range(0, 1); count].into()
}

/// Magazines: taking and freeing ranges within one magazine.
pub(super) fn magazines(platform: Native<true>) -> Result<Subject<'static>, BenchError> {
    let allocator = MagazineAllocator::new(&platform, WIDTH, &[]).map_err(|_| BenchError::NoMemory)?;
    let mut slots = slots(FEW);
    let take_sample = move |_, meter: &mut Meter| {
        let mut turns = |count: usize| {
            (0..count).try_for_each(|_| {
                fill(&allocator, &platform, &mut slots)?;
                slots.iter().for_each(|range| free(&allocator, &platform, *range));
                Ok::<(), BenchError>(())
            })
        };
        turns(TURNS / 8)?;
        meter.start();
        turns(TURNS)?;
        meter.stop();
        check(all_differ(slots.iter().map(|range| range.first_pfn()), FEW), "addresses taken")?;
        check_returned(&allocator)
    };
    Ok(Subject { parts: vec![("magazine", (FEW * TURNS) as f64)], take_sample: Box::new(take_sample) })
}

/// The tree of Linux: a ring of pages is taken, then claimed, then claimed and freed, in order.
pub(super) fn tree(platform: Native<true>) -> Result<Subject<'static>, BenchError> {
    let allocator = TreeAllocator::new(&platform, WIDTH, &[]).map_err(|_| BenchError::NoMemory)?;
    let mut slots = slots(RING);
    let take_sample = move |part, meter: &mut Meter| {
        if part == 0 {
            meter.start();
        }
        fill(&allocator, &platform, &mut slots)?;
        if part == 0 {
            meter.stop();
        }
        check_filled(&allocator, &slots)?;
        if part != 0 {
            meter.start();
        }
        if part == 1 {
            for range in &slots {
                claim(&allocator, &platform, *range)?;
            }
            meter.stop();
        }
        for range in &slots {
            if part != 1 {
                claim(&allocator, &platform, *range)?;
            }
            free(&allocator, &platform, *range);
        }
        if part == 2 {
            meter.stop();
        }
        check_returned(&allocator)
    };
    let parts = vec![("tree, taken", RING as f64), ("tree, claimed", RING as f64), ("tree, given back", RING as f64)];
    Ok(Subject { parts, take_sample: Box::new(take_sample) })
}

/// A search past nodes that leave too little room between them.
pub(super) fn searches(platform: Native<true>) -> Result<Subject<'static>, BenchError> {
    let crowd = |nodes: usize| -> Result<_, BenchError> {
        let allocator = TreeAllocator::new(&platform, WIDTH, &[]).map_err(|_| BenchError::NoMemory)?;
        // A page below each node is free, so that no node is skipped.
        let mut all = slots(2 * nodes);
        fill(&allocator, &platform, &mut all)?;
        for range in all.iter().skip(1).step_by(2) {
            claim(&allocator, &platform, *range)?;
            free(&allocator, &platform, *range);
        }
        let lowest = all.iter().map(|range| range.first_pfn()).min().unwrap_or(0);
        Ok((allocator, all[0], lowest))
    };
    let mut crowds = [crowd(NODES[0])?, crowd(NODES[1])?];
    let take_sample = move |part: usize, meter: &mut Meter| {
        const SEARCHES: usize = 16;
        let (allocator, top, lowest) = &mut crowds[part];
        let (first, mut below) = (*top, true);
        meter.start();
        for _ in 0..SEARCHES {
            // The highest page is freed and taken again, so that the next search begins there.
            claim(allocator, &platform, *top)?;
            free(allocator, &platform, *top);
            *top = allocator.allocate(&platform, &request(1)).map_err(refused)?;
            let wide = allocator.allocate(&platform, &request(2)).map_err(refused)?;
            below &= wide.first_pfn() < *lowest;
            claim(allocator, &platform, wide)?;
            free(allocator, &platform, wide);
        }
        meter.stop();
        // The first room for two pages is below all nodes.
        check(below && *top == first, "searches past all nodes")
    };
    let parts = vec![("search, short", 16.0), ("search, long", 16.0)];
    Ok(Subject { parts, take_sample: Box::new(take_sample) })
}

/// Windows: a ring of pages is taken, claimed, and freed.
pub(super) fn windows(platform: Native<true>) -> Result<Subject<'static>, BenchError> {
    let allocator = WindowAllocator::new(&platform, WIDTH, &[], WINDOW_PAGES).map_err(|_| BenchError::NoMemory)?;
    let mut slots = slots(RING);
    let take_sample = move |part, meter: &mut Meter| {
        let timed = |is_timed: bool, meter: &mut Meter, work: &mut dyn FnMut() -> Result<(), BenchError>| {
            if is_timed {
                meter.start();
            }
            work()?;
            if is_timed {
                meter.stop();
            }
            Ok::<(), BenchError>(())
        };
        timed(part == 0, meter, &mut || fill(&allocator, &platform, &mut slots))?;
        check_filled(&allocator, &slots)?;
        timed(part == 1, meter, &mut || slots.iter().try_for_each(|range| claim(&allocator, &platform, *range)))?;
        timed(part == 2, meter, &mut || {
            slots.iter().for_each(|range| free(&allocator, &platform, *range));
            Ok(())
        })?;
        check_returned(&allocator)
    };
    let parts =
        vec![("window, taken", RING as f64), ("window, claimed", RING as f64), ("window, returned", RING as f64)];
    Ok(Subject { parts, take_sample: Box::new(take_sample) })
}

/// Pages of a window, as in the design.
const WINDOW_PAGES: u64 = 64;
