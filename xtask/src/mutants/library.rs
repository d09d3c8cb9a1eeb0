//! Flaws of the protection layer.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "page-read-only-becomes-writable",
        rule: "S5",
        file: "crates/portcullis/src/chunk/page_states.rs",
        find: "let flags = rights.bits() + Idle::of(first.load_bits()).0;",
        replace: "let flags = (rights.bits() | Rights::WRITE.bits()) + Idle::of(first.load_bits()).0;",
        package: "portcullis",
        target: "suite",
        test: "single_pages::no_map_gives_wider_rights",
    },
    Mutant {
        name: "page-memory-is-not-checked",
        rule: "S1",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: "&& space.is_plain(request)",
        replace: "&& !self.chunks().is_none()",
        package: "portcullis",
        target: "suite",
        test: "single_pages::memory_that_the_iommu_cannot_address_is_refused",
    },
    Mutant {
        name: "poison-leaves-plain-maps",
        rule: "S11",
        file: "crates/portcullis/src/space.rs",
        find: r"self.poisoned.store(true, Ordering::Relaxed);
        self.end_plain_maps();",
        replace: "self.poisoned.store(true, Ordering::Relaxed);",
        package: "portcullis",
        target: "suite",
        test: "single_pages::a_poisoned_domain_maps_no_page",
    },
    Mutant {
        name: "plain-maps-where-absent-entries-are-cached",
        rule: "S1",
        file: "crates/portcullis/src/space.rs",
        find: "if capabilities.caches_absent { 0 } else { 1 << capabilities.physical_bits.min(52) }",
        replace: "1 << capabilities.physical_bits.min(52)",
        package: "portcullis",
        target: "suite",
        test: "single_pages::a_map_is_invalidated_where_absent_entries_are_cached",
    },
    Mutant {
        name: "plain-maps-one-bit-too-wide",
        rule: "S1",
        file: "crates/portcullis/src/space.rs",
        find: "1 << capabilities.physical_bits.min(52)",
        replace: "1 << (capabilities.physical_bits + 1).min(53)",
        package: "portcullis",
        target: "suite",
        test: "single_pages::memory_that_the_iommu_cannot_address_is_refused",
    },
    Mutant {
        name: "a-page-holds-a-byte-more",
        rule: "S1",
        file: "crates/portcullis/src/address.rs",
        find: "len.wrapping_sub(1) <= offset ^ (PAGE_SIZE - 1)",
        replace: "len.wrapping_sub(2) <= offset ^ (PAGE_SIZE - 1)",
        package: "portcullis",
        target: "suite",
        test: "single_pages::a_buffer_ends_where_its_last_byte_lies",
    },
    Mutant {
        name: "page-unmap-spends-whatever-became-of-it",
        rule: "S11",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: "Err(error) => return Some(Err(CommitError(error))),",
        replace: r"Err(error) => {
                cleared.spend(&Proof::never_visible());
                return Some(Err(CommitError(error)));
            }",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::pages_of_a_chunk_stay_quarantined",
    },
    Mutant {
        name: "unmap-spends-whatever-became-of-it",
        rule: "S11",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: "Err(error) => return Some(Err(CommitError(error))),",
        replace: r"Err(error) if ONE => return Some(Err(CommitError(error))),
            Err(error) => {
                cleared.spend(&Proof::never_visible());
                return Some(Err(CommitError(error)));
            }",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::a_failed_unmap_gives_nothing_back",
    },
    Mutant {
        name: "page-is-spent-before-its-invalidation",
        rule: "S3",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: r"            platform.probe(Step::Enter(Phase::Invalidate));
            let proof = match space.invalidate_shared(&[command]) {",
        replace: r"        cleared.spend(&Proof::never_visible());
        let proof = match space.invalidate_shared(&[command]) {",
        package: "portcullis",
        target: "loom",
        test: "spending::a_page_is_handed_out_after_its_invalidation",
    },
    Mutant {
        name: "page-is-spent-unordered",
        rule: "S3",
        file: "crates/portcullis/src/entry.rs",
        find: "self.0.store(bits, Ordering::Release);",
        replace: "self.0.store(bits, Ordering::Relaxed);",
        package: "portcullis",
        target: "loom",
        test: "spending::a_page_is_handed_out_after_its_invalidation",
    },
    Mutant {
        name: "spent-is-read-unordered",
        rule: "S3",
        file: "crates/portcullis/src/entry.rs",
        find: r"pub fn load_bits(&self) -> u64 {
        self.0.load(Ordering::Acquire)",
        replace: r"pub fn load_bits(&self) -> u64 {
        self.0.load(Ordering::Relaxed)",
        package: "portcullis",
        target: "loom",
        test: "spending::a_page_is_handed_out_after_its_invalidation",
    },
    Mutant {
        name: "failed-map-stays-in-its-chunk",
        rule: "S11",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: "let _ = page_states::clear(space.platform(), entries, range);",
        replace: "let _ = entries;",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::a_failed_map_is_taken_back",
    },
    Mutant {
        name: "failed-map-stays-shared",
        rule: "S11",
        file: "crates/portcullis/src/design/identity.rs",
        find: "let _ = self.unshare(run.range);",
        replace: "",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::a_failed_map_is_taken_back",
    },
    Mutant {
        name: "failed-map-stays",
        rule: "S11",
        file: "crates/portcullis/src/design/assembled.rs",
        find: "let _ = self.take_down(range, &mut Revocation::new());",
        replace: "",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::a_failed_map_is_taken_back",
    },
    Mutant {
        name: "tables-leave-though-their-invalidation-failed",
        rule: "S4",
        file: "crates/portcullis/src/chunk/reclaim.rs",
        find: "space.invalidate(&commands)?;",
        replace: "space.invalidate(&commands).unwrap_or_else(|_| Proof::never_visible());",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::tables_whose_invalidation_failed_stay",
    },
    Mutant {
        name: "failed-commit-frees-table-pages",
        rule: "S4",
        file: "crates/portcullis/src/invalidation/strict.rs",
        find: "let proof = invalidated.inspect_err(|_| revocation.revoked.clear())?;",
        replace: r"let proof = match invalidated {
        Ok(proof) => proof,
        Err(error) => {
            revocation.revoked.clear();
            space.release(tables, &Proof::never_visible());
            return Err(error.into());
        }
    };",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::a_failed_unmap_gives_nothing_back",
    },
    Mutant {
        name: "failed-commit-frees-addresses",
        rule: "S3",
        file: "crates/portcullis/src/invalidation/strict.rs",
        find: "let proof = invalidated.inspect_err(|_| revocation.revoked.clear())?;",
        replace: r"let proof = match invalidated {
        Ok(proof) => proof,
        Err(error) => {
            for revoked in revocation.revoked.drain(..) {
                allocator.free(platform, revoked.range, &Proof::never_visible());
            }
            return Err(error.into());
        }
    };",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::a_failed_unmap_gives_nothing_back",
    },
    Mutant {
        name: "domain-drop-loses-leaving-tables",
        rule: "S10",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: "self.reclaim.close(&self.base);",
        replace: "",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::a_domain_that_goes_while_tables_leave_loses_none",
    },
    Mutant {
        name: "batched-unmap-schedules-no-sweep",
        rule: "S7",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: "        self.schedule_sweep_if_none();\n",
        replace: "",
        package: "portcullis",
        target: "suite",
        test: "chunks::s4_tables_leave::tables_go_after_batched_unmaps",
    },
    Mutant {
        name: "sweeps-end-without-one-more",
        rule: "S7",
        file: "crates/portcullis/src/chunk/reclaim.rs",
        find: r"            self.leave_sweep_to_unmaps();
            chunks.sweep_due.set_if_none(platform, TABLE_IDLE_US);",
        replace: "            self.leave_sweep_to_unmaps();",
        package: "portcullis",
        target: "suite",
        test: "chunks::s4_tables_leave::tables_go_that_are_unmapped_during_the_last_sweep",
    },
    Mutant {
        name: "batched-unmap-is-no-walk",
        rule: "S4",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: "let cleared = platform.walk(|| page_states::clear(platform, entries(), range).is_some());",
        replace: "let cleared = page_states::clear(platform, entries(), range).is_some();",
        package: "portcullis",
        target: "suite",
        test: "chunks::s4_tables_leave::an_unmap_that_comes_too_late_keeps_the_table_that_it_walks",
    },
    Mutant {
        name: "segment-is-one-page",
        rule: "-",
        file: "crates/portcullis/src/domain/mapping.rs",
        find: "segments[..index].iter().map(Segment::pages).sum();",
        replace: "segments[..index].len() as u64;",
        package: "portcullis",
        target: "suite",
        test: "ownership::segments_of_several_pages_lie_behind_one_another",
    },
    Mutant {
        name: "page-is-not-made-visible",
        rule: "S1",
        file: "crates/portcullis/src/chunk/page_states.rs",
        find: r"first.store_bits(first_leaf + ((entries.len() as u64) << MAPPED_SHIFT));
    platform.table_barrier(entries);",
        replace: "first.store_bits(first_leaf + ((entries.len() as u64) << MAPPED_SHIFT));",
        package: "portcullis",
        target: "suite",
        test: "single_pages::walkers_that_do_not_snoop_see_every_map_and_unmap",
    },
    Mutant {
        name: "cleared-page-is-not-made-visible",
        rule: "S2",
        file: "crates/portcullis/src/chunk/page_states.rs",
        find: r"store_others(entries, Idle::of(bits).next().0, 0);
    platform.table_barrier(entries);",
        replace: "store_others(entries, Idle::of(bits).next().0, 0);",
        package: "portcullis",
        target: "suite",
        test: "single_pages::walkers_that_do_not_snoop_see_every_map_and_unmap",
    },
    Mutant {
        name: "leaving-table-is-not-made-visible",
        rule: "S4",
        file: "crates/portcullis/src/table/leaf_pages.rs",
        find: r"entry.store(EntryValue::ABSENT);
        platform.table_barrier(core::slice::from_ref(entry));",
        replace: "entry.store(EntryValue::ABSENT);",
        package: "portcullis",
        target: "suite",
        test: "chunks::s4_tables_leave::walkers_that_do_not_snoop_see_tables_leave_and_come",
    },
    Mutant {
        name: "full-queue-releases-tables-before-its-flush",
        rule: "S4",
        file: "crates/portcullis/src/invalidation/per_cpu_queues.rs",
        find: "served.proof(queue.tables_begun)",
        replace: "served.proof(queue.tables_begun.saturating_sub(1))",
        package: "portcullis",
        target: "suite",
        test: "s4_flush_queues::table_pages_go_with_their_flush_and_not_before",
    },
    Mutant {
        name: "straggler-in-the-first-unit-is-idle",
        rule: "S4",
        file: "crates/portcullis/src/chunk/table_log.rs",
        find: r"if record.spent() == ALL {
                self.idle.push_back(number);",
        replace: r"if record.spent() | 1 == ALL {
                self.idle.push_back(number);",
        package: "portcullis",
        target: "suite",
        test: "chunks::s4_tables_leave::a_straggler_keeps_its_table",
    },
    Mutant {
        name: "reserved-across-the-fourth-region",
        rule: "S9",
        file: "crates/portcullis/src/design/identity.rs",
        find: "reserved.retain(|(_, end)| *end > 1 << shift);",
        replace: "reserved.retain(|(first, _)| *first >= 1 << shift);",
        package: "portcullis",
        target: "suite",
        test: "identity::a_range_reserved_across_the_end_of_the_fourth_region",
    },
    Mutant {
        name: "fourth-region-is-never-trimmed",
        rule: "S7",
        file: "crates/portcullis/src/design/identity.rs",
        find: "self.magazines.tick(platform);",
        replace: "let _ = platform;",
        package: "portcullis",
        target: "suite",
        test: "identity::the_fourth_region_gives_back_what_it_keeps",
    },
    Mutant {
        name: "the-fake-forgets-neighbours",
        rule: "",
        file: "crates/portcullis/src/iommu/fake/cached.rs",
        find: "if pages.contains(&(first + at as u64)) {",
        replace: "if true {",
        package: "portcullis",
        target: "lib",
        test: "iommu::fake::cached::tests::only_the_named_pages_are_forgotten",
    },
    Mutant {
        name: "a-panic-is-forgotten",
        rule: "S6",
        file: "crates/portcullis/src/space.rs",
        find: r"                self.0.panicked.store(true, Ordering::Relaxed);
",
        replace: r"",
        package: "portcullis",
        target: "suite",
        test: "panics::a_panic_at_any_hook_loses_no_buffer_to_the_device",
    },
    Mutant {
        name: "a-panic-frees-what-is-mapped",
        rule: "S1",
        file: "crates/portcullis/src/domain/mapping.rs",
        find: r"        count_lost(1);
",
        replace: r"        // SAFETY: none.
        unsafe { ManuallyDrop::drop(&mut self.0) };
",
        package: "portcullis",
        target: "suite",
        test: "panics::a_panic_at_any_hook_loses_no_buffer_to_the_device",
    },
];
