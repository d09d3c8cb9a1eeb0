//! Devices are attached to domains and detached from them.

use crate::conformance::driven::{Driven, Space, page};
use crate::conformance::rig::{A, B, C, Hardware};
use crate::conformance::wiring::{Wired, WiredUnit};
use crate::conformance::{Check, Checked, Seen, Stage, Trouble, agree, write_refused};
use portcullis::iommu::AttachError;
use portcullis::mapper::Design;
use portcullis::{Access, DomainId, Iommu, Iova, PAGE_SIZE, Protection, Translation};
use portcullis_designs::{Magazine, Stock, Unprotected};
use portcullis_vtd::spec::faults::FaultReason;

pub(super) const CHECKS: &[Check] = &[
    Check::driven("attach-lets-a-device-in", lets_in),
    Check::driven("attach-lets-no-other-in", nobody_else),
    Check::driven("attach-after-a-fault", after_a_fault),
    Check::driven("attach-under-caching-mode", after_a_fault).on(Hardware::CachingMode),
    Check::driven("attach-to-three-levels", lets_in).on(Hardware::Narrow),
    Check::driven("attach-twice-is-refused", twice),
    Check::driven("attach-to-a-closed-domain-is-refused", to_closed),
    Check::driven("detach-shuts-a-device-out", shuts_out),
    Check::driven("detach-spares-other-devices", spares_others),
    Check::driven("detach-spares-other-domains", spares_other_domains),
    Check::driven("detach-from-another-domain-is-refused", from_another),
    Check::driven("device-changes-its-domain", changes_domain),
    Check::driven("device-changes-to-pass-through-and-back", pass_through_and_back),
    Check::driven("closed-domain-shuts-its-devices-out", closed),
    Check::driven("closed-id-rests", closed_id_rests),
];

/// A domain with one mapped page, and the page's IOVA.
fn one_page<D: Design<Wired, WiredUnit>>(driven: &Driven, index: u64) -> Result<(Space<'_, D>, Iova), Trouble> {
    let space = driven.open::<D>(Protection::Strict)?;
    let iova = space.map(page(index), PAGE_SIZE, Access::DeviceReadsAndWrites)?;
    Ok((space, iova))
}

fn no_context(device: portcullis::SourceId, iova: Iova) -> Seen {
    write_refused(device, iova.as_u64(), FaultReason::ContextNotPresent)
}

fn lets_in(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (space, iova) = one_page::<Magazine>(&driven, 0)?;
    space.domain.attach(A)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a write");
    agree!(space.read(A, iova, page(0))?, Seen::Landed, "a read");
    Ok(())
}

fn nobody_else(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (space, iova) = one_page::<Magazine>(&driven, 0)?;
    space.domain.attach(A)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "the device");
    for other in [B, C] {
        agree!(driven.write(other, iova, page(0))?, no_context(other, iova), "device {:#x}", other.requester());
    }
    Ok(())
}

/// What the unit may have cached about the absent device does not last.
fn after_a_fault(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (space, iova) = one_page::<Magazine>(&driven, 0)?;
    space.domain.attach(B)?;
    agree!(driven.write(A, iova, page(0))?, no_context(A, iova), "before");
    space.domain.attach(A)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "attached");
    Ok(())
}

fn twice(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (one, iova) = one_page::<Magazine>(&driven, 0)?;
    let (other, _) = one_page::<Magazine>(&driven, 1)?;
    one.domain.attach(A)?;
    agree!(one.domain.attach(A), Err(AttachError::Attached(A)), "once more");
    agree!(other.domain.attach(A), Err(AttachError::Attached(A)), "to another domain");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "it is where it was");
    Ok(())
}

/// A domain that passes its devices through.
fn pass_through(driven: &Driven) -> Result<DomainId, Trouble> {
    // SAFETY: the memory of a rig holds no Rust objects.
    Ok(unsafe { driven.unit.open_domain(Translation::PassThrough) }?)
}

fn close(driven: &Driven, id: DomainId) -> Checked {
    // SAFETY: as above.
    Ok(unsafe { driven.unit.close_domain(id) }?)
}

fn to_closed(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let id = pass_through(&driven)?;
    close(&driven, id)?;
    agree!(driven.unit.attach(id, A), Err(AttachError::NoSuchDomain(id)), "attaching");
    let seen = driven.write(A, Iova::new(page(0).as_u64()), page(0))?;
    agree!(seen, write_refused(A, page(0).as_u64(), FaultReason::RootNotPresent), "the device");
    Ok(())
}

fn shuts_out(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (space, iova) = one_page::<Magazine>(&driven, 0)?;
    space.domain.attach(A)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "attached, context and page cached");
    space.domain.detach(A)?;
    agree!(driven.write(A, iova, page(0))?, no_context(A, iova), "detached");
    Ok(())
}

fn spares_others(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (space, iova) = one_page::<Magazine>(&driven, 0)?;
    for device in [A, B, C] {
        space.domain.attach(device)?;
        agree!(driven.write(device, iova, page(0))?, Seen::Landed, "device {:#x}", device.requester());
    }
    space.domain.detach(B)?;
    agree!(driven.write(B, iova, page(0))?, no_context(B, iova), "the device that left");
    for device in [A, C] {
        agree!(driven.write(device, iova, page(0))?, Seen::Landed, "device {:#x}, which stayed", device.requester());
    }
    Ok(())
}

fn spares_other_domains(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (one, here) = one_page::<Magazine>(&driven, 0)?;
    let (other, there) = one_page::<Stock>(&driven, 1)?;
    one.domain.attach(A)?;
    other.domain.attach(C)?;
    agree!(driven.write(A, here, page(0))?, Seen::Landed, "one domain");
    agree!(driven.write(C, there, page(1))?, Seen::Landed, "the other");
    one.domain.detach(A)?;
    agree!(driven.write(A, here, page(0))?, no_context(A, here), "the device that left");
    agree!(driven.write(C, there, page(1))?, Seen::Landed, "the other domain's");
    Ok(())
}

fn from_another(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (one, iova) = one_page::<Magazine>(&driven, 0)?;
    let (other, _) = one_page::<Magazine>(&driven, 1)?;
    one.domain.attach(A)?;
    agree!(other.domain.detach(A), Err(AttachError::NotAttached(A)), "from a domain in which it is not");
    agree!(other.domain.detach(B), Err(AttachError::NotAttached(B)), "a device that is nowhere");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "it is where it was");
    Ok(())
}

/// Both domains use the same IOVAs for different pages.
fn changes_domain(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (one, here) = one_page::<Magazine>(&driven, 0)?;
    let (other, there) = one_page::<Magazine>(&driven, 1)?;
    agree!(here, there, "addresses of two domains that did the same");
    one.domain.attach(A)?;
    agree!(driven.write(A, here, page(0))?, Seen::Landed, "in one domain");
    one.domain.detach(A)?;
    other.domain.attach(A)?;
    agree!(driven.write(A, here, page(1))?, Seen::Landed, "in the other");
    other.domain.detach(A)?;
    one.domain.attach(A)?;
    agree!(driven.write(A, here, page(0))?, Seen::Landed, "in the one again");
    Ok(())
}

fn pass_through_and_back(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (space, iova) = one_page::<Magazine>(&driven, 0)?;
    let open = driven.open::<Unprotected>(Protection::None)?;
    let physical = Iova::new(page(0).as_u64());
    space.domain.attach(A)?;
    let unmapped = || write_refused(A, physical.as_u64(), FaultReason::NoWrite);
    agree!(driven.write(A, physical, page(0))?, unmapped(), "a physical address, behind a table");
    space.domain.detach(A)?;
    open.domain.attach(A)?;
    agree!(driven.write(A, physical, page(0))?, Seen::Landed, "passed through");
    open.domain.detach(A)?;
    space.domain.attach(A)?;
    agree!(driven.write(A, physical, page(0))?, unmapped(), "behind the table again");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "what is mapped");
    Ok(())
}

fn closed(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let id = pass_through(&driven)?;
    let physical = Iova::new(page(0).as_u64());
    for device in [A, C] {
        driven.unit.attach(id, device)?;
        agree!(driven.write(device, physical, page(0))?, Seen::Landed, "device {:#x}", device.requester());
    }
    close(&driven, id)?;
    for device in [A, C] {
        agree!(
            driven.write(device, physical, page(0))?,
            no_context(device, physical),
            "device {:#x}",
            device.requester()
        );
    }
    Ok(())
}

fn closed_id_rests(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let mut seen: Vec<DomainId> = Vec::new();
    for _ in 0..50 {
        let id = pass_through(&driven)?;
        agree!(seen.contains(&id), false, "{id:?} is given out again, though there are others");
        seen.push(id);
        close(&driven, id)?;
    }
    Ok(())
}
