//! The register interface under abuse: any register, any table, any descriptor, any device, at any time. Afterwards
//! the driver brings the same unit up, and the unit works.

#[path = "../../portcullis-designs/tests/fuzzing/mod.rs"]
mod fuzzing;

use fuzzing::fuzz;
use portcullis::iommu::{DomainId, Invalidation, Iommu, SourceId, Translation};
use portcullis::platform::{Platform, Wait};
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{Clock, Device, DmaError, Host, ModelMmio, Parameters, PsiDrops, Ram, Vtd};
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::spec::registers::*;
use portcullis_vtd::spec::tables::{ContextEntry, RootEntry, TranslationType};
use portcullis_vtd::{BringUpError, TakeOver, Unit, UnitConfig};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::Arc;

/// The number of cases of a run, unless the environment sets it.
const CASES: u64 = 1000;
const BASE: PhysAddr = PhysAddr::new(0x100_0000);
const PAGES: u64 = 256;
/// The pages that are abused. They are few, so that one page is a table, a queue and a buffer at once.
const ABUSED: u64 = 6;
/// Two devices whose context entries are in the same table.
const DEVICES: [SourceId; 2] = [SourceId::from_requester(0), SourceId::from_requester(1)];
/// The longest delay of a posted write, in picoseconds.
const DELAY_PS: u64 = 5_000_000;

/// An action of software, of hardware or of a device.
#[derive(Clone, Debug)]
enum Step {
    Read {
        offset: u32,
        bytes: u8,
    },
    Write {
        offset: u32,
        bytes: u8,
        value: u64,
    },
    /// Writes a word of an abused page. The index counts over all of these pages.
    Poke {
        word: u64,
        value: u64,
    },
    /// Turns the queue on in this page, with this tail.
    Queue {
        page: u64,
        tail: u64,
    },
    /// Turns translation on with the root table in this page.
    Translate {
        page: u64,
    },
    /// Sets translation up as a driver does. From this page on there are a root table, a context table with this
    /// device in it, and its second-level table, whose contents are whatever is there.
    Own {
        page: u64,
        device: usize,
        domain: u16,
    },
    /// A device moves bytes, or a test asks what it would reach.
    Dma {
        device: usize,
        iova: u64,
        len: usize,
        how: u8,
    },
    Advance {
        ps: u64,
    },
    /// Advances to the time of the next event.
    Next,
    Refuse(bool),
}

fn address(page: u64) -> u64 {
    BASE.as_u64() + page % ABUSED * PAGE_SIZE
}

/// Addresses in abused pages, at the edges of the memory, small ones, and any.
fn addresses() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0..ABUSED, 0..PAGE_SIZE).prop_map(|(page, offset)| address(page) + offset),
        2 => 0..4 * PAGE_SIZE,
        1 => select(vec![0xfee0_0000, BASE.as_u64() - 8, BASE.as_u64() + PAGES * PAGE_SIZE - 8, (1 << 39) - 8]),
        1 => any::<u64>(),
    ]
}

/// Possible values of a word of a table or a queue.
fn words() -> impl Strategy<Value = u64> {
    prop_oneof![
        // An entry of any kind of table; context entries and root entries have their flags in the same place.
        6 => (0..ABUSED, 0..16u64).prop_map(|(page, flags)| address(page) | flags),
        1 => (addresses(), any::<u64>()).prop_map(|(at, bits)| at & !0xfff | bits & 0xfff),
        // The low halves of descriptors, by type, granularity and drains, with a status or a domain above.
        4 => (0..8u64, 0..4u64, 0..16u64, 0..3u64).prop_map(|(kind, granularity, flags, domain)| {
            kind | granularity << 4 | flags << 6 | domain << 16
        }),
        // The high halves of context entries: a width and a domain.
        3 => (0..5u64, 0..3u64).prop_map(|(width, domain)| width | domain << 8),
        2 => addresses(),
        1 => any::<u64>(),
        1 => Just(0),
    ]
}

fn offsets() -> impl Strategy<Value = u32> {
    let named = vec![
        VER, CAP, ECAP, GCMD, GSTS, RTADDR, CCMD, FSTS, FECTL, FEDATA, FEADDR, FEUADDR, PMEN, IQH, IQT, IQA, ICS,
        IECTL, IEDATA, IEADDR, IEUADDR,
    ];
    // The third range contains the fault records.
    prop_oneof![8 => select(named), 1 => any::<u32>(), 2 => 0x200..0x300u32, 1 => 0..BLOCK_BYTES]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![8 => Just(4u8), 8 => Just(8u8), 1 => any::<u8>()];
    let command = prop_oneof![any::<u32>(), Just(global::TRANSLATION | global::QUEUED_INVALIDATION), Just(0)];
    let dma = (0..DEVICES.len(), addresses(), 1..9000usize, any::<u8>());
    let time = prop_oneof![4 => 0..1_000_000u64, 2 => 0..1_000_000_000u64, 1 => 0..1_000_000_000_000_000u64];
    prop_oneof![
        2 => (offsets(), bytes()).prop_map(|(offset, bytes)| Step::Read { offset, bytes }),
        3 => (offsets(), bytes(), words()).prop_map(|(offset, bytes, value)| Step::Write { offset, bytes, value }),
        3 => command.prop_map(|value| Step::Write { offset: GCMD, bytes: 4, value: value.into() }),
        12 => (0..ABUSED * PAGE_SIZE / 8, words()).prop_map(|(word, value)| Step::Poke { word, value }),
        // Most writes go to the first entries of a page.
        20 => (0..ABUSED, 0..8u64, words())
            .prop_map(|(page, slot, value)| Step::Poke { word: page * PAGE_SIZE / 8 + slot, value }),
        4 => (0..ABUSED, prop_oneof![0..512u64, any::<u64>()]).prop_map(|(page, tail)| Step::Queue { page, tail }),
        4 => (0..ABUSED).prop_map(|page| Step::Translate { page }),
        3 => (0..ABUSED, 0..DEVICES.len(), 0..20u16)
            .prop_map(|(page, device, domain)| Step::Own { page, device, domain }),
        12 => dma.prop_map(|(device, iova, len, how)| Step::Dma { device, iova, len, how }),
        6 => time.prop_map(|ps| Step::Advance { ps }),
        3 => Just(Step::Next),
        1 => any::<bool>().prop_map(Step::Refuse),
    ]
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let which = select(vec![Parameters::cascadelake(), Parameters::sandybridge(), Parameters::qemu()]);
    let sizes = (0..5u32, 0..3u32, 0..3u32, 1..4u32, 1..9u16);
    let psi_drops = select(vec![PsiDrops::Exact, PsiDrops::All]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), psi_drops);
    (which, sizes, flags).prop_map(
        |(base, (iotlb, l1, l3, walkers, faults), (selective, drains, hint, rwbf, psi_drops))| Parameters {
            iotlb_entries: iotlb * 4,
            iotlb_ways: 0,
            ptcache_l1_entries: l1,
            ptcache_l3_entries: l3,
            walkers,
            fault_registers: faults,
            page_selective: selective,
            drains,
            honours_hint: hint,
            psi_drops,
            rwbf,
            ..base
        },
    )
}

struct Bench {
    host: Host,
    vtd: Arc<Vtd>,
    devices: [Device; 2],
}

impl Bench {
    fn new(parameters: Parameters) -> Self {
        let host = if parameters.coherent {
            Host::new(Arc::new(Ram::new(BASE, PAGES * PAGE_SIZE)))
        } else {
            Host::non_coherent(BASE, PAGES * PAGE_SIZE)
        };
        // These are firmware's pages, so the driver gets others.
        (0..ABUSED).for_each(|_| assert!(host.ram().allocate().is_ok()));
        let vtd = Arc::new(Vtd::new(parameters, Arc::clone(host.ram())));
        host.add_hardware(Arc::clone(&vtd));
        Self { host, vtd, devices: DEVICES.map(|source| Device::new(source, 512, 4096)) }
    }

    fn perform(&mut self, step: &Step) {
        let (now_ps, ram) = (self.host.now_ps(), self.host.ram());
        let write = |offset, bytes, value| self.vtd.write_register(now_ps, offset, bytes, value);
        match *step {
            Step::Read { offset, bytes } => drop(self.vtd.read_register(now_ps, offset, bytes)),
            Step::Write { offset, bytes, value } => write(offset, bytes, value),
            Step::Poke { word, value } => {
                assert!(ram.write_bytes(PhysAddr::new(BASE.as_u64() + 8 * word), &value.to_le_bytes()));
            }
            Step::Queue { page, tail } => {
                let on = self.vtd.read_register(now_ps, GSTS, 4) & u64::from(global::TRANSLATION);
                write(GCMD, 4, on);
                write(IQT, 8, tail << 4);
                write(IQA, 8, address(page));
                write(GCMD, 4, on | u64::from(global::QUEUED_INVALIDATION));
            }
            Step::Translate { page } => {
                let on = self.vtd.read_register(now_ps, GSTS, 4) & u64::from(global::QUEUED_INVALIDATION);
                write(RTADDR, 8, address(page));
                write(GCMD, 4, on | u64::from(global::ROOT_TABLE | global::TRANSLATION));
            }
            Step::Own { page, device, domain } => {
                let levels = if self.vtd.parameters().four_level { 4 } else { 3 };
                let context_table = PhysAddr::new(address(page + 1));
                let context = ContextEntry {
                    faults_disabled: false,
                    translation_type: TranslationType::Untranslated,
                    table: PhysAddr::new(address(page + 2)),
                    levels,
                    domain: DomainId(domain),
                };
                let root = RootEntry { context_table };
                for (table, slot, words) in [(page, 0, root.encode()), (page + 1, device, context.encode())] {
                    let mut bytes = vec![0; PAGE_SIZE as usize];
                    bytes[slot * 16..slot * 16 + 8].copy_from_slice(&words[0].to_le_bytes());
                    bytes[slot * 16 + 8..slot * 16 + 16].copy_from_slice(&words[1].to_le_bytes());
                    assert!(ram.write_bytes(PhysAddr::new(address(table)), &bytes));
                }
                self.perform(&Step::Translate { page });
            }
            Step::Dma { device, iova, len, how } => self.dma(device, Iova::new(iova), len, how),
            Step::Advance { ps } => self.host.advance_ps(ps),
            Step::Next => {
                if let Some(next_ps) = self.vtd.next_event_ps() {
                    self.host.advance_ps(next_ps.saturating_sub(now_ps));
                }
            }
            Step::Refuse(refuse) => self.vtd.refuse_invalidations(refuse),
        }
    }

    /// It does not matter whether the DMA is refused, only that it ends.
    fn dma(&mut self, device: usize, iova: Iova, len: usize, how: u8) {
        let (now_ps, ram, vtd) = (self.host.now_ps(), self.host.ram(), &*self.vtd);
        let device = &mut self.devices[device];
        let rights = [Rights::READ, Rights::WRITE, Rights::READ_WRITE][usize::from(how) % 3];
        let mut bytes = vec![how; len];
        match how % 7 {
            0 => drop(device.write(vtd, ram, now_ps, iova, &bytes)),
            1 => drop(device.read(vtd, ram, now_ps, iova, &mut bytes)),
            2 => drop(device.post_write(vtd, now_ps, iova, &bytes, u64::from(how) * DELAY_PS / 256)),
            3 => drop(device.access(vtd, now_ps, iova, len as u64, rights)),
            4 => drop(vtd.translate(now_ps, device.source(), iova, rights)),
            5 => {
                let address = 0xfee0_0000 | iova.as_u64() & 0xf_ffff;
                let _ = vtd.interrupt(now_ps, device.source(), address, len as u32);
            }
            _ => {
                let reached = vtd.reaches(now_ps, device.source(), iova, rights);
                let again = vtd.reaches(now_ps, device.source(), iova, rights);
                assert_eq!(reached, again, "a look leaves no trace");
                let _ = vtd.in_tables(now_ps, device.source(), iova);
            }
        }
    }

    /// Runs the driver on the unit as the steps have left it. Either the devices that had translations are carried on
    /// and then released, or the driver refuses to do so and gets a unit that does not translate. Then translations
    /// that were cached before reach nothing, and a page is mapped, written by a device, and unmapped.
    fn works(&self) {
        let (host, vtd, ram) = (&self.host, &self.vtd, self.host.ram());
        let parameters = vtd.parameters();
        let levels = if parameters.four_level { 4 } else { 3 };
        // The driver waits this long for a queue that has stopped.
        let wait_us_max = 1_000;
        let config = UnitConfig { physical_bits: parameters.physical_bits, wait_us_max, ..UnitConfig::default() };
        let before = ram.allocated();
        let take_over = || {
            let mmio = ModelMmio::new(Arc::clone(vtd), host);
            // SAFETY: the unit has no other driver.
            unsafe { Unit::take_over(mmio, host, config, TakeOver::Always, |_| Ok(())) }
        };
        // It is refused for at most two reasons, which are then removed.
        let status = || vtd.read_register(host.now_ps(), GSTS, 4) as u32 & !global::ONE_SHOT;
        let turn_off = |bit: u32| vtd.write_register(host.now_ps(), GCMD, 4, (status() & !bit).into());
        let again = |error| {
            match error {
                BringUpError::RemapsInterrupts => turn_off(global::INTERRUPT_REMAPPING),
                BringUpError::Inheritance(_) => turn_off(global::TRANSLATION),
                other => panic!("{other}"),
            }
            assert_eq!(ram.allocated(), before, "nothing stays behind");
            take_over()
        };
        let unit = take_over().or_else(again).or_else(again).expect("the unit comes up");
        let inherited: Vec<SourceId> = unit.inherited_devices().collect();
        for device in inherited {
            unit.release_inherited(device).expect("it was inherited");
        }
        assert_eq!(unit.inherited_devices().count(), 0);
        let (device, iova) = (&self.devices[0], Iova::new(0x7_f000));
        let write = |data: &[u8]| device.write(vtd, ram, host.now_ps(), iova, data);
        let refused = |data: &[u8]| match write(data) {
            Err(DmaError::Fault(fault)) => fault.reason,
            other => panic!("the device should have been refused: {other:?}"),
        };
        let nothing = [FaultReason::RootNotPresent, FaultReason::ContextNotPresent];
        assert!(nothing.contains(&refused(b"early")), "attached to nothing, it reaches nothing");

        let buffer = ram.allocate().expect("there is room");
        let mut entry = EntryValue::leaf(buffer, Rights::READ_WRITE, false);
        let mut leaf = None;
        for level in 1..=levels {
            let table = ram.allocate().expect("there is room");
            let slot = (iova.as_u64() >> (12 + 9 * (level - 1))) as usize & 511;
            let slot = &ram.frame(table)[slot..=slot];
            slot[0].store(entry);
            host.table_barrier(slot, false);
            leaf.get_or_insert(slot);
            entry = EntryValue::table(table);
        }
        // SAFETY: the tables lead only to the buffer of this test, here and below.
        let domain = unsafe { unit.open_domain(Translation::Tables { root: entry.phys(), levels }) }.expect("a domain");
        unit.attach(domain, device.source()).expect("attached");
        write(b"portcullis").expect("mapped");
        let mut landed = [0; 10];
        ram.read_bytes(buffer, &mut landed).expect("in memory");
        assert_eq!(&landed, b"portcullis");

        let leaf = leaf.expect("a table has a leaf");
        leaf[0].store(EntryValue::ABSENT);
        host.table_barrier(leaf, false);
        let pages = if parameters.page_selective {
            Invalidation::Pages { domain, first: iova, mask: 0, leaf_only: true }
        } else {
            Invalidation::Domain(domain)
        };
        let ticket = unit.submit(&[pages]).expect("room in the queue");
        while !unit.is_done(ticket).expect("the queue works") {
            host.pause(Wait::Invalidation);
        }
        assert_eq!(refused(b"late"), FaultReason::NoWrite);
        unit.faults(&mut |_| {}).expect("it is there");
        // SAFETY: as above.
        unsafe { unit.close_domain(domain) }.expect("closed");
        // SAFETY: as above.
        unsafe { unit.shut_down() }.expect("it stops");
        assert_eq!(ram.allocated() - before, 1 + usize::from(levels), "the driver has given its pages back");
    }
}

#[test]
fn an_abused_unit_comes_up_again() {
    fuzz("registers", CASES, &(parameters(), vec(step(), 1..200)), |(parameters, steps)| {
        let mut bench = Bench::new(parameters);
        steps.iter().for_each(|step| bench.perform(step));
        // The driver's part begins once the devices are quiet, as its documentation requires.
        bench.vtd.refuse_invalidations(false);
        bench.host.advance_ps(DELAY_PS);
        bench.works();
    });
}
