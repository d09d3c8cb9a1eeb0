// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The remapping units: where they are, how they are brought up under live devices, their faults, and how they are
 * taken down.
 */
#include <linux/acpi.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/stop_machine.h>
#include <linux/timer.h>
#include <asm/pci.h>

#include "faults.h"
#include "portcullis.h"

#define SOURCES 65536
#define FAULTS_MS 100

struct pc_unit pc_units[PC_UNITS_MAX];
int pc_unit_count;

/* For each unit of the table, its place in pc_units; negative if it stays off. */
static s8 place_of[PC_UNITS_MAX];

static u8 merge;
module_param(merge, byte, 0444);
MODULE_PARM_DESC(merge, "let one invalidation replace those of so many CPUs or more that submit together, 2 to 64; 0: never (the default)");

static struct acpi_table_header *dmar;

u32 pcs_buses(u16 segment, u16 bridge)
{
	struct pci_dev *pdev = pci_get_domain_bus_and_slot(segment, PCI_BUS_NUM(bridge), bridge & 0xff);
	u32 found = 0;

	if (pdev && pdev->subordinate)
		found = pdev->subordinate->busn_res.start | pdev->subordinate->busn_res.end << 8 | 1 << 16;
	pci_dev_put(pdev);
	return found;
}

/* A virtual function is behind the unit of its physical function. */
static u16 scope_of(struct pci_dev *pdev)
{
	struct pci_dev *physical = pci_physfn(pdev);

	return PCI_DEVID(physical->bus->number, physical->devfn);
}

struct pc_unit *pc_unit_of(struct pci_dev *pdev)
{
	int index;

	/* Devices behind a VMD have a segment that no unit knows. Their requests carry the VMD's id and share its fate. */
	if (is_vmd(pdev->bus) || pci_domain_nr(pdev->bus) > U16_MAX)
		return NULL;
	index = pcr_unit_of(pci_domain_nr(pdev->bus), scope_of(pdev));
	return index < 0 || place_of[index] < 0 ? NULL : &pc_units[place_of[index]];
}

/* ---- chipsets ---- */

int pcs_is_display(u16 segment, u16 source)
{
	struct pci_dev *pdev = pci_get_domain_bus_and_slot(segment, PCI_BUS_NUM(source), source & 0xff);
	int is_display = pdev ? pdev->class >> 16 == PCI_BASE_CLASS_DISPLAY : -ENODEV;

	pci_dev_put(pdev);
	return is_display;
}

/* The functions of a chipset are on a root bus. An external device can claim any id. */
static bool is_of_chipset(struct pci_dev *pdev)
{
	return pci_is_root_bus(pdev->bus) && !pdev->untrusted;
}

static void note_chipset(void)
{
	struct pci_dev *pdev = NULL;

	for_each_pci_dev(pdev)
		if (is_of_chipset(pdev))
			pcr_note_function(pdev->vendor, pdev->device, pdev->class >> 16 == PCI_BASE_CLASS_DISPLAY);
}

/* The register that controls the unit of the sound device (Intel 5520 and X58); all ones if there is none. */
static u32 isochronous_control(void)
{
	struct pci_dev *pdev = pci_get_device(PCI_VENDOR_ID_INTEL, 0x342e, NULL);
	u32 control = U32_MAX;

	if (pdev)
		pci_read_config_dword(pdev, 0x188, &control);
	pci_dev_put(pdev);
	return control;
}

bool pc_is_broken_by_translation(struct pci_dev *pdev)
{
	return is_of_chipset(pdev) &&
	       pcr_must_pass(pdev->vendor, pdev->device, pdev->class >> 16 == PCI_BASE_CLASS_DISPLAY, isochronous_control());
}

/* ---- coming ---- */

static int map_registers(struct pc_unit *unit)
{
	u32 needed;

	unit->registers = ioremap(unit->place.base, unit->place.bytes);
	if (!unit->registers)
		return -ENOMEM;
	/* Fault records may lie beyond what firmware has reported. */
	needed = pcr_register_bytes(unit->registers);
	if (needed <= unit->place.bytes)
		return 0;
	iounmap(unit->registers);
	unit->place.bytes = needed;
	unit->registers = ioremap(unit->place.base, needed);
	return unit->registers ? 0 : -ENOMEM;
}

static const char *use_of(u32 status)
{
	if (status & PC_TRANSLATES)
		return "Linux, or firmware, translates with it";
	if (status & PC_REMAPS)
		return "Linux remaps interrupts with it";
	return "Linux, or firmware, has left its invalidation queue on";
}

static int find(struct pc_unit *unit, u32 index)
{
	const u32 uses = PC_TRANSLATES | PC_QUEUES | PC_REMAPS;
	u32 status;
	int error = pcr_place(index, &unit->place);

	unit->index = index;
	error = error ?: map_registers(unit);
	if (error)
		return error;
	status = readl(unit->registers + PC_STATUS);
	if (status == U32_MAX) {
		pr_err("the unit at %#llx does not answer: its registers read all ones\n", unit->place.base);
		return -ENODEV;
	}
	if (!(status & uses) || ((status & uses) == (PC_QUEUES | PC_REMAPS) && !pc_remap_find(unit)))
		return 0;
	pr_err("the unit at %#llx is in use (status %#x): %s; boot with intel_iommu=off%s%s\n", unit->place.base, status,
	       use_of(status), status & PC_TRANSLATES ? "" : " intremap=off",
	       (status & uses) == (PC_QUEUES | PC_REMAPS) ? " (and nox2apic where firmware has turned x2APIC on)" : "");
	return -EBUSY;
}

static int note(u16 id, void *ids)
{
	__set_bit(id, ids);
	return 0;
}

/* Notes every id of each present function behind the unit, even if its bridge says that it does no DMA. */
static void note_functions(struct pc_unit *unit, unsigned long *ids)
{
	struct pci_dev *pdev = NULL;

	for_each_pci_dev(pdev)
		if (pc_unit_of(pdev) == unit)
			pc_for_each_id(pdev, note, ids);
}

/* Notes the ids of DMA masters that are not PCI devices, as firmware gives them (ANDD). */
static int note_masters(struct pc_unit *unit, unsigned long *ids)
{
	u32 index = 0;
	int id;

	while ((id = pcr_master(unit->index, index++)) >= 0)
		note(id, ids);
	return id == -ENOENT ? 0 : id;
}

static size_t list_of(const unsigned long *ids, u16 *sources)
{
	unsigned int id;
	size_t count = 0;

	for_each_set_bit(id, ids, SOURCES)
		sources[count++] = id;
	return count;
}

static int prepare(struct pc_unit *unit)
{
	u16 *sources = kvmalloc_array(SOURCES, sizeof(*sources), GFP_KERNEL);
	unsigned long *ids = bitmap_zalloc(SOURCES, GFP_KERNEL);
	int error = -ENOMEM;

	unit->faults_by = kzalloc(sizeof(*unit->faults_by), GFP_KERNEL);
	if (sources && ids && unit->faults_by) {
		note_functions(unit, ids);
		error = note_masters(unit, ids);
	}
	if (!error) {
		unit->passed = list_of(ids, sources);
		error = pcr_prepare(unit->registers, unit->place.bytes, unit->place.physical_bits, merge, unit->remapper, sources,
				    unit->passed, &unit->rust);
	}
	bitmap_free(ids);
	kvfree(sources);
	return error;
}

/* ---- changing hands, while the machine is stopped ---- */

static void leave(struct pc_unit *unit)
{
	int queue = pcr_foreign_queue(unit->rust);

	if (queue > 0)
		pc_remap_left(unit);
	else if (queue < 0 && unit->remapper)
		pr_err("Linux may not have its queue of the unit at %#llx back; then a CPU that changes an interrupt hangs: reboot\n",
		       unit->place.base);
}

struct taking {
	int count;
	u64 ns;
};

static int take_all(void *data)
{
	struct pcr_unit *units[PC_UNITS_MAX];
	struct taking *taking = data;
	u64 begun_ns = ktime_get_ns();
	size_t failed = 0;
	int error, index;

	for (index = 0; index < taking->count; index++)
		units[index] = pc_units[index].rust;
	error = pcr_switch_all(units, taking->count, &failed);
	for (index = 0; index < taking->count; index++)
		if (error)
			leave(&pc_units[index]);
		else
			pc_remap_taken(&pc_units[index]);
	if (error)
		pr_err("the unit at %#llx could not be taken; those before it were given back\n", pc_units[failed].place.base);
	taking->ns = ktime_get_ns() - begun_ns;
	return error;
}

static int leave_all(void *data)
{
	int index;

	for (index = 0; index < pc_unit_count; index++) {
		if (pcr_hand_back(pc_units[index].rust))
			pr_err("the unit at %#llx does not stop\n", pc_units[index].place.base);
		leave(&pc_units[index]);
	}
	return 0;
}

static int halt_all(void *data)
{
	bool *opens_gate = data;
	int index;

	for (index = 0; index < pc_unit_count; index++) {
		struct pc_unit *unit = &pc_units[index];

		if ((*opens_gate ? pcr_open_gate(unit->rust) : pcr_halt(unit->rust)) && *opens_gate)
			pr_err("the unit at %#llx still translates: the next kernel may find devices shut out\n",
			       unit->place.base);
		/* If Linux does not have its queue back, what it submits fails. */
		if (pcr_foreign_queue(unit->rust) > 0)
			pc_remap_left(unit);
	}
	return 0;
}

/* ---- faults ---- */

/* Faults are polled, because they are rare and no interrupt is set up. */
static void poll_faults(struct timer_list *timer);
static DEFINE_TIMER(fault_timer, poll_faults);

static void poll_faults(struct timer_list *timer)
{
	int index;

	for (index = 0; index < pc_unit_count; index++) {
		struct pc_unit *unit = &pc_units[index];
		int polled = unit->is_gone ? 0 : pcr_faults(unit->rust, unit);

		if (polled > 0)
			atomic64_inc(&unit->faults_lost);
		if (polled < 0) {
			unit->is_gone = true;
			pr_err("the unit at %#llx does not answer any more: its registers read all ones\n", unit->place.base);
		}
	}
	mod_timer(timer, jiffies + msecs_to_jiffies(FAULTS_MS));
}

/* Called from the timer. */
void pcs_fault(void *context, u16 source, u64 page, bool is_write, u32 reason, int interrupt)
{
	struct pc_unit *unit = context;

	atomic64_inc(&unit->faults);
	if (!faults_note(unit->faults_by, source, ktime_get_ns() / NSEC_PER_MSEC))
		return;
	if (interrupt >= 0)
		pr_warn("fault: %04x:%02x:%02x.%u interrupt %d refused, reason %#x\n", unit->place.segment, PCI_BUS_NUM(source),
			PCI_SLOT(source), PCI_FUNC(source), interrupt, reason);
	else
		pr_warn("fault: %04x:%02x:%02x.%u %s %#llx refused, reason %u\n", unit->place.segment, PCI_BUS_NUM(source),
			PCI_SLOT(source), PCI_FUNC(source), is_write ? "write to" : "read of", page, reason);
}

static void report(struct pc_unit *unit)
{
	struct pcr_unit_use use;

	pcr_unit_use(unit->rust, &use);
	pr_info("unit at %#llx up%s: %zu ids of devices pass through, cap %#llx ecap %#llx\n", unit->place.base,
		unit->remapper ? ", beside Linux's interrupt remapping" : "", unit->passed, use.capability,
		use.extended_capability);
}

int pc_units_up(void)
{
	struct taking taking = {};
	int error, count, index, found = 0;

	if (ACPI_FAILURE(acpi_get_table(ACPI_SIG_DMAR, 0, &dmar))) {
		pr_err("this machine has no DMAR table: there is no VT-d, or firmware has it turned off\n");
		return -ENODEV;
	}
	count = pcr_table(dmar, dmar->length, PAGE_OFFSET, pc_flush_instruction());
	if (count <= 0 || count > PC_UNITS_MAX) {
		error = count < 0 ? count : -ENODEV;
		if (count >= 0)
			pr_err("the DMAR table has %d units, and 1 to %d are supported\n", count, PC_UNITS_MAX);
		goto out;
	}
	note_chipset();
	/* All units are checked before the first is changed. */
	for (index = 0; index < count; index++) {
		place_of[index] = pcr_stays_off(index) ? -1 : found;
		if (place_of[index] < 0) {
			pr_warn("a unit stays off: this chipset's graphics do not work behind it, and are not protected\n");
			continue;
		}
		error = find(&pc_units[found++], index);
		if (error)
			goto out;
	}
	for (index = 0; index < found; index++) {
		error = prepare(&pc_units[index]);
		if (error)
			goto out;
	}
	taking.count = found;
	error = stop_machine(take_all, &taking, NULL);
	if (error)
		goto out;
	pc_unit_count = found;
	pr_info("the units were taken in %llu us, while all CPUs stood\n", taking.ns / NSEC_PER_USEC);
	for (index = 0; index < found; index++)
		report(&pc_units[index]);
	mod_timer(&fault_timer, jiffies + msecs_to_jiffies(FAULTS_MS));
	return 0;
out:
	pc_units_down();
	return error;
}

void pc_units_down(void)
{
	int index;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	timer_shutdown_sync(&fault_timer);
#else
	del_timer_sync(&fault_timer);
#endif
	if (pc_unit_count)
		stop_machine(leave_all, NULL, NULL);
	pc_unit_count = 0;
	pc_remap_stop();
	for (index = 0; index < PC_UNITS_MAX; index++) {
		struct pc_unit *unit = &pc_units[index];

		if (unit->rust)
			pcr_drop(unit->rust);
		kfree(unit->faults_by);
		if (unit->registers)
			iounmap(unit->registers);
		memset(unit, 0, sizeof(*unit));
	}
	acpi_put_table(dmar);
}

void pc_units_halt(bool opens_gate)
{
	stop_machine(halt_all, &opens_gate, NULL);
}
