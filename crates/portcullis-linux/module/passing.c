// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Which devices pass through. A device is
 *
 *   open      as its policy wants it; at first every device is;
 *   shut      without a driver that uses it: its ids do not pass through, except those that an open device uses too;
 *   closed    while it is protected, and without a driver while it is named: neither its ids nor any others that it can
 *             use pass through.
 *
 * So an open device is cut off while a closed one shares an id with it, or can use its id. A device that is removed
 * while it is closed may still be at work. It counts as closed until it is found again, or is not listed any more. If
 * it is not named, it counts until no device is left within its reach.
 *
 * Bridges are none of this. They do no DMA of their own, and an id that they put on the requests of others passes while
 * one of these is open. A hostile device may call itself a bridge.
 */
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "portcullis.h"

enum state { OPEN, SHUT, CLOSED };

struct known {
	struct list_head list;
	enum state state;
	bool is_at_work;	/* an open device has a driver, and its policy was applied to that */
	int segment;
	u16 id;
	struct pci_dev *pdev;	/* null if it was removed while it was closed */
	struct pc_reach reach;	/* of such a device */
	bool is_isolated;	/* by the ports above it, when they were last looked at */
};

/* A device takes part in this from its addition to its removal, so its place here holds no reference to it. */
static LIST_HEAD(all_known);
static DEFINE_MUTEX(known_lock);

static struct known *find(struct pci_dev *pdev)
{
	struct known *known;

	list_for_each_entry(known, &all_known, list)
		if (known->pdev == pdev)
			return known;
	return NULL;
}

static bool is_in(struct pci_dev *pdev, enum state state)
{
	struct known *known = find(pdev);

	return known && known->state == state;
}

static void drop(struct known *known)
{
	list_del(&known->list);
	kfree(known);
}

/* A removed device is no longer listed by its bus when pc_forget is called. */
static bool is_present(struct pci_dev *pdev)
{
	struct pci_dev *other = NULL;

	for_each_pci_dev(other)
		if (other == pdev) {
			pci_dev_put(other);
			return true;
		}
	return false;
}

/* Null if the device is gone, or if there is no memory. */
static struct known *know(struct pci_dev *pdev)
{
	struct known *known = find(pdev), *removed;

	if (known || !is_present(pdev))
		return known;
	/* The device that was removed has been found again, or another is in its place. */
	list_for_each_entry(removed, &all_known, list)
		if (!removed->pdev && removed->segment == pci_domain_nr(pdev->bus) && removed->id == pc_own_id(pdev)) {
			removed->pdev = pdev;
			return removed;
		}
	known = kzalloc(sizeof(*known), GFP_KERNEL);
	if (!known)
		return NULL;
	known->segment = pci_domain_nr(pdev->bus);
	known->id = pc_own_id(pdev);
	known->pdev = pdev;
	list_add(&known->list, &all_known);
	return known;
}

bool pc_is_closed(struct pci_dev *pdev)
{
	bool is_closed;

	mutex_lock(&known_lock);
	is_closed = is_in(pdev, CLOSED);
	mutex_unlock(&known_lock);
	return is_closed;
}

bool pc_is_known(struct pci_dev *pdev)
{
	bool is_known;

	mutex_lock(&known_lock);
	is_known = find(pdev);
	mutex_unlock(&known_lock);
	return is_known;
}

void pc_keep_ports_of_shut(void)
{
	struct known *known;

	mutex_lock(&known_lock);
	list_for_each_entry(known, &all_known, list) {
		struct pci_dev *port;

		if (!known->pdev || known->state == OPEN)
			continue;
		port = pc_keep_ports(known->pdev);
		if (port && known->is_isolated)
			pr_warn_ratelimited("%s is shut out by its own id alone: the port %s does not check ids any more (ACS)\n",
					    pci_name(known->pdev), pci_name(port));
		known->is_isolated = !port;
	}
	mutex_unlock(&known_lock);
}

/* ---- who is cut off with whom ---- */

static int is_used_by(u16 id, void *other)
{
	return pc_uses_id(other, pci_domain_nr(((struct pci_dev *)other)->bus), id);
}

/* Why a device is cut off while another one is closed. Null if it is not. */
static const char *tie_of(struct pci_dev *closed, struct pci_dev *pdev)
{
	if (closed == pdev || pci_domain_nr(closed->bus) != pci_domain_nr(pdev->bus))
		return NULL;
	if (pc_for_each_id(pdev, is_used_by, closed))
		return "they share an id";
	return pc_can_use_id_of(closed, pdev) ? "one can use the id of the other" : NULL;
}

static const char *tie(const struct known *closed, struct pci_dev *pdev)
{
	if (closed->pdev)
		return tie_of(closed->pdev, pdev);
	return pc_is_within(&closed->reach, pdev) ? "it was removed, and may be at work and use the id of the other" : NULL;
}

/* The closed device that another one is cut off with, and why. */
static struct known *cut_off_with(struct pci_dev *pdev, const char **why)
{
	struct known *known;

	list_for_each_entry(known, &all_known, list) {
		*why = known->state == CLOSED ? tie(known, pdev) : NULL;
		if (*why)
			return known;
	}
	return NULL;
}

/* A device that would be cut off if another one was closed, and that is at work, or will have to be. */
static struct pci_dev *open_neighbor(struct pci_dev *pdev, bool has_choice)
{
	struct known *known;
	const char *why;

	list_for_each_entry(known, &all_known, list) {
		struct pci_dev *other = known->pdev;

		if (other && known->state != CLOSED && tie_of(pdev, other) &&
		    (known->is_at_work || (has_choice && pc_must_pass(other))) && !cut_off_with(other, &why))
			return other;
	}
	return NULL;
}

static bool has_open_neighbor(struct pci_dev *pdev, bool has_choice)
{
	struct pci_dev *other = open_neighbor(pdev, has_choice);

	if (!other)
		return false;
	pr_err("%s is not protected: that would cut off %s, which passes through (%s): %s; unbind both and name both\n",
	       pci_name(pdev), pci_name(other), dev_driver_string(&other->dev), tie_of(pdev, other));
	return true;
}

bool pc_has_open_neighbor(struct pci_dev *pdev)
{
	bool has_one;

	mutex_lock(&known_lock);
	has_one = has_open_neighbor(pdev, false);
	mutex_unlock(&known_lock);
	return has_one;
}

/* ---- opening and closing ---- */

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

/* Closes an id of a device, unless an open device uses it too. */
static int shut_id(u16 id, void *pdev)
{
	int segment = pci_domain_nr(((struct pci_dev *)pdev)->bus);
	struct known *known;

	list_for_each_entry(known, &all_known, list)
		if (known->pdev && known->pdev != pdev && known->state == OPEN && pc_uses_id(known->pdev, segment, id)) {
			pr_warn("an id of %s passes through: %s uses it too\n", pci_name(pdev), pci_name(known->pdev));
			return 0;
		}
	return close_id(id, pc_unit_of(pdev));
}

/* Opens a device, unless it is cut off. */
static bool open_untied(struct pci_dev *pdev, struct pc_unit *unit)
{
	const char *why;
	struct known *with = cut_off_with(pdev, &why);
	int error;

	if (with) {
		pr_warn("%s stays cut off with %04x:%02x:%02x.%u, which is protected or shut out: %s\n", pci_name(pdev),
			with->segment, PCI_BUS_NUM(with->id), PCI_SLOT(with->id), PCI_FUNC(with->id), why);
		return false;
	}
	error = pc_for_each_id(pdev, open_id, unit);
	if (error)
		pr_err("%s stays shut out: error %d\n", pci_name(pdev), error);
	return !error;
}

/* A device is not closed any more. */
static void open_tied(const struct known *former)
{
	struct known *known;

	list_for_each_entry(known, &all_known, list)
		if (known->pdev && known->state == OPEN && tie(former, known->pdev) && pc_unit_of(known->pdev))
			open_untied(known->pdev, pc_unit_of(known->pdev));
}

/* A device is closed now. Returns the first error; the others are cut off all the same. */
static int cut_off_tied(const struct known *closed)
{
	struct pci_dev *other = NULL;
	int first = 0;

	for_each_pci_dev(other) {
		struct pc_unit *unit = pc_unit_of(other);
		const char *why = tie(closed, other);
		int error;

		if (!why || !unit || is_in(other, SHUT) || is_in(other, CLOSED))
			continue;
		error = pc_for_each_id(other, close_id, unit);
		if (error)
			pr_err("%s passes through, and %s may use its id: error %d\n", pci_name(other), pci_name(closed->pdev),
			       error);
		else if (is_in(other, OPEN))
			pr_warn("%s is cut off with %s: %s\n", pci_name(other), pci_name(closed->pdev), why);
		first = first ?: error;
	}
	return first;
}

bool pc_open(struct pci_dev *pdev, bool is_at_work)
{
	struct pc_unit *unit = pc_unit_of(pdev);
	struct known *known;
	bool is_open = false;

	if (!unit)
		return true;
	mutex_lock(&known_lock);
	known = know(pdev);
	if (known) {
		enum state former = known->state;

		known->state = OPEN;
		known->is_at_work = is_at_work;
		is_open = open_untied(pdev, unit);
		if (former == CLOSED)
			open_tied(known);
	}
	mutex_unlock(&known_lock);
	return is_open;
}

int pc_shut(struct pci_dev *pdev)
{
	struct known *known;
	int error = -ENODEV;

	if (!pc_unit_of(pdev))
		return -ENODEV;
	mutex_lock(&known_lock);
	known = know(pdev);
	if (known) {
		enum state former = known->state;

		known->state = SHUT;
		known->is_at_work = false;
		error = pc_for_each_id(pdev, shut_id, pdev);
		if (former == CLOSED)
			open_tied(known);
	}
	mutex_unlock(&known_lock);
	return error;
}

static int close_now(struct pci_dev *pdev, struct pc_unit *unit, bool has_choice)
{
	struct known *known;
	enum state former;
	int error;

	if (is_in(pdev, CLOSED))
		return 0;
	if (has_choice && has_open_neighbor(pdev, true))
		return -EBUSY;
	known = know(pdev);
	if (!known)
		return -ENODEV;
	former = known->state;
	known->state = CLOSED;
	known->is_at_work = false;
	error = pc_for_each_id(pdev, close_id, unit);
	if (error)
		known->state = former;
	return error ?: cut_off_tied(known);
}

int pc_close(struct pci_dev *pdev, bool has_choice)
{
	struct pc_unit *unit = pc_unit_of(pdev);
	int error;

	if (!unit)
		return -ENODEV;
	mutex_lock(&known_lock);
	error = close_now(pdev, unit, has_choice);
	mutex_unlock(&known_lock);
	return error;
}

/* ---- removal ---- */

static bool has_device_within(const struct pc_reach *reach)
{
	struct known *known;

	list_for_each_entry(known, &all_known, list)
		if (known->pdev && pc_is_within(reach, known->pdev))
			return true;
	return false;
}

/*
 * The device is off the list of its bus. Neither a lost link nor a removal that the kernel was asked for means that it
 * does nothing more.
 */
void pc_forget(struct pci_dev *pdev, bool (*is_named)(int segment, u16 id))
{
	struct known *known, *next;

	mutex_lock(&known_lock);
	known = find(pdev);
	if (known && known->state == CLOSED) {
		known->reach = pc_reach_of(pdev);
		known->pdev = NULL;
	} else {
		if (known)
			drop(known);
		if (pc_unit_of(pdev))
			pc_for_each_id(pdev, shut_id, pdev);
	}
	/* Where no device is left, no id passes through. */
	list_for_each_entry_safe(known, next, &all_known, list)
		if (!known->pdev && !is_named(known->segment, known->id) && !has_device_within(&known->reach))
			drop(known);
	mutex_unlock(&known_lock);
}

void pc_forget_removed(bool (*is_listed)(int segment, u16 id))
{
	struct known *known, *next;

	mutex_lock(&known_lock);
	list_for_each_entry_safe(known, next, &all_known, list)
		if (!known->pdev && !is_listed(known->segment, known->id)) {
			known->state = OPEN;
			open_tied(known);
			drop(known);
		}
	mutex_unlock(&known_lock);
}

/* The units are off, so every device passes through. */
void pc_passing_stop(void)
{
	struct known *known, *next;

	list_for_each_entry_safe(known, next, &all_known, list)
		drop(known);
}
