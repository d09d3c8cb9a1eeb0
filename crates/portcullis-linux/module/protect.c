// SPDX-License-Identifier: MIT OR GPL-2.0
/* Protects a device: it gets a domain and our DMA operations before its driver is bound, and loses both afterwards. */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/slab.h>

#include "portcullis.h"

/* Addresses of domains have at most this many bits: tables have four levels. */
#define WIDEST_BITS 48
/* The most windows of a host bridge that are reserved. */
#define WINDOWS 16
/* The tick after an unmap: within the deferred window, or the time that table pages may idle. */
#define DEFERRED_TICK_US 500
#define STRICT_TICK_US 100000

LIST_HEAD(pc_devices);
DEFINE_MUTEX(pc_devices_lock);

static bool map_reserved;
module_param(map_reserved, bool, 0644);
MODULE_PARM_DESC(map_reserved, "map what firmware reserves for a device (RMRR) into its domain, instead of refusing to protect it");

static bool unisolated;
module_param(unisolated, bool, 0644);
MODULE_PARM_DESC(unisolated, "protect devices that others can reach without passing the IOMMU");

/* ---- time ---- */

static enum hrtimer_restart on_tick(struct hrtimer *timer)
{
	struct pc_device *device = container_of(timer, struct pc_device, timer);
	s64 due_us = pcr_tick(device->space);

	if (due_us < 0) {
		WRITE_ONCE(device->is_ticking, false);
		/*
		 * Either an unmap that queues something now finds the timer stopped, or this finds what it has queued.
		 * Deferred unmaps queue by a locked instruction, so their side needs no barrier.
		 */
		smp_mb();
		due_us = pcr_tick(device->space);
		if (due_us < 0 || xchg(&device->is_ticking, true))
			return HRTIMER_NORESTART;
	}
	/* The due time may be that of an idle table page. An unmap before that would find the timer running. */
	if (device->policy.is_deferred)
		due_us = min_t(s64, due_us, DEFERRED_TICK_US);
	hrtimer_forward_now(timer, ns_to_ktime(due_us * NSEC_PER_USEC));
	return HRTIMER_RESTART;
}

void pc_start_ticking(struct pc_device *device)
{
	u64 us = device->policy.is_deferred ? DEFERRED_TICK_US : STRICT_TICK_US;

	if (!xchg(&device->is_ticking, true))
		hrtimer_start(&device->timer, ns_to_ktime(us * NSEC_PER_USEC), HRTIMER_MODE_REL_SOFT);
}

/* The driver must no longer map or unmap. */
static void stop_ticking(struct pc_device *device)
{
	hrtimer_cancel(&device->timer);
	WRITE_ONCE(device->is_ticking, false);
}

/* ---- failures ---- */

void pc_was_not_unmapped(struct pc_device *device, dma_addr_t at, int error)
{
	this_cpu_inc(device->counts->failed);
	pr_err_ratelimited("%s: %pad was not unmapped: error %d\n", pci_name(device->pdev), &at, error);
	if (error != -EIO)
		return;
	/*
	 * The hardware has not confirmed the unmap, so the device may still write there. It must not write at all
	 * (S11).
	 */
	pci_clear_master(device->pdev);
	pr_err_ratelimited("%s has lost bus mastering: bind its driver again\n", pci_name(device->pdev));
}

/* ---- what cannot be protected ---- */

/* Whether the device's requests carry another id than its own, or an id that it shares. */
static bool shares_id(struct pci_dev *pdev)
{
	struct pci_bus *bus;

	if (pdev->dma_alias_mask) {
		pr_err("%s is not protected: it uses the ids of other functions too\n", pci_name(pdev));
		return true;
	}
	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent) {
		struct pci_dev *bridge = bus->self;

		/* A bus of virtual functions has no bridge. */
		if (!bridge)
			continue;
		if (!pci_is_pcie(bridge) || pci_pcie_type(bridge) == PCI_EXP_TYPE_PCI_BRIDGE ||
		    pci_pcie_type(bridge) == PCI_EXP_TYPE_PCIE_BRIDGE) {
			pr_err("%s is not protected: behind the bridge %s to conventional PCI all devices have one id\n",
			       pci_name(pdev), pci_name(bridge));
			return true;
		}
	}
	return false;
}

/*
 * Makes a port send requests up, and refuse those that carry an id from elsewhere, as far as it can. Linux does that
 * only if it drives the IOMMU itself. Returns the controls that are on.
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

/* Below a switch, devices reach each other unless the port sends all up. Below any port, they may use foreign ids. */
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

/* The port that does not isolate a device; null if there is none. */
static struct pci_dev *open_port(struct pci_dev *pdev)
{
	struct pci_bus *bus;

	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		if (bus->self && wanted_of(bus->self) & ~isolate(bus->self))
			return bus->self;
	return NULL;
}

static bool is_exposed(struct pci_dev *pdev)
{
	struct pci_dev *port = open_port(pdev);

	if (!port || unisolated)
		return false;
	pr_err("%s is not protected: the port %s does not keep it apart from other devices (ACS); unisolated=1 accepts that\n",
	       pci_name(pdev), pci_name(port));
	return true;
}

static bool is_reserved_for(struct pci_dev *pdev, const struct pcr_opening *opening)
{
	u32 regions = opening->maps_reserved ? 0 : pcr_reserved(opening);

	if (!regions)
		return false;
	pr_err("%s is not protected: firmware reserves %u regions of memory for it (RMRR); map_reserved=1 maps them for it\n",
	       pci_name(pdev), regions);
	return true;
}

/* ---- coming ---- */

/* Memory of other devices. A request to such an address may never reach the IOMMU. */
static size_t windows_of(struct pci_dev *pdev, struct pcr_window *windows, size_t room)
{
	struct pci_host_bridge *bridge = pci_find_host_bridge(pdev->bus);
	struct resource_entry *window;
	size_t count = 0;

	resource_list_for_each_entry(window, &bridge->windows)
		if (resource_type(window->res) == IORESOURCE_MEM && count < room)
			windows[count++] = (struct pcr_window) {
				window->res->start - window->offset, resource_size(window->res)
			};
	return count;
}

static struct pcr_opening opening_of(struct pci_dev *pdev, const struct pc_policy *policy, u8 bits, bool maps_reserved)
{
	return (struct pcr_opening) {
		.design = policy->design,
		.design_len = strlen(policy->design),
		.segment = pci_domain_nr(pdev->bus),
		.source = PCI_DEVID(pdev->bus->number, pdev->devfn),
		.address_bits = bits,
		.is_deferred = policy->is_deferred,
		.maps_reserved = maps_reserved,
	};
}

static int open_space(struct pc_device *device, u8 bits, struct pcr_space **space)
{
	struct pcr_opening opening = opening_of(device->pdev, &device->policy, bits, device->maps_reserved);
	struct pcr_window windows[WINDOWS];

	opening.windows = windows;
	opening.window_count = windows_of(device->pdev, windows, WINDOWS);
	return pcr_open(device->unit->rust, &opening, space);
}

static struct pc_device *make(struct pci_dev *pdev, const struct pc_policy *policy, struct pc_unit *unit)
{
	struct pc_device *device = kzalloc(sizeof(*device), GFP_KERNEL);

	if (!device)
		return NULL;
	device->counts = alloc_percpu(struct pc_counts);
	/* The notifier may still run while the module is being unloaded. */
	if (!device->counts || !try_module_get(THIS_MODULE)) {
		free_percpu(device->counts);
		kfree(device);
		return NULL;
	}
	device->ops = pc_ops;
	device->unit = unit;
	device->pdev = pci_dev_get(pdev);
	device->policy = *policy;
	hrtimer_init(&device->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	device->timer.function = on_tick;
	return device;
}

static void drop(struct pc_device *device)
{
	pci_dev_put(device->pdev);
	module_put(THIS_MODULE);
	free_percpu(device->counts);
	kfree(device);
}

static u16 source_of(struct pci_dev *pdev)
{
	return PCI_DEVID(pdev->bus->number, pdev->devfn);
}

static void let_through(struct pc_device *device)
{
	if (pcr_pass_through(device->unit->rust, source_of(device->pdev), true))
		pr_err("%s stays shut out\n", pci_name(device->pdev));
}

static int open(struct pc_device *device)
{
	struct pcr_unit_use use;
	u8 bits;
	int error;

	pcr_unit_use(device->unit->rust, &use);
	bits = min_t(u32, WIDEST_BITS, use.address_bits);
	/* The limit of the bus above the device, if that is lower. */
	if (device->pdev->dev.bus_dma_limit)
		bits = min_t(u8, bits, fls64(device->pdev->dev.bus_dma_limit + 1) - 1);
	/* From here on the device is shut out. */
	error = pcr_pass_through(device->unit->rust, source_of(device->pdev), false);
	if (error)
		return error;
	error = open_space(device, bits, &device->space);
	if (error)
		let_through(device);
	else
		device->last = DMA_BIT_MASK(bits);
	return error;
}

static void close(struct pc_device *device)
{
	pcr_close(device->space);
	let_through(device);
}

/* The device has no driver yet that does DMA. The caller holds the device's lock. */
int pc_protect(struct pci_dev *pdev, const struct pc_policy *policy)
{
	bool maps_reserved = READ_ONCE(map_reserved);
	struct pcr_opening opening = opening_of(pdev, policy, WIDEST_BITS, maps_reserved);
	struct pc_unit *unit = pc_unit_of(pdev);
	struct pc_device *device;
	int error;

	if (!unit) {
		pr_err("%s is not protected: no unit serves it\n", pci_name(pdev));
		return -ENODEV;
	}
	if (pdev->dev.dma_ops) {
		pr_err("%s is not protected: something else handles its DMA\n", pci_name(pdev));
		return -EBUSY;
	}
	/* The devices behind it use its id, but their drivers do not map through it. */
	if (pdev->dev.driver && !strcmp(pdev->dev.driver->name, "vmd")) {
		pr_err("%s is not protected: it stands for the disks behind it (VMD)\n", pci_name(pdev));
		return -EOPNOTSUPP;
	}
	if (shares_id(pdev) || is_exposed(pdev) || is_reserved_for(pdev, &opening))
		return -EOPNOTSUPP;
	device = make(pdev, policy, unit);
	if (!device)
		return -ENOMEM;
	device->maps_reserved = maps_reserved;
	device->reserved = maps_reserved ? pcr_reserved(&opening) : 0;
	error = open(device);
	if (error) {
		drop(device);
		return error;
	}
	/* Before a reboot the device is shut down ahead of the unit. */
	device->link = device_link_add(&pdev->dev, &pc_platform->dev, DL_FLAG_STATELESS);
	if (!device->link) {
		pr_err("%s is not protected: nothing would stop it ahead of its unit\n", pci_name(pdev));
		close(device);
		drop(device);
		return -EINVAL;
	}
	set_dma_ops(&pdev->dev, &device->ops);
	mutex_lock(&pc_devices_lock);
	list_add_tail(&device->list, &pc_devices);
	mutex_unlock(&pc_devices_lock);
	pr_info("%s is protected: %s, %s\n", pci_name(pdev), policy->design, policy->is_deferred ? "deferred" : "strict");
	return 0;
}

int pc_reopen(struct pc_device *device, u8 bits)
{
	struct pcr_space *before = device->space, *after;
	int error = pcr_detach(before, source_of(device->pdev));

	if (error)
		return error;
	error = open_space(device, bits, &after);
	if (error)
		/* Attach the old domain again. If even that fails, the device stays shut out. */
		return pcr_attach(before, source_of(device->pdev)) ?: error;
	stop_ticking(device);
	/* Readers of the device list access the domains. */
	mutex_lock(&pc_devices_lock);
	device->space = after;
	device->last = DMA_BIT_MASK(bits);
	mutex_unlock(&pc_devices_lock);
	pcr_close(before);
	return 0;
}

/* ---- going ---- */

/* The driver has gone, and so has everything that the driver core held for it. */
void pc_unprotect(struct pci_dev *pdev)
{
	struct pc_device *device = pc_device_of(&pdev->dev);
	struct pcr_space_use use;

	mutex_lock(&pc_devices_lock);
	list_del(&device->list);
	mutex_unlock(&pc_devices_lock);
	set_dma_ops(&pdev->dev, NULL);
	device_link_del(device->link);
	stop_ticking(device);
	pcr_tick(device->space);
	pcr_space_use(device->space, &use);
	if (use.live_ranges > use.queued_unmaps + device->reserved)
		pr_warn("%s: its driver has left %llu buffers mapped\n", pci_name(pdev),
			use.live_ranges - use.queued_unmaps - device->reserved);
	close(device);
	drop(device);
}
