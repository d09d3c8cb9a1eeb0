// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The ids that requests of a device carry. Each device has its own id. But a bridge to conventional PCI puts one id on
 * the requests of all devices behind it, and some devices use the ids of their neighbors. A hostile device uses every
 * id that the port above it lets through: see ports.c.
 */
#include <linux/module.h>
#include <linux/pci.h>

#include "portcullis.h"

u16 pc_own_id(struct pci_dev *pdev)
{
	return PCI_DEVID(pdev->bus->number, pdev->devfn);
}

/*
 * The id that a bridge to conventional PCI puts on requests from the bus behind it. Negative for other bridges, which
 * do not change ids. A bridge that is being removed has lost its `subordinate`.
 */
static int id_behind(struct pci_bus *bus)
{
	struct pci_dev *bridge = bus->self;
	bool is_pcie = pci_is_pcie(bridge);
	int type = is_pcie ? pci_pcie_type(bridge) : 0;

	if (is_pcie && type != PCI_EXP_TYPE_PCI_BRIDGE && type != PCI_EXP_TYPE_PCIE_BRIDGE)
		return -1;
	if (is_pcie ? type == PCI_EXP_TYPE_PCI_BRIDGE : bridge->dev_flags & PCI_DEV_FLAG_PCIE_BRIDGE_ALIAS)
		return PCI_DEVID(bus->number, 0);
	return pc_own_id(bridge);
}

/* Does what pci_for_each_dma_alias does, which modules cannot call. Ends at the first error. */
int pc_for_each_id(struct pci_dev *pdev, int (*found)(u16 id, void *data), void *data)
{
	int error = found(pc_own_id(pdev), data);
	struct pci_bus *bus;
	unsigned int devfn;

	if (pdev->dma_alias_mask)
		for_each_set_bit(devfn, pdev->dma_alias_mask, 256)
			error = error ?: found(PCI_DEVID(pdev->bus->number, devfn), data);
	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		/* A bus of virtual functions has no bridge. */
		if (bus->self && id_behind(bus) >= 0)
			error = error ?: found(id_behind(bus), data);
	return error;
}

static int is_same(u16 id, void *other)
{
	return id == *(u16 *)other;
}

bool pc_uses_id(struct pci_dev *pdev, int segment, u16 id)
{
	return pci_domain_nr(pdev->bus) == segment && pc_for_each_id(pdev, is_same, &id);
}

/* Another present device that uses an id; null if there is none. The caller must drop the reference to it. */
static struct pci_dev *other_user(struct pci_dev *pdev, u16 id)
{
	struct pci_dev *other = NULL;

	for_each_pci_dev(other)
		if (other != pdev && pc_uses_id(other, pci_domain_nr(pdev->bus), id))
			break;
	return other;
}

/* An id has one domain, and a domain has one device. */
bool pc_shares_id(struct pci_dev *pdev)
{
	struct pci_dev *other;
	struct pci_bus *bus;

	if (pdev->dma_alias_mask) {
		pr_err("%s is not protected: it uses the ids of other functions too\n", pci_name(pdev));
		return true;
	}
	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		if (bus->self && id_behind(bus) >= 0) {
			pr_err("%s is not protected: behind the bridge %s to conventional PCI all devices have one id; put it into a slot of PCI Express, or take it off the list\n",
			       pci_name(pdev), pci_name(bus->self));
			return true;
		}
	other = other_user(pdev, pc_own_id(pdev));
	if (!other)
		return false;
	pr_err("%s is not protected: %s uses its id too\n", pci_name(pdev), pci_name(other));
	pci_dev_put(other);
	return true;
}
