// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The ports above a device isolate it from others (ACS): no request bypasses the IOMMU, and none carries an id from
 * elsewhere. The ids of neighbors remain: see pc_can_use_id_of.
 */
#include <linux/module.h>
#include <linux/pci.h>

#include "portcullis.h"

static bool unisolated;
module_param(unisolated, bool, 0444);
MODULE_PARM_DESC(unisolated, "protect devices that others can reach without passing the IOMMU, or that can use the ids of others");

/*
 * Makes a port send requests upstream and refuse requests that carry an id from elsewhere, as far as it can do so.
 * Linux does this only if it drives the IOMMU itself. Returns the features that are on.
 */
static u16 isolate(struct pci_dev *port)
{
	u16 able, control;

	if (!port->acs_cap)
		return 0;
	pci_read_config_word(port, port->acs_cap + PCI_ACS_CAP, &able);
	pci_read_config_word(port, port->acs_cap + PCI_ACS_CTRL, &control);
	control |= able & (PCI_ACS_SV | PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_UF);
	pci_write_config_word(port, port->acs_cap + PCI_ACS_CTRL, control);
	/* Firmware may have locked it. */
	pci_read_config_word(port, port->acs_cap + PCI_ACS_CTRL, &control);
	return control;
}

/*
 * Devices below a switch reach each other, unless its ports send all requests upstream. Devices below any port may
 * use the ids of others, unless the port checks ids.
 */
static u16 wanted_of(struct pci_dev *port)
{
	switch (pci_pcie_type(port)) {
	case PCI_EXP_TYPE_DOWNSTREAM:
		return PCI_ACS_SV | PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_UF;
	case PCI_EXP_TYPE_ROOT_PORT:
		return PCI_ACS_SV;
	default:
		return 0;
	}
}

struct pci_dev *pc_open_port(struct pci_dev *pdev)
{
	struct pci_dev *first = NULL;
	struct pci_bus *bus;

	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		if (bus->self && wanted_of(bus->self) & ~isolate(bus->self))
			first = first ?: bus->self;
	return first;
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
		if (wanted_of(bus->self))
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
