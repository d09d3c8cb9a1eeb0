//! Tables whose design counts the entries of each page, as FreeBSD does: a page goes with its last entry.

use super::{Bench, COUNTED, COUNTED_WHOLE, Format, GIB, MIB2, Run};
use portcullis::platform::fake::FakeHost;
use portcullis::table::{FreedTables, Rights};
use portcullis::{MapError, NoMemory};

/// A map that finds no memory, or an existing mapping at the very end, leaves no trace: no entry, no count, no table
/// page.
#[test]
fn a_refused_map_leaves_a_counted_table_as_it_was() {
    // Five leaf tables below a boundary of a GiB and their directory, and four pages in the existing leaf table above
    // it.
    let (there, new) =
        (Run::new(2 * GIB + 7, 1, 3, Rights::READ), Run::new(2 * GIB - 5 * MIB2, 5 * MIB2 + 4, 1, Rights::READ));
    let in_the_way = Run::new(2 * GIB + 3, 1, 9, Rights::READ);
    let run = |in_way: Option<Run>, frames: usize, expected: Result<(), MapError>| {
        let host = FakeHost::default();
        let format = Format { levels: 3, leaf_2m: true, leaf_1g: true, coherent: false, rule: COUNTED };
        let mut bench = Bench::new(&host, format);
        [Some(there), in_way].into_iter().flatten().for_each(|run| bench.map(run, 0).unwrap());
        bench.edges.extend(new.range.first_pfn()..new.range.end_pfn());
        let (pages, lent) = (bench.table.pages(), host.frames_lent());
        host.limit_frames(frames);
        // SAFETY: the run is mapped at most once, in this table's host.
        let mapped = unsafe { bench.write(new, &new.segments(0), false) };
        assert_eq!(mapped, expected, "{frames} pages of memory");
        if mapped.is_ok() {
            bench.live.push(new);
        } else {
            assert_eq!((bench.table.pages(), host.frames_lent()), (pages, lent), "{frames} pages of memory");
        }
        bench.compare().unwrap();
        bench.compare_counts().unwrap();
    };
    for frames in 0..6 {
        run(None, frames, Err(MapError::NoMemory(NoMemory)));
    }
    run(None, 6, Ok(()));
    run(Some(in_the_way), 6, Err(MapError::Overlap(in_the_way.range.start())));
}

#[test]
fn a_counted_table_page_goes_with_its_last_entry() {
    for (rule, coherent) in [(COUNTED, true), (COUNTED, false), (COUNTED_WHOLE, true), (COUNTED_WHOLE, false)] {
        let host = FakeHost::default();
        let format = Format { levels: 4, leaf_2m: true, leaf_1g: false, coherent, rule };
        let mut bench = Bench::new(&host, format);
        let unmap = |bench: &mut Bench<'_>, run: Run| {
            let mut freed = FreedTables::new();
            // SAFETY: the run is mapped, and no other caller unmaps it.
            let any = unsafe { bench.erase(run.range, &mut freed) };
            bench.live.retain(|live| *live != run);
            bench.compare().unwrap();
            bench.compare_counts().unwrap();
            assert_eq!(any, freed.pages() > 0);
            freed.pages()
        };
        // A leaf table that is full to the last entry, a page in the next one, a large leaf behind them, and a page far
        // away.
        let full: Vec<Run> = (0..MIB2).map(|page| Run::new(GIB + page, 1, 77, Rights::WRITE)).collect();
        let next = Run::new(GIB + MIB2, 1, 78, Rights::WRITE);
        let large = Run::new(GIB + 2 * MIB2, MIB2, MIB2, Rights::WRITE);
        let far = Run::new(600 * GIB, 1, 79, Rights::READ);
        full.iter().chain([&next, &large, &far]).for_each(|run| bench.map(*run, 0).unwrap());
        bench.compare_counts().unwrap();
        assert_eq!(bench.table.pages(), 1 + 2 + 2 + 3);
        for run in &full[1..] {
            assert_eq!(unmap(&mut bench, *run), 0, "page {} is still mapped", GIB);
        }
        assert_eq!(unmap(&mut bench, full[0]), 1, "the leaf table");
        assert_eq!(unmap(&mut bench, large), 0, "its directory still has the other leaf table");
        assert_eq!(unmap(&mut bench, next), 3, "the second leaf table, and both directories");
        assert_eq!(unmap(&mut bench, far), 3);
        assert_eq!(bench.table.pages(), 1, "the root stays");
    }
}
