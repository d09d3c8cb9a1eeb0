// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The ids that requests of a device carry, and which of them pass through. Each device has its own id. But a bridge
 * to conventional PCI puts one id on the requests of all devices behind it, and some devices use the ids of their
 * neighbors. A hostile device uses every id that the port above it lets through.
 *
 * A device is closed while it is protected or shut out. A device passes through while it is not closed, and no closed
 * device shares an id with it or can use its id.
 */
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "portcullis.h"

struct closed {
	struct pci_dev *pdev;
	struct list_head list;
};

static LIST_HEAD(all_closed);
static DEFINE_MUTEX(ids_lock);

u16 pc_own_id(struct pci_dev *pdev)
{
	return PCI_DEVID(pdev->bus->number, pdev->devfn);
}

/*
 * The id that a bridge to conventional PCI puts on requests from behind it. Negative for other bridges, which do not
 * change ids.
 */
static int id_behind(struct pci_dev *bridge)
{
	bool is_pcie = pci_is_pcie(bridge);
	int type = is_pcie ? pci_pcie_type(bridge) : 0;

	if (is_pcie && type != PCI_EXP_TYPE_PCI_BRIDGE && type != PCI_EXP_TYPE_PCIE_BRIDGE)
		return -1;
	if (is_pcie ? type == PCI_EXP_TYPE_PCI_BRIDGE : bridge->dev_flags & PCI_DEV_FLAG_PCIE_BRIDGE_ALIAS)
		return PCI_DEVID(bridge->subordinate->number, 0);
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
		if (bus->self && id_behind(bus->self) >= 0)
			error = error ?: found(id_behind(bus->self), data);
	return error;
}

static int is_same(u16 id, void *other)
{
	return id == *(u16 *)other;
}

static bool uses(struct pci_dev *pdev, int segment, u16 id)
{
	return pci_domain_nr(pdev->bus) == segment && pc_for_each_id(pdev, is_same, &id);
}

/* Another present device that uses an id; null if there is none. The caller must drop the reference to it. */
static struct pci_dev *other_user(struct pci_dev *pdev, u16 id)
{
	struct pci_dev *other = NULL;

	for_each_pci_dev(other)
		if (other != pdev && uses(other, pci_domain_nr(pdev->bus), id))
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
		if (bus->self && id_behind(bus->self) >= 0) {
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

/* ---- open and closed ---- */

static struct closed *find_closed(struct pci_dev *pdev)
{
	struct closed *closed;

	list_for_each_entry(closed, &all_closed, list)
		if (closed->pdev == pdev)
			return closed;
	return NULL;
}

bool pc_is_closed(struct pci_dev *pdev)
{
	bool is_closed;

	mutex_lock(&ids_lock);
	is_closed = find_closed(pdev);
	mutex_unlock(&ids_lock);
	return is_closed;
}

static void take_off(struct pci_dev *pdev)
{
	struct closed *closed = find_closed(pdev);

	if (!closed)
		return;
	list_del(&closed->list);
	kfree(closed);
}

static int is_used_by(u16 id, void *other)
{
	return uses(other, pci_domain_nr(((struct pci_dev *)other)->bus), id);
}

/* Why a device does not pass through while another is closed. Null if it does. */
static const char *tie(struct pci_dev *closed, struct pci_dev *pdev)
{
	if (closed == pdev || pci_domain_nr(closed->bus) != pci_domain_nr(pdev->bus))
		return NULL;
	if (pc_for_each_id(pdev, is_used_by, closed))
		return "they share an id";
	return pc_can_use_id_of(closed, pdev) ? "the latter can use its id" : NULL;
}

/* The device that another one is cut off with, and why. Null if it passes through, or is closed itself. */
static struct pci_dev *cut_off_with(struct pci_dev *pdev, const char **why)
{
	struct closed *closed;

	if (find_closed(pdev))
		return NULL;
	list_for_each_entry(closed, &all_closed, list) {
		*why = tie(closed->pdev, pdev);
		if (*why)
			return closed->pdev;
	}
	return NULL;
}

bool pc_has_open_neighbor(struct pci_dev *pdev)
{
	struct pci_dev *other = NULL;
	const char *why;

	mutex_lock(&ids_lock);
	for_each_pci_dev(other)
		if (other->dev.driver && other->hdr_type == PCI_HEADER_TYPE_NORMAL && pc_can_use_id_of(pdev, other) &&
		    !find_closed(other) && !cut_off_with(other, &why))
			break;
	mutex_unlock(&ids_lock);
	if (!other)
		return false;
	pr_err("%s is not protected: it can use the id of %s, which is bound to %s and passes through; unbind both and name both, or unisolated=1 accepts that\n",
	       pci_name(pdev), pci_name(other), other->dev.driver ? other->dev.driver->name : "a driver");
	pci_dev_put(other);
	return true;
}

static int open_id(u16 id, void *unit)
{
	int error = pcr_pass_through(((struct pc_unit *)unit)->rust, id, true);

	/* It is open already. */
	return error == -EBUSY ? 0 : error;
}

static int close_id(u16 id, void *unit)
{
	int error = pcr_pass_through(((struct pc_unit *)unit)->rust, id, false);

	/* It is closed already. */
	return error == -EINVAL ? 0 : error;
}

/* Opens a device that is not closed, unless another keeps it cut off. */
static bool open_untied(struct pci_dev *pdev)
{
	struct pc_unit *unit = pc_unit_of(pdev);
	struct pci_dev *other;
	const char *why;
	int error;

	if (!unit)
		return true;
	other = cut_off_with(pdev, &why);
	if (other) {
		pr_warn("%s stays cut off with %s, which is protected or shut out: %s\n", pci_name(pdev),
			pci_name(other), why);
		return false;
	}
	error = pc_for_each_id(pdev, open_id, unit);
	if (error)
		pr_err("%s stays shut out: error %d\n", pci_name(pdev), error);
	return !error;
}

static void open_tied(struct pci_dev *pdev)
{
	struct pci_dev *other = NULL;

	for_each_pci_dev(other)
		if (tie(pdev, other) && !find_closed(other))
			open_untied(other);
}

/* The bridges above a device share its id, or do no DMA of their own, so nothing is said of bridges. */
static int close_tied(struct pci_dev *pdev)
{
	struct pci_dev *other = NULL;
	int error = 0;

	for_each_pci_dev(other) {
		struct pc_unit *unit = pc_unit_of(other);
		const char *why = tie(pdev, other);

		if (!why || !unit || find_closed(other))
			continue;
		error = error ?: pc_for_each_id(other, close_id, unit);
		if (other->hdr_type == PCI_HEADER_TYPE_NORMAL)
			pr_warn("%s is cut off with %s: %s\n", pci_name(other), pci_name(pdev), why);
	}
	return error;
}

bool pc_open(struct pci_dev *pdev)
{
	bool is_open;

	mutex_lock(&ids_lock);
	if (find_closed(pdev)) {
		take_off(pdev);
		is_open = open_untied(pdev);
		open_tied(pdev);
	} else {
		is_open = open_untied(pdev);
	}
	mutex_unlock(&ids_lock);
	return is_open;
}

int pc_close(struct pci_dev *pdev)
{
	struct closed *closed = kzalloc(sizeof(*closed), GFP_KERNEL);
	struct pc_unit *unit = pc_unit_of(pdev);
	int error = 0;

	if (!closed || !unit) {
		kfree(closed);
		return unit ? -ENOMEM : -ENODEV;
	}
	mutex_lock(&ids_lock);
	if (find_closed(pdev)) {
		kfree(closed);
	} else {
		closed->pdev = pdev;
		list_add(&closed->list, &all_closed);
		error = pc_for_each_id(pdev, close_id, unit) ?: close_tied(pdev);
		if (error)
			take_off(pdev);
	}
	mutex_unlock(&ids_lock);
	return error;
}

/* The device was removed. Its id is closed, unless another device uses that id. */
void pc_forget(struct pci_dev *pdev)
{
	struct pc_unit *unit = pc_unit_of(pdev);
	struct pci_dev *other;

	if (!unit)
		return;
	mutex_lock(&ids_lock);
	if (find_closed(pdev)) {
		take_off(pdev);
		open_tied(pdev);
	}
	other = other_user(pdev, pc_own_id(pdev));
	if (!other)
		pcr_pass_through(unit->rust, pc_own_id(pdev), false);
	pci_dev_put(other);
	mutex_unlock(&ids_lock);
}

/* The units are off, so no id is closed. */
void pc_ids_stop(void)
{
	struct closed *closed, *next;

	list_for_each_entry_safe(closed, next, &all_closed, list)
		kfree(closed);
}
