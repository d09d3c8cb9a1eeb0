//! Flaws of the VT-d driver: how a unit comes up, is halted and resumes; devices that are moved meanwhile; and
//! waits.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "resume-leaves-what-was-in-flight",
        rule: "S11",
        file: "crates/portcullis-vtd/src/queue/recovery.rs",
        find: r"            self.drop_waits(ring, hardware, ring.tail, QueueError::Halted);
",
        replace: r"",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::halts::a_unit_comes_back_with_all_that_it_had",
    },
    Mutant {
        name: "resume-does-not-flush",
        rule: "S2",
        file: "crates/portcullis-vtd/src/unit.rs",
        find: r"        self.invalidate(&[InvalidationDescriptor::ContextCache(ContextScope::Global), self.iotlb(IotlbScope::Global)])?;
        Ok(())",
        replace: r"        Ok(())",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::halts::a_unit_comes_back_with_all_that_it_had",
    },
    Mutant {
        name: "halt-lets-submissions-in",
        rule: "S7",
        file: "crates/portcullis-vtd/src/unit.rs",
        find: r"        self.queue.close();
        halt_queue(&self.hardware)",
        replace: r"        halt_queue(&self.hardware)",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::halts::a_unit_comes_back_with_all_that_it_had",
    },
    Mutant {
        name: "admission-comes-after-the-root",
        rule: "S1",
        file: "crates/portcullis-vtd/src/unit.rs",
        find: r"        let admitted = admit(&unit).map_err(BringUpError::from);
        if let Err(error) = admitted.and_then(|()| Ok(halt_queue(&unit.hardware)?)) {
            unit.release(&Stopped::never_told());
            return Err(error);
        }
",
        replace: r"        halt_queue(&unit.hardware)?;
        unit.show()?;
        admit(&unit)?;
",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::halts::devices_are_admitted_before_translation",
    },
    Mutant {
        name: "device-is-taken-while-it-is-moved",
        rule: "S1",
        file: "crates/portcullis-vtd/src/attachments.rs",
        find: r"_ if attached.is_busy => Some(AttachError::Busy(device)),",
        replace: r"_ if false => Some(AttachError::Busy(device)),",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::halts::a_device_that_is_being_moved_is_left_alone",
    },
    Mutant {
        name: "device-joins-a-domain-that-is-being-closed",
        rule: "S10",
        file: "crates/portcullis-vtd/src/attachments.rs",
        find: r"let Some(Standing::Open(translation)) = self.domains.get(domain).copied() else {
            return Err(AttachError::NoSuchDomain(domain).into());",
        replace: r"let Some(Standing::Open(translation) | Standing::Closing(translation)) = self.domains.get(domain).copied() else {
            return Err(AttachError::NoSuchDomain(domain).into());",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::halts::a_domain_that_is_being_closed_is_left_alone",
    },
    Mutant {
        name: "close-does-not-look-for-devices-that-are-moved",
        rule: "S10",
        file: "crates/portcullis-vtd/src/attachments.rs",
        find: r"of_domain().find(|(_, attached)| attached.is_busy)",
        replace: r"of_domain().find(|_| false)",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::halts::a_device_that_is_being_moved_is_left_alone",
    },
    Mutant {
        name: "halt-goes-by-a-status-that-is-behind",
        rule: "S1",
        file: "crates/portcullis-vtd/src/hardware.rs",
        find: r"self.read32(GSTS) & !global::ONE_SHOT | translation",
        replace: r"self.read32(GSTS) & !global::ONE_SHOT | translation & 0",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::halts::a_halt_in_the_middle_of_a_resume_holds",
    },
    Mutant {
        name: "halt-during-a-resume-is-undone",
        rule: "S7",
        file: "crates/portcullis-vtd/src/unit.rs",
        find: r"if self.is_halted.load(Ordering::SeqCst) {",
        replace: r"if false {",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::halts::a_halt_in_the_middle_of_a_resume_holds",
    },
    Mutant {
        name: "take-over-cuts-devices-off",
        rule: "S1",
        file: "crates/portcullis-vtd/src/unit.rs",
        find: r"        if status & global::TRANSLATION != 0
            && let Err(error)",
        replace: r"        if status == 0
            && let Err(error)",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::inherits::devices_go_on_until_they_are_released",
    },
    Mutant {
        name: "inherited-id-is-handed-out",
        rule: "S1",
        file: "crates/portcullis-vtd/src/attachments.rs",
        find: r"ids.find(|id| !self.domains.contains(*id))",
        replace: r"ids.find(|id| self.domains.get(*id).is_none_or(|standing| *standing == Standing::Inherited))",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::inherits::ids_of_the_previous_owner_are_never_used",
    },
    Mutant {
        name: "release-of-an-inherited-device-does-not-flush",
        rule: "S2",
        file: "crates/portcullis-vtd/src/inherit.rs",
        find: r"        self.end_detach(is_shown, domain, device)",
        replace: r"        self.end_detach(is_shown && false, domain, device)",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::inherits::devices_go_on_until_they_are_released",
    },
    Mutant {
        name: "list-of-devices-grows-under-its-lock",
        rule: "S12",
        file: "crates/portcullis-vtd/src/sorted.rs",
        find: r"                return Err(Short);",
        replace: r"                if room.obtain().is_err() {
                    return Err(Short);
                }",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::memory::every_allocation_can_be_refused",
    },
    Mutant {
        name: "attach-loses-the-page-that-it-did-not-need",
        rule: "S4",
        file: "crates/portcullis-vtd/src/attachments.rs",
        find: r"    spares.release(walker.platform());
    result",
        replace: r"    result",
        package: "portcullis-vtd",
        target: "lib",
        test: "tests::memory::what_another_call_has_brought_meanwhile_goes_back",
    },
    Mutant {
        name: "unmap-waits-within-its-walk",
        rule: "S4",
        file: "crates/portcullis/src/chunk/mapper.rs",
        find: r"Err(pending) => {
                        *left = Some(Unspent { pending, mark: cleared.mark() });
                        return None;
                    }",
        replace: r#"Err(pending) => space.invalidate_pending(pending, &[command]).expect("an answer"),"#,
        package: "portcullis",
        target: "suite",
        test: "waits::nothing_is_held_while_hardware_is_waited_for",
    },
    Mutant {
        name: "page-unmap-spends-whatever-became-of-it",
        rule: "S11",
        file: "crates/portcullis/src/chunk/general_unmaps.rs",
        find: "let proof = space.invalidate_pending(pending, &[space.covering(range, true)]).map_err(CommitError)?;",
        replace: r"let proof = match space.invalidate_pending(pending, &[space.covering(range, true)]) {
            Ok(proof) => proof,
            Err(error) => {
                mark.spend(unsafe { self.chunks().entries(range.first_pfn()) }, &Proof::never_visible());
                return Err(CommitError(error).into());
            }
        };",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::pages_of_a_chunk_stay_quarantined",
    },
    Mutant {
        name: "unmap-spends-whatever-became-of-it",
        rule: "S11",
        file: "crates/portcullis/src/chunk/general_unmaps.rs",
        find: "let proof = space.invalidate_pending(pending, &[space.covering(range, true)]).map_err(CommitError)?;",
        replace: r"let proof = match space.invalidate_pending(pending, &[space.covering(range, true)]) {
            Ok(proof) => proof,
            Err(error) => {
                if range.pages() > 1 {
                    mark.spend(unsafe { self.chunks().entries(range.first_pfn()) }, &Proof::never_visible());
                }
                return Err(CommitError(error).into());
            }
        };",
        package: "portcullis",
        target: "suite",
        test: "s11_failed_invalidations::a_failed_unmap_gives_nothing_back",
    },
];
