// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Which devices are protected, and how: the parameter `protect`, when the module is loaded and later in sysfs.
 *
 *   protect=all                                      every device that can be, by `portcullis`, strict
 *   protect=0000:00:04.0,0000:00:05.0=magazine/deferred
 *
 * Protection begins when a driver is bound and ends when it has gone. A removed entry stays in effect until then.
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

/* An entry for the device itself takes precedence over one for all devices. */
static bool find(struct pci_dev *pdev, struct pc_policy *policy, bool *is_named)
{
	const struct entry *found = NULL;
	int i;

	/* A bridge does no DMA of its own. */
	if (pdev->hdr_type != PCI_HEADER_TYPE_NORMAL)
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

/* A bound device is in use, and its buffers are not mapped. A device named before is already protected or shut out. */
static int refuse_bound(struct pci_dev *pdev)
{
	struct pc_policy policy;
	bool is_named = false;
	int error = 0;

	find(pdev, &policy, &is_named);
	device_lock(&pdev->dev);
	if (pdev->dev.driver && !pdev->dev.dma_ops && !is_named) {
		pr_err("protect: %s is bound to %s. Unbind it first: echo %s > /sys/bus/pci/drivers/%s/unbind\n", pci_name(pdev),
		       pdev->dev.driver->name, pci_name(pdev), pdev->dev.driver->name);
		error = -EBUSY;
	}
	device_unlock(&pdev->dev);
	return error;
}

static int read_device(char *text, struct entry *entry)
{
	unsigned int domain, bus, slot, function;
	struct pci_dev *pdev;
	int end = 0, error;

	if (sscanf(text, "%x:%x:%x.%u%n", &domain, &bus, &slot, &function, &end) != 4 || text[end] || bus > 255 ||
	    slot > 31 || function > 7) {
		pr_err("protect: \"%s\" is no device; one is 0000:00:04.0, or all\n", text);
		return -EINVAL;
	}
	entry->domain = domain;
	entry->bus = bus;
	entry->devfn = PCI_DEVFN(slot, function);
	pdev = pci_get_domain_bus_and_slot(domain, bus, entry->devfn);
	if (!pdev) {
		pr_err("protect: there is no device %s\n", text);
		return -ENODEV;
	}
	if (pdev->hdr_type == PCI_HEADER_TYPE_NORMAL) {
		error = refuse_bound(pdev);
	} else {
		pr_err("protect: %s is a bridge, which does no DMA\n", text);
		error = -EINVAL;
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

/* A device that is already bound passes through. Warn in the log, because an administrator may expect protection. */
static void warn_of_bound(void)
{
	struct pci_dev *pdev = NULL;
	struct pc_policy policy;
	bool is_named;

	for_each_pci_dev(pdev) {
		device_lock(&pdev->dev);
		if (pdev->dev.driver && !pdev->dev.dma_ops && find(pdev, &policy, &is_named))
			pr_warn("%s is bound to %s, and not protected until it is bound again\n", pci_name(pdev),
				pdev->dev.driver->name);
		device_unlock(&pdev->dev);
	}
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
		mutex_lock(&entries_lock);
		swap(entries, read);
		entry_count = count;
		mutex_unlock(&entries_lock);
		/* Before the units are up, pc_policy_start() warns. */
		if (pc_unit_count)
			warn_of_bound();
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

/* ---- drivers come and go ---- */

/* A named device that cannot be protected is shut out, never passed through: its DMA then fails. */
static void shut_out(struct pci_dev *pdev)
{
	if (pc_close(pdev))
		pr_err("%s cannot even be shut out: it reaches all memory\n", pci_name(pdev));
	else
		pr_err("%s stays shut out until its driver is unbound\n", pci_name(pdev));
}

static void unprotect(void *pdev)
{
	pc_unprotect(pdev);
}

/*
 * The device stays protected until the driver core has released every resource that the driver has registered with
 * it, also if probing fails: the resource that is registered first is released last.
 */
static int protect(struct pci_dev *pdev, const struct pc_policy *policy)
{
	return pc_protect(pdev, policy) ?: devm_add_action_or_reset(&pdev->dev, unprotect, pdev);
}

static void bind(struct pci_dev *pdev)
{
	struct pc_policy policy = {};
	bool is_named = false;

	/*
	 * Buffers that an earlier driver has left mapped keep the device protected, even if `protect` no longer names
	 * it.
	 */
	if (!find(pdev, &policy, &is_named) && !pc_is_protected(pdev))
		return;
	if (!protect(pdev, &policy))
		return;
	if (is_named)
		shut_out(pdev);
	else
		pr_warn("%s passes through, for it cannot be protected\n", pci_name(pdev));
}

static int on_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct pci_dev *pdev = to_pci_dev(data);

	switch (event) {
	case BUS_NOTIFY_ADD_DEVICE:
		pc_open(pdev);
		break;
	case BUS_NOTIFY_BIND_DRIVER:
		bind(pdev);
		break;
	case BUS_NOTIFY_DRIVER_NOT_BOUND:
	case BUS_NOTIFY_UNBOUND_DRIVER:
		/* A device that was shut out passes through again. */
		if (!pc_is_protected(pdev))
			pc_open(pdev);
		break;
	case BUS_NOTIFY_REMOVED_DEVICE:
		pc_leave(pdev);
		pc_forget(pdev);
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = on_event };

/* Present devices pass through. No device is added or removed during the call. */
int pc_policy_start(void)
{
	warn_of_bound();
	return bus_register_notifier(&pci_bus_type, &notifier);
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
