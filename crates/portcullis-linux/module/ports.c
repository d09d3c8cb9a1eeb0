// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The ports above a device isolate it from others (ACS): no request bypasses the IOMMU, and none carries the id of
 * another device.
 */
#include <linux/module.h>
#include <linux/pci.h>

#include "portcullis.h"

static bool unisolated;
module_param(unisolated, bool, 0644);
MODULE_PARM_DESC(unisolated, "protect devices that others can reach without passing the IOMMU");

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

/* The first port above a device that does not isolate it; null if there is none. */
static struct pci_dev *open_port(struct pci_dev *pdev)
{
	struct pci_bus *bus;

	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		if (bus->self && wanted_of(bus->self) & ~isolate(bus->self))
			return bus->self;
	return NULL;
}

bool pc_is_exposed(struct pci_dev *pdev)
{
	struct pci_dev *port = open_port(pdev);

	if (!port || unisolated)
		return false;
	pr_err("%s is not protected: the port %s does not keep it apart from other devices (ACS); unisolated=1 accepts that\n",
	       pci_name(pdev), pci_name(port));
	return true;
}
