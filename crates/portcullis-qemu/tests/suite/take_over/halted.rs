//! A drive works while its unit is halted and resumed.

use super::*;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 5;
const PAGES: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_drive_works_on_over_a_halt() {
    // 16 reads take a fifth of a second.
    let setup = machine(Accelerator::Stopped, "x-iops-read=100");
    let machine = QemuMachine::start(setup).unwrap_or_else(|error| panic!("{error}"));
    let (memory, host) = (machine.memory(), machine.host());
    let unit: Vtd = Arc::new(Unit::bring_up(VtdMmio(machine.clone()), host.clone(), UnitConfig::default()).unwrap());
    let domain = Magazine::open(unit.clone(), host, Protection::Strict).unwrap();
    domain.attach(NVME).unwrap();
    let mut nvme = Nvme::start(&machine.function(NVME), &domain).unwrap();
    let (mut while_halted, mut afterwards) = (0, 0);
    write_pages(&mut nvme, memory, PAGES);
    for round in 0..ROUNDS {
        let begun = begin_reads(&mut nvme, memory, PAGES);
        let in_flight = || begun.iter().filter(|(_, at)| is_untouched(memory, *at)).count();
        // Also writes of other pages, which are not slowed down. Their contents are checked when they are read back.
        let other = |page: u64| PAGES + round * 2 + page;
        for number in [other(0), other(1)] {
            let data = page(memory);
            data.write(PAGE_SIZE, &content(number));
            nvme.submit(Operation::Write, number * BLOCKS_PER_PAGE, data).unwrap();
        }
        nvme.ring();
        unit.halt().unwrap();
        let at_halt = in_flight();
        let since = Instant::now();
        while at_halt > 0 && in_flight() == at_halt {
            assert!(since.elapsed() < PATIENCE, "round {round}: nothing lands while the unit is halted");
        }
        let at_resume = in_flight();
        while_halted += at_halt - at_resume;
        unit.resume().unwrap();
        afterwards += in_flight();
        let status = reap(&mut nvme, begun.len() + 2);
        assert!(status.values().all(|status| *status == 0), "round {round}: {status:?}");
        for (number, (_, at)) in (0..).zip(&begun) {
            is(memory, *at, &content(number), "in flight over a halt").unwrap();
        }
        assert_eq!(faults(&unit), [], "round {round}: nothing is refused");

        // The drive continues: commands are mapped and unmapped, and unmapped memory is out of reach.
        let data = page(memory);
        let at = data.lent().phys;
        let command = nvme.submit(Operation::Read, other(1) * BLOCKS_PER_PAGE, data).unwrap();
        let iova = nvme.iova(command).expect("it was just submitted");
        nvme.ring();
        assert_eq!(reap(&mut nvme, 1)[&command], 0);
        is(memory, at, &content(other(1)), "written over a halt").unwrap();
        memory.fill(at, PAGE_SIZE as usize, UNTOUCHED);
        nvme.submit_mapped(Operation::Read, 0, iova, PAGE_SIZE).unwrap();
        nvme.ring();
        reap(&mut nvme, 1);
        let refused: Vec<_> = faults(&unit).iter().map(|fault| (fault.source, fault.page)).collect();
        assert_eq!(refused, [(NVME, iova)], "round {round}: what was unmapped");
        assert!(is_untouched(memory, at), "round {round}: S2");
    }
    assert!(while_halted > 0 && afterwards > 0, "{while_halted} reads landed while halted, {afterwards} afterwards");
    assert!(nvme.stop().unwrap().is_empty(), "none was in flight");
}
