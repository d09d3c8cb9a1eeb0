// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Which devices are protected, and how: the parameter `protect`, when the module is loaded and later in sysfs.
 *
 *   protect=all                                      every device that can be, by `portcullis`, strict
 *   protect=0000:00:04.0,0000:00:05.0=magazine/deferred
 *
 * Protection begins when a driver is bound and ends when it has gone. A removed entry stays in effect until then.
 *
 * No DMA of a device without a driver is asked for. Such a device is shut out if it is named, if it is external, or,
 * under `all`, once it has been plugged in or had a driver. `open=DEVICE` opens it.
 */
#include <linux/ctype.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "portcullis.h"

#define ENTRIES 64
#define TEXT_BYTES 4096

struct entry {
	bool is_all;
	int domain;
	u8 bus, devfn;
	struct pc_policy policy;
};

static DEFINE_MUTEX(entries_lock);
static struct entry *entries;
static int entry_count;

static bool is_for(const struct entry *entry, struct pci_dev *pdev)
{
	return entry->is_all || (entry->domain == pci_domain_nr(pdev->bus) && entry->bus == pdev->bus->number &&
				 entry->devfn == pdev->devfn);
}

/* A bridge does no DMA of its own. */
static bool is_bridge(struct pci_dev *pdev)
{
	return pdev->hdr_type != PCI_HEADER_TYPE_NORMAL;
}

/* An entry for the device itself takes precedence over one for all devices. */
static bool find(struct pci_dev *pdev, struct pc_policy *policy, bool *is_named)
{
	const struct entry *found = NULL;
	int i;

	if (is_bridge(pdev))
		return false;
	mutex_lock(&entries_lock);
	for (i = 0; i < entry_count; i++)
		if (is_for(&entries[i], pdev) && (!found || found->is_all))
			found = &entries[i];
	if (found) {
		*policy = found->policy;
		*is_named = !found->is_all;
	}
	mutex_unlock(&entries_lock);
	return found;
}

/* ---- devices without a driver ---- */

static bool has_own_entry(struct pci_dev *pdev)
{
	struct pc_policy policy;
	bool is_named = false;

	return find(pdev, &policy, &is_named) && is_named;
}

/* Whether a device is shut out while it has no driver. Before its first driver, `all` does not count. */
static bool is_shut_unbound(struct pci_dev *pdev, bool counts_all)
{
	struct pc_policy policy;
	bool is_named = false, is_found = find(pdev, &policy, &is_named);

	return is_named || pdev->untrusted || (is_found && counts_all);
}

/*
 * A device that is named is closed, at the cost of its neighbors. Others must not cost a neighbor that is at work.
 * Returns false if the device may reach memory, as one does whose unit stays off.
 */
static bool shut_out(struct pci_dev *pdev)
{
	int error = has_own_entry(pdev) ? pc_close(pdev, false) : pc_shut(pdev);
	struct pci_dev *port = pc_open_port(pdev);

	if (error)
		pr_err("%s may reach all memory: error %d\n", pci_name(pdev), error);
	else if (port)
		pr_warn("%s is shut out by its own id alone: the port %s does not check ids (ACS)\n", pci_name(pdev),
			pci_name(port));
	return !error;
}

void pc_let(struct pci_dev *pdev)
{
	if (is_shut_unbound(pdev, true))
		shut_out(pdev);
	else
		pc_open(pdev, false);
}

static bool has_entry(int segment, u16 id, bool counts_all)
{
	bool found = false;
	int i;

	mutex_lock(&entries_lock);
	for (i = 0; i < entry_count; i++)
		found |= entries[i].is_all ? counts_all :
			 entries[i].domain == segment && PCI_DEVID(entries[i].bus, entries[i].devfn) == id;
	mutex_unlock(&entries_lock);
	return found;
}

static bool is_named(int segment, u16 id)
{
	return has_entry(segment, id, false);
}

static bool is_listed(int segment, u16 id)
{
	return has_entry(segment, id, true);
}

/* Shuts out or opens the devices without a driver, after entries have come, and those in `former` have gone. */
static void settle_unbound(const struct entry *former, int former_count)
{
	struct pci_dev *pdev = NULL;
	int i;

	for_each_pci_dev(pdev) {
		bool was_listed = false;

		if (is_bridge(pdev))
			continue;
		for (i = 0; i < former_count; i++)
			was_listed |= is_for(&former[i], pdev);
		device_lock(&pdev->dev);
		if (!pdev->dev.driver && !pc_is_protected(pdev)) {
			/* A device that was named may be under `all` now: it has neighbors again. */
			if (is_shut_unbound(pdev, pc_is_closed(pdev)))
				shut_out(pdev);
			else if (was_listed && !is_shut_unbound(pdev, true))
				pc_open(pdev, false);
		}
		device_unlock(&pdev->dev);
	}
	pc_forget_removed(is_listed);
}

/* ---- reading ---- */

static int read_policy(char *text, struct pc_policy *policy)
{
	char *protection = text ? strchr(text, '/') : NULL;

	*policy = (struct pc_policy) { .design = "portcullis" };
	if (!text)
		return 0;
	if (protection)
		*protection++ = 0;
	if (strscpy(policy->design, text, sizeof(policy->design)) < 0 ||
	    pcr_has_design(policy->design, strlen(policy->design))) {
		pr_err("protect: there is no design \"%s\"; there are portcullis and magazine\n", text);
		return -EINVAL;
	}
	if (protection && strcmp(protection, "strict") && strcmp(protection, "deferred")) {
		pr_err("protect: \"%s\" is neither strict nor deferred\n", protection);
		return -EINVAL;
	}
	policy->is_deferred = protection && !strcmp(protection, "deferred");
	return 0;
}

/*
 * A bound device is in use, and its buffers are not mapped. A device named before is already protected or shut out.
 */
static int refuse_bound(struct pci_dev *pdev)
{
	int error = 0;

	device_lock(&pdev->dev);
	if (pdev->dev.driver && !pdev->dev.dma_ops && !has_own_entry(pdev)) {
		pr_err("protect: %s is bound to %s. Unbind it first: echo %s > /sys/bus/pci/drivers/%s/unbind\n", pci_name(pdev),
		       pdev->dev.driver->name, pci_name(pdev), pdev->dev.driver->name);
		error = -EBUSY;
	}
	device_unlock(&pdev->dev);
	return error;
}

static int read_address(const char *text, struct entry *entry)
{
	unsigned int domain, bus, slot, function;
	int end = 0;

	if (sscanf(text, "%x:%x:%x.%u%n", &domain, &bus, &slot, &function, &end) != 4 || text[end] || bus > 255 ||
	    slot > 31 || function > 7) {
		pr_err("protect: \"%s\" is no device; one is 0000:00:04.0, or all\n", text);
		return -EINVAL;
	}
	entry->domain = domain;
	entry->bus = bus;
	entry->devfn = PCI_DEVFN(slot, function);
	return 0;
}

static int read_device(char *text, struct entry *entry)
{
	struct pci_dev *pdev;
	int error = read_address(text, entry);

	if (error)
		return error;
	pdev = pci_get_domain_bus_and_slot(entry->domain, entry->bus, entry->devfn);
	if (!pdev) {
		pr_info("protect: there is no device %s yet; it is shut out until its driver is bound\n", text);
		return 0;
	}
	if (is_bridge(pdev)) {
		pr_err("protect: %s is a bridge, which does no DMA\n", text);
		error = -EINVAL;
	} else {
		error = refuse_bound(pdev);
	}
	pci_dev_put(pdev);
	return error;
}

static int read_entry(char *text, struct entry *entry)
{
	char *policy = strchr(text, '=');
	int error;

	if (policy)
		*policy++ = 0;
	error = read_policy(policy, &entry->policy);
	entry->is_all = !strcmp(text, "all");
	return error ?: entry->is_all ? 0 : read_device(text, entry);
}

static int read_entries(char *text, struct entry *to, int *count)
{
	char *word;

	*count = 0;
	while ((word = strsep(&text, ",")) != NULL) {
		int error;

		word = strim(word);
		if (!*word)
			continue;
		if (*count == ENTRIES) {
			pr_err("protect: more than %d entries\n", ENTRIES);
			return -E2BIG;
		}
		error = read_entry(word, &to[*count]);
		if (error)
			return error;
		++*count;
	}
	return 0;
}

/*
 * A device that is already bound passes through, and an administrator may expect protection. Returns an error if it is
 * named: its driver was bound after the list was read. Likewise if it can use the id of a bound device.
 */
static int check_bound(void)
{
	struct pci_dev *pdev = NULL;
	struct pc_policy policy;
	bool is_named;
	int error = 0;

	for_each_pci_dev(pdev) {
		device_lock(&pdev->dev);
		if (find(pdev, &policy, &is_named) && !pdev->dev.dma_ops && !pc_is_closed(pdev)) {
			if (pdev->dev.driver)
				pr_warn("%s is bound to %s, and not protected until it is bound again\n",
					pci_name(pdev), pdev->dev.driver->name);
			if (is_named && (pdev->dev.driver || pc_has_open_neighbor(pdev)))
				error = -EBUSY;
		}
		device_unlock(&pdev->dev);
	}
	return error;
}

/* Replaces the entries. */
static void exchange(struct entry **other, int *other_count)
{
	mutex_lock(&entries_lock);
	swap(entries, *other);
	swap(entry_count, *other_count);
	mutex_unlock(&entries_lock);
}

static int set_protect(const char *text, const struct kernel_param *parameter)
{
	struct entry *read = kcalloc(ENTRIES, sizeof(*read), GFP_KERNEL);
	char *copy = kstrndup(text, TEXT_BYTES, GFP_KERNEL);
	int count, error = -ENOMEM;

	if (read && copy)
		error = read_entries(copy, read, &count);
	if (!error) {
		/* All entries are replaced, or none. */
		exchange(&read, &count);
		/* Before the units are up, pc_policy_start() does the rest. */
		if (pc_unit_count) {
			error = check_bound();
			if (error)
				exchange(&read, &count);
			else
				settle_unbound(read, count);
		}
	}
	kfree(copy);
	kfree(read);
	return error;
}

static int get_protect(char *to, const struct kernel_param *parameter)
{
	int i, at = 0;

	mutex_lock(&entries_lock);
	for (i = 0; i < entry_count; i++) {
		const struct entry *entry = &entries[i];

		if (entry->is_all)
			at += scnprintf(to + at, PAGE_SIZE - at, "all");
		else
			at += scnprintf(to + at, PAGE_SIZE - at, "%04x:%02x:%02x.%u", entry->domain, entry->bus,
					PCI_SLOT(entry->devfn), PCI_FUNC(entry->devfn));
		at += scnprintf(to + at, PAGE_SIZE - at, "=%s/%s%s", entry->policy.design,
				entry->policy.is_deferred ? "deferred" : "strict", i + 1 < entry_count ? "," : "\n");
	}
	mutex_unlock(&entries_lock);
	return at;
}

/* When the module is unloaded, or fails to load. */
static void free_protect(void *unused)
{
	kfree(entries);
}

static const struct kernel_param_ops protect_ops = { .set = set_protect, .get = get_protect, .free = free_protect };
module_param_cb(protect, &protect_ops, NULL, 0600);
MODULE_PARM_DESC(protect, "DEVICE[=DESIGN[/strict|deferred]],...; DEVICE is all, or as in 0000:00:04.0");

/* Opens a device without a driver, until the next time that a driver comes or goes. */
static int set_open(const char *text, const struct kernel_param *parameter)
{
	struct entry entry;
	struct pci_dev *pdev;
	char name[16];
	int error = 0;

	if (strscpy(name, text, sizeof(name)) < 0)
		return -EINVAL;
	error = read_address(strim(name), &entry);
	if (error)
		return error;
	pdev = pci_get_domain_bus_and_slot(entry.domain, entry.bus, entry.devfn);
	/* While the module is loaded, all devices pass through. */
	if (!pdev || is_bridge(pdev) || !pc_unit_count) {
		pci_dev_put(pdev);
		return -ENODEV;
	}
	device_lock(&pdev->dev);
	if (pdev->dev.driver || pc_is_protected(pdev)) {
		pr_err("open: %s has a driver, or buffers that its driver has left\n", pci_name(pdev));
		error = -EBUSY;
	} else {
		if (pc_open(pdev, false)) {
			pr_warn("%s is opened without a driver: it reaches all memory\n", pci_name(pdev));
		} else {
			pc_let(pdev);
			error = -EBUSY;
		}
	}
	device_unlock(&pdev->dev);
	pci_dev_put(pdev);
	return error;
}

static const struct kernel_param_ops open_ops = { .set = set_open };
module_param_cb(open, &open_ops, NULL, 0200);
MODULE_PARM_DESC(open, "opens DEVICE, which has no driver and is shut out");

/* ---- drivers come and go ---- */

static void unprotect(void *pdev)
{
	pc_unprotect(pdev);
}

/*
 * The device stays protected until the driver core has released every resource that the driver has registered with
 * it, also if probing fails: the resource that is registered first is released last.
 */
static int protect(struct pci_dev *pdev, const struct pc_policy *policy, bool has_choice)
{
	return pc_protect(pdev, policy, has_choice) ?: devm_add_action_or_reset(&pdev->dev, unprotect, pdev);
}

/*
 * These drivers ask the kernel's IOMMU core whether their device is translated, are told that it is not, and leave out
 * what a translated device needs. Only the owner, by naming the device, can decide that it works all the same.
 */
static bool is_misled(struct pci_dev *pdev)
{
	static const char *const drivers[] = { "amdgpu", "i915", "xe" };

	if (match_string(drivers, ARRAY_SIZE(drivers), pdev->dev.driver->name) < 0)
		return false;
	pr_err("%s is not protected: %s would take it for a device without an IOMMU; name it to protect it all the same\n",
	       pci_name(pdev), pdev->dev.driver->name);
	return true;
}

/* The vendors and the class of what these drivers drive. */
static bool may_be_misled(struct pci_dev *pdev)
{
	return !pdev->untrusted && pdev->class >> 16 == PCI_BASE_CLASS_DISPLAY &&
	       (pdev->vendor == PCI_VENDOR_ID_INTEL || pdev->vendor == PCI_VENDOR_ID_ATI);
}

bool pc_must_pass(struct pci_dev *pdev)
{
	return !has_own_entry(pdev) &&
	       (may_be_misled(pdev) || pc_has_reserved(pdev) || pc_is_broken_by_translation(pdev));
}

static void bind(struct pci_dev *pdev)
{
	struct pc_policy policy = {};
	bool is_named = false;

	/*
	 * Buffers that an earlier driver has left mapped keep the device protected, even if `protect` no longer names
	 * it.
	 */
	if (!find(pdev, &policy, &is_named) && !pc_is_protected(pdev)) {
		if (pc_open(pdev, true) && pdev->untrusted)
			pr_warn("%s is external, and passes through while its driver is bound: name it to protect it\n",
				pci_name(pdev));
		return;
	}
	if ((is_named || pc_is_protected(pdev) || !is_misled(pdev)) && !protect(pdev, &policy, !is_named))
		return;
	/* A named device that cannot be protected is never let through: its DMA fails. */
	if (is_named) {
		if (shut_out(pdev))
			pr_err("%s stays shut out\n", pci_name(pdev));
		return;
	}
	if (pc_open(pdev, true))
		pr_warn("%s passes through, for it cannot be protected\n", pci_name(pdev));
}

/* Whether the policy is in effect. Before that, the notifier only learns of removals. */
static bool decides;

static int on_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct pci_dev *pdev = to_pci_dev(data);

	if (event == BUS_NOTIFY_REMOVED_DEVICE) {
		pc_leave(pdev);
		pc_forget(pdev, is_named);
	}
	if (is_bridge(pdev) || !READ_ONCE(decides))
		return NOTIFY_DONE;
	switch (event) {
	case BUS_NOTIFY_ADD_DEVICE:
		/* `protect` may be written at the same time. */
		device_lock(&pdev->dev);
		pc_let(pdev);
		device_unlock(&pdev->dev);
		break;
	case BUS_NOTIFY_BIND_DRIVER:
		bind(pdev);
		break;
	case BUS_NOTIFY_DRIVER_NOT_BOUND:
	case BUS_NOTIFY_UNBOUND_DRIVER:
		if (!pc_is_protected(pdev))
			pc_let(pdev);
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = on_event };

/*
 * Devices pass through as they come, and those that are at work go on. If a driver of a named device was bound after
 * the list was checked, the device is shut out.
 */
static void open_present(void)
{
	struct pci_dev *pdev = NULL;

	for_each_pci_dev(pdev) {
		if (is_bridge(pdev))
			continue;
		device_lock(&pdev->dev);
		if (decides && pdev->dev.driver && !pdev->dev.dma_ops && !pc_is_closed(pdev) && has_own_entry(pdev)) {
			pr_err("%s was bound to %s too early\n", pci_name(pdev), pdev->dev.driver->name);
			shut_out(pdev);
		} else if (!pc_is_known(pdev) || (pdev->dev.driver && !pc_is_closed(pdev))) {
			pc_open(pdev, pdev->dev.driver);
		}
		device_unlock(&pdev->dev);
	}
}

/*
 * Present devices pass through. A driver that is bound during the call either finds the notifier, or is found bound.
 * The call does not fail once it decides: devices may be protected.
 */
int pc_policy_start(void)
{
	int error = bus_register_notifier(&pci_bus_type, &notifier);

	if (error)
		return error;
	open_present();
	error = check_bound();
	if (error) {
		pc_policy_stop();
		return error;
	}
	WRITE_ONCE(decides, true);
	open_present();
	settle_unbound(NULL, 0);
	return 0;
}

/* No device is protected any more. Taking each device's lock once waits for an unprotect that is still returning. */
void pc_policy_stop(void)
{
	struct pci_dev *pdev = NULL;

	bus_unregister_notifier(&pci_bus_type, &notifier);
	for_each_pci_dev(pdev) {
		device_lock(&pdev->dev);
		device_unlock(&pdev->dev);
	}
}
