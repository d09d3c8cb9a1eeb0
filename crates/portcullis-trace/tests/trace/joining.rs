//! Device accesses and the mappings behind them. The join must explain a right offset, and must not explain a wrong
//! one.

use super::{BUNDLED, TASK, Text, bundled, read};
use portcullis::table::Rights;
use portcullis::{Access, SourceId};
use portcullis_trace::{AccessLog, JoinError, Joined, Target, Trace, join, join_at};

fn pair(name: &str) -> (Trace, AccessLog) {
    let trace = Trace::read(&bundled(&format!("{name}.trace.xz")), |_| ()).unwrap();
    let log = AccessLog::read(&bundled(&format!("{name}.qemu.xz")), |_| ()).unwrap();
    (trace, log)
}

fn inside(joined: &Joined) -> u64 {
    joined.accesses.len() as u64 + joined.unexplained
}

#[test]
fn every_bundled_pair_is_explained() {
    let expected = [(5, 7370, 32_245), (2, 34, 23_042), (12, 8000, 56_962)];
    for (name, (offset, invalidations, accesses)) in BUNDLED.into_iter().zip(expected) {
        let (trace, log) = pair(name);
        let joined = join(&trace, &log).unwrap();
        assert_eq!((joined.offset, joined.invalidations), (offset, invalidations), "{name}");
        assert_eq!(inside(&joined) + joined.outside, accesses, "{name}");
        assert!(joined.outside * 100 < accesses, "{name}: {} outside", joined.outside);
        assert!(joined.unexplained * 1000 < accesses, "{name}: {} unexplained", joined.unexplained);
        // A good part of the accesses go to mappings of the trace, so "never mapped" does not explain everything.
        let mapped = joined.accesses.iter().filter(|it| matches!(it.target, Target::Mapping { .. })).count() as u64;
        assert!(mapped * 8 > accesses, "{name}: {mapped} of {accesses} to mappings of the trace");
    }
}

#[test]
fn a_wrong_offset_explains_much_less() {
    for name in BUNDLED {
        let (trace, log) = pair(name);
        let right = join(&trace, &log).unwrap();
        // The receive buffers of e1000e stay mapped for so long that an offset by one invalidation makes little
        // difference.
        for by in [-1, 1] {
            let wrong = join_at(&trace, &log, right.offset + by).unwrap();
            assert!(wrong.unexplained > 20 * (right.unexplained + 1), "{name} {by:+}: {}", wrong.unexplained);
        }
        let far = join_at(&trace, &log, right.offset + (trace.invalidations.len() / 2) as i64).unwrap();
        assert!(far.unexplained * 20 > inside(&far), "{name}: {} of {}", far.unexplained, inside(&far));
    }
}

#[test]
fn different_runs_do_not_join() {
    let (receive, receive_log) = pair(BUNDLED[0]);
    let (send, send_log) = pair(BUNDLED[1]);
    let (read, read_log) = pair(BUNDLED[2]);
    for (trace, log) in [
        (&receive, &send_log),
        (&receive, &read_log),
        (&send, &receive_log),
        (&send, &read_log),
        (&read, &send_log),
        (&read, &receive_log),
    ] {
        match join(trace, log) {
            Err(JoinError::Disagree { .. }) => {}
            other => panic!(
                "{}: {:?}",
                trace.name,
                other.map(|it| (it.offset, it.invalidations, it.unexplained, it.accesses.len()))
            ),
        }
    }
}

#[test]
fn an_access_is_placed_while_its_mapping_lives() {
    for name in BUNDLED {
        let (trace, log) = pair(name);
        let joined = join(&trace, &log).unwrap();
        assert!(joined.accesses.is_sorted_by_key(|access| access.after_operation));
        for access in &joined.accesses {
            match access.target {
                Target::Mapping { mapping, page, offset } => {
                    let mapping = trace.mappings[mapping as usize];
                    assert!(access.after_operation > mapping.map_operation);
                    let end = mapping.unmap_operation.map_or(trace.operations.len() as u32, u32::from);
                    assert!(access.after_operation <= end);
                    assert!(page < mapping.pages && offset < 4096);
                    assert!(mapping.access.rights().allows(access.rights));
                }
                Target::Persistent { index, offset } => {
                    assert!(joined.persistent[index as usize].rights.allows(access.rights) && offset < 4096);
                }
            }
        }
    }
}

const DEVICE: &str = "0000:00:04.0";

/// A page is mapped at 0x10000, used, unmapped, and mapped again elsewhere, between three invalidations.
fn small() -> (Text, String) {
    let mut text = Text::default();
    let flush = "qi_submit: iotlb_inv dmar0: 0x400f2 0x10040 0x0 0x0";
    text.unmap(TASK, 0x70000, 0x1000).event(TASK, flush);
    text.map(TASK, 0x10000, 0x81000, 0x1000).dma_map(TASK, DEVICE, "FROM_DEVICE", 0x10000, 4096);
    text.unmap(TASK, 0x10000, 0x1000).event(TASK, "qi_submit: iotlb_inv dmar0: 0x400f2 0x10041 0x0 0x0");
    text.map(TASK, 0x10000, 0x92000, 0x1000).dma_map(TASK, DEVICE, "TO_DEVICE", 0x10000, 4096);
    let log = "\
vtd_inv_desc invalidate desc type iotlb high 0x0 low 0xd2
vtd_iotlb_page_update IOTLB page update sid 0x20 iova 0x70008 slpte 0x5003 domain 0x4
vtd_inv_desc invalidate desc type iotlb high 0x10040 low 0x400f2
vtd_inv_desc invalidate desc type wait high 0x10040 low 0x25
vtd_iotlb_page_update IOTLB page update sid 0x20 iova 0xfffff004 slpte 0x6001 domain 0x4
vtd_iotlb_page_update IOTLB page update sid 0x20 iova 0x10010 slpte 0x81003 domain 0x4
vtd_iotlb_page_hit IOTLB page hit sid 0x20 iova 0xfffff008 slpte 0x6002 domain 0x4
vtd_inv_desc invalidate desc type iotlb high 0x10041 low 0x400f2
vtd_iotlb_page_update IOTLB page update sid 0x20 iova 0x10020 slpte 0x92003 domain 0x4
";
    (text, log.to_owned())
}

fn logged(text: &str) -> AccessLog {
    AccessLog::read_from("log", text.as_bytes(), |_| ()).unwrap()
}

#[test]
fn every_kind_of_access_finds_its_place() {
    let (text, log) = small();
    let joined = join(&text.read(), &logged(&log)).unwrap();
    assert_eq!((joined.offset, joined.unexplained, joined.outside), (1, 0, 0));
    let found: Vec<_> = joined.accesses.iter().map(|it| (it.after_operation, it.target, it.rights)).collect();
    let (read, write) = (Rights::READ, Rights::WRITE);
    assert_eq!(
        found,
        [
            // The page was mapped before the capture, and is not yet unmapped.
            (0, Target::Persistent { index: 0, offset: 8 }, Rights::READ_WRITE),
            (0, Target::Persistent { index: 1, offset: 4 }, read),
            // The entry allows both, and the mapping allows the device to write.
            (1, Target::Mapping { mapping: 0, page: 0, offset: 0x10 }, write),
            (1, Target::Persistent { index: 1, offset: 8 }, write),
            (3, Target::Mapping { mapping: 1, page: 0, offset: 0x20 }, read),
        ]
    );
    assert_eq!(joined.persistent[0].device, SourceId::new(0, 4, 0));
    assert_eq!((joined.persistent[1].iova_pfn, joined.persistent[1].phys.pfn()), (0xfffff, 6));
    assert_eq!(joined.persistent[1].rights, Rights::READ_WRITE);
}

#[test]
fn what_cannot_be_is_unexplained() {
    let (text, log) = small();
    let trace = text.read();
    assert_eq!(trace.mappings[0].access, Access::DeviceWrites);
    for (was, is) in [
        // A page after its unmap, another physical page, no right in common with the mapping, and a page of another
        // device.
        ("iova 0x10020 slpte 0x92003", "iova 0x70020 slpte 0x5003"),
        ("slpte 0x92003", "slpte 0x81003"),
        ("slpte 0x92003", "slpte 0x92002"),
        ("slpte 0x6001", "slpte 0x6000"),
    ] {
        assert!(log.contains(was));
        let joined = join(&trace, &logged(&log.replace(was, is))).unwrap();
        assert_eq!((joined.offset, joined.unexplained), (1, 1), "{was} → {is}");
    }
}

#[test]
fn a_log_may_start_later_or_stop_earlier_or_go_on() {
    let (text, log) = small();
    let trace = text.read();
    let late = &log[log.find("vtd_inv_desc invalidate desc type iotlb high 0x10041").unwrap()..];
    let joined = join(&trace, &logged(late)).unwrap();
    assert_eq!((joined.offset, joined.invalidations, joined.unexplained), (-1, 1, 0));
    let early = &log[..log.find("vtd_inv_desc invalidate desc type wait").unwrap()];
    let joined = join(&trace, &logged(early)).unwrap();
    assert_eq!((joined.offset, joined.invalidations, joined.unexplained), (1, 1, 0));
    let after = "vtd_inv_desc invalidate desc type iotlb high 0x99040 low 0x400f2\n\
                 vtd_iotlb_page_hit IOTLB page hit sid 0x20 iova 0x10020 slpte 0x77003 domain 0x4\n";
    let joined = join(&trace, &logged(&(log + after))).unwrap();
    assert_eq!((joined.offset, joined.unexplained, joined.outside), (1, 0, 1));
}

#[test]
fn what_cannot_be_joined_says_why() {
    let (text, log) = small();
    let trace = text.read();
    let silent: String =
        text.text.lines().filter(|line| !line.contains("qi_submit")).map(|line| format!("{line}\n")).collect();
    assert_eq!(join(&read(silent).unwrap(), &logged(&log)).unwrap_err(), JoinError::NoneTraced);
    let accesses = "vtd_iotlb_page_hit IOTLB page hit sid 0x20 iova 0x10020 slpte 0x92003 domain 0x4\n";
    assert_eq!(join(&trace, &logged(accesses)).unwrap_err(), JoinError::NoneLogged);
    let other = log.replace("high 0x1004", "high 0x5004");
    assert_eq!(join(&trace, &logged(&other)).unwrap_err(), JoinError::Disagree { logged: 3, traced: 2 });
    assert_eq!(join_at(&trace, &logged(&log), 99).unwrap_err(), JoinError::Apart(99));
    assert_eq!(join_at(&trace, &logged(&log), i64::MIN).unwrap_err(), JoinError::Apart(i64::MIN));
}
