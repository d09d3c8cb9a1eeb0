// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The ports above a device isolate it from others (ACS): no request bypasses the IOMMU, and none carries an id from
 * elsewhere. The ids of neighbors remain: see pc_can_use_id_of.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pm_runtime.h>

#include "acs.h"
#include "portcullis.h"

static bool unisolated;
module_param(unisolated, bool, 0444);
MODULE_PARM_DESC(unisolated, "protect devices that others can reach without passing the IOMMU, or that can use the ids of others");

static u32 read_config(void *port, u32 at, u32 bytes)
{
	u32 dword;
	u16 word;

	/* What cannot be read is all ones. */
	if (bytes == sizeof(dword)) {
		pci_read_config_dword(port, at, &dword);
		return dword;
	}
	pci_read_config_word(port, at, &word);
	return word;
}

static void write_config(void *port, u32 at, u32 bytes, u32 value)
{
	if (bytes == sizeof(value))
		pci_write_config_dword(port, at, value);
	else
		pci_write_config_word(port, at, value);
}

static struct acs_port acs_of(struct pci_dev *port)
{
	int type = pci_is_pcie(port) ? pci_pcie_type(port) : -1;

	return (struct acs_port) {
		.kind = type == PCI_EXP_TYPE_DOWNSTREAM ? ACS_SWITCH_PORT :
			type == PCI_EXP_TYPE_ROOT_PORT ? ACS_ROOT_PORT : ACS_OTHER,
		.vendor = port->vendor,
		.device = port->device,
		.at = port->acs_cap,
		.read = read_config,
		.write = write_config,
		.data = port,
	};
}

struct pci_dev *pc_open_port(struct pci_dev *pdev)
{
	struct pci_dev *first = NULL;
	struct pci_bus *bus;

	/* Linux does this only if it drives the IOMMU itself. */
	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		if (bus->self) {
			struct acs_port port = acs_of(bus->self);

			if (!acs_isolate(&port))
				first = first ?: bus->self;
		}
	return first;
}

struct pci_dev *pc_keep_ports(struct pci_dev *pdev)
{
	struct pci_dev *first = NULL;
	struct pci_bus *bus;

	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		if (bus->self) {
			struct acs_port port = acs_of(bus->self);
			enum acs_found found = acs_keep(&port);

			if (found == ACS_SET_AGAIN)
				pr_warn_ratelimited("the port %s had ceased to keep %s apart from other devices (ACS), and does so again\n",
						    pci_name(bus->self), pci_name(pdev));
			else if (found == ACS_OPEN)
				first = first ?: bus->self;
		}
	return first;
}

/*
 * A port without power forgets its state, and Linux does not restore this part of it. A root port may sleep while all
 * devices below it do.
 */
void pc_wake_ports(struct pci_dev *pdev)
{
	struct pci_bus *bus;

	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		if (bus->self)
			pm_runtime_get_sync(&bus->self->dev);
}

void pc_let_ports_sleep(struct pci_dev *pdev)
{
	struct pci_bus *bus;

	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		if (bus->self)
			pm_runtime_put(&bus->self->dev);
}

bool pc_accepts_open_ports(void)
{
	return unisolated;
}

bool pc_is_exposed(struct pci_dev *pdev)
{
	struct pci_dev *port = pc_open_port(pdev);

	if (!port || unisolated)
		return false;
	pr_err("%s is not protected: the port %s does not keep it apart from other devices (ACS); unisolated=1 accepts that\n",
	       pci_name(pdev), pci_name(port));
	return true;
}

/*
 * A port compares bus numbers only, so a device can use all ids of the buses below its port. On the first bus no port
 * checks ids. There, the functions of a slot are taken for one device, with their virtual functions; that it uses no
 * other ids is trusted, because it is part of the chipset.
 */
static struct pc_reach usable_by(struct pci_dev *pdev)
{
	struct pci_dev *physical = pci_physfn(pdev);
	u16 slot = PCI_DEVID(physical->bus->number, PCI_DEVFN(PCI_SLOT(physical->devfn), 0));
	struct pc_reach reach = { pci_domain_nr(pdev->bus), slot, slot + 7 };
	struct pci_bus *bus;

	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent) {
		/* A bus of virtual functions has no bridge. */
		if (!bus->self)
			continue;
		reach.first = PCI_DEVID(bus->busn_res.start, 0);
		reach.last = PCI_DEVID(bus->busn_res.end, 0xff);
		if (acs_of(bus->self).kind != ACS_OTHER)
			break;
	}
	return reach;
}

static int is_in(u16 id, void *data)
{
	const struct pc_reach *reach = data;
	int i;

	for (i = 0; i < reach->used_count; i++)
		if (id == reach->used[i])
			return true;
	return id >= reach->first && id <= reach->last;
}

static int add(u16 id, void *data)
{
	struct pc_reach *reach = data;

	if (is_in(id, data))
		return 0;
	if (reach->used_count < ARRAY_SIZE(reach->used)) {
		reach->used[reach->used_count++] = id;
	} else {
		reach->first = min(reach->first, id);
		reach->last = max(reach->last, id);
	}
	return 0;
}

struct pc_reach pc_reach_of(struct pci_dev *pdev)
{
	struct pc_reach reach = { pci_domain_nr(pdev->bus), pc_own_id(pdev), pc_own_id(pdev) };

	if (!unisolated)
		reach = usable_by(pdev);
	pc_for_each_id(pdev, add, &reach);
	return reach;
}

bool pc_is_within(const struct pc_reach *reach, struct pci_dev *other)
{
	return reach->segment == pci_domain_nr(other->bus) &&
	       (pc_for_each_id(other, is_in, (void *)reach) || is_in(pc_own_id(pci_physfn(other)), (void *)reach));
}

bool pc_can_use_id_of(struct pci_dev *pdev, struct pci_dev *other)
{
	struct pc_reach reach = usable_by(pdev);

	return !unisolated && other != pdev && pc_is_within(&reach, other);
}
