//! Flaws of the runs that unmaps are merged into, in a batch and while they wait for a flush.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "batch-is-not-made-visible",
        rule: "S2",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: r"allocator.chunks.make_visible(space.walker(), run);
        platform.probe(Step::Enter(Phase::Invalidate));",
        replace: "platform.probe(Step::Enter(Phase::Invalidate));",
        package: "portcullis",
        target: "suite",
        test: "planted::s2_a_host_that_does_not_flush_what_is_cleared",
    },
    Mutant {
        name: "batch-is-made-visible-in-part",
        rule: "S2",
        file: "crates/portcullis/src/chunk/page_states.rs",
        find: r"    if entries.iter().any(|entry| entry.load_bits() & CLEARED != 0) {
        walker.show(entries);",
        replace: r"    if entries.iter().any(|entry| entry.load_bits() & CLEARED != 0) {
        walker.show(&entries[..1]);",
        package: "portcullis",
        target: "suite",
        test: "planted::s2_a_host_that_does_not_flush_what_is_cleared",
    },
    Mutant {
        name: "run-is-spent-in-part",
        rule: "S13",
        file: "crates/portcullis/src/chunk/page_states.rs",
        find: "at += ((bits >> GONE_SHIFT) & MAPPING_PAGES_MAX) as usize - 1;",
        replace: "at += ((bits >> GONE_SHIFT) & MAPPING_PAGES_MAX) as usize;",
        package: "portcullis",
        target: "suite",
        test: "properties::every_design_keeps_the_rules_and_breaks_those_it_declares",
    },
    Mutant {
        name: "run-is-cut-short",
        rule: "S2",
        file: "crates/portcullis/src/invalidation/strict.rs",
        find: "end.min((first | (self.within_pages - 1)) + 1)",
        replace: "end.min(first + 1)",
        package: "portcullis",
        target: "lib",
        test: "invalidation::strict::tests::several_mappings_are_cut_where_a_command_ends",
    },
    Mutant {
        name: "flush-leaves-the-run-open",
        rule: "S2",
        file: "crates/portcullis/src/invalidation/per_cpu_queues.rs",
        find: r"queue.close_all(cpu);
                queue.waiting.iter()",
        replace: "queue.waiting.iter()",
        package: "portcullis",
        target: "loom",
        test: "chunks::a_deadline_beside_a_late_unmap",
    },
    Mutant {
        name: "unmap-joins-a-run-that-was-closed",
        rule: "S2",
        file: "crates/portcullis/src/invalidation/open_run.rs",
        find: "self.0.compare_exchange(word, joined, Ordering::Release, Ordering::Relaxed).is_ok()",
        replace: r"self.0.store(joined, Ordering::Release);
        true",
        package: "portcullis",
        target: "loom",
        test: "chunks::a_deadline_beside_a_late_unmap",
    },
    Mutant {
        name: "unmap-joins-unordered",
        rule: "S2",
        file: "crates/portcullis/src/invalidation/open_run.rs",
        find: "self.0.compare_exchange(word, joined, Ordering::Release, Ordering::Relaxed).is_ok()",
        replace: "self.0.compare_exchange(word, joined, Ordering::Relaxed, Ordering::Relaxed).is_ok()",
        package: "portcullis",
        target: "loom",
        test: "chunks::a_deadline_beside_a_late_unmap",
    },
    Mutant {
        name: "late-flush-serves-what-it-closes",
        rule: "S3",
        file: "crates/portcullis/src/invalidation/per_cpu_queues.rs",
        find: "let begun = self.open_begun[which];",
        replace: "let begun = 0;",
        package: "portcullis",
        target: "lib",
        test: "invalidation::per_cpu_queues::tests::a_run_waits_for_flushes_that_began_after_it",
    },
    Mutant {
        name: "kept-run-counts-as-one",
        rule: "S7",
        file: "crates/portcullis/src/invalidation/revocation.rs",
        find: "let taken = run.unmaps.max(next - from);",
        replace: "let (taken, run) = (next - from, Revoked { unmaps: next - from, ..run });",
        package: "portcullis",
        target: "suite",
        test: "s4_flush_queues::a_batch_with_a_placed_mapping_counts_its_unmaps",
    },
];
