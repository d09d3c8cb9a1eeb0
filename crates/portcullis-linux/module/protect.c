// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The protection of a device. It gets a domain and our DMA operations before its driver is bound, and loses both
 * after the driver is unbound and nothing is mapped any more. Buffers that a driver leaves mapped, such as received
 * pages that sockets still hold (page_pool), are unmapped later, by addresses of that domain. Until then the device
 * keeps the domain, and a driver that is bound in the meantime gets the same domain.
 */
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
/* The time between two checks of a device without a driver. */
#define LEFT_MS 1000

LIST_HEAD(pc_devices);
DEFINE_MUTEX(pc_devices_lock);

static bool map_reserved;
module_param(map_reserved, bool, 0644);
MODULE_PARM_DESC(map_reserved, "map the memory that firmware reserves for a device (RMRR) into its domain, instead of refusing to protect the device");

struct pc_counts pc_counts_of(struct pc_device *device)
{
	struct pc_counts sum = {};
	int cpu;

	for_each_possible_cpu(cpu) {
		struct pc_counts *counts = per_cpu_ptr(device->counts, cpu);

		sum.maps += counts->maps;
		sum.unmaps += counts->unmaps;
		sum.bytes += counts->bytes;
		sum.failed += counts->failed;
	}
	return sum;
}

/* ---- failures ---- */

/*
 * The hardware has not confirmed an unmap, so the device may still write there. It must not write anywhere (S11). Its
 * own bus mastering does not ensure that: drivers turn it on again, and a hostile device ignores it. So the device
 * loses its context entry. If the hardware does not confirm that either, its queue is dead, and the unit gets an empty
 * table. This may run in an interrupt.
 */
static void cut_off(struct pc_device *device)
{
	struct pci_dev *pdev = device->pdev;
	struct pci_bus *bus;
	int error;

	if (xchg(&device->is_cut_off, true))
		return;
	pci_clear_master(pdev);
	error = pcr_detach(device->space, pc_own_id(pdev));
	/* A device that was removed is detached already. */
	if (!error || error == -EINVAL) {
		pr_err("%s is shut out: bind its driver again\n", pci_name(pdev));
		return;
	}
	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent)
		if (bus->self)
			pci_clear_master(bus->self);
	if (pcr_shut_out_all(device->unit->rust))
		pr_err("%s may still reach memory: its unit takes no command\n", pci_name(pdev));
	else
		pr_err("%s is shut out, and all devices behind its unit with it: the unit does not answer\n",
		       pci_name(pdev));
}

/* ---- time ---- */

/* The last jiffy in which a timer that is due in so many microseconds is not late. */
static unsigned long last_jiffy(u64 due_us)
{
	return jiffies + usecs_to_jiffies(due_us);
}

static s64 tick(struct pc_device *device)
{
	s64 due_us = pcr_tick(device->space);

	/* The flush of buffers that their driver has got back was not confirmed, so the device may still write there. */
	if (unlikely(due_us == -EIO))
		cut_off(device);
	return due_us;
}

static enum hrtimer_restart on_tick(struct hrtimer *timer)
{
	struct pc_device *device = container_of(timer, struct pc_device, timer);
	s64 due_us = tick(device);

	if (due_us < 0) {
		WRITE_ONCE(device->is_ticking, false);
		/* After that. What starts the timer does both in the same order, so if both do it at once, zero remains. */
		WRITE_ONCE(device->tick_by, 0);
		/*
		 * Either an unmap that queues something now finds the timer stopped, or this finds what it has queued.
		 * Deferred unmaps queue by a locked instruction, so their side needs no barrier.
		 */
		smp_mb();
		due_us = tick(device);
		if (due_us < 0 || xchg(&device->is_ticking, true))
			return HRTIMER_NORESTART;
	}
	/* The due time may be that of an idle table page. An unmap before that would find the timer running. */
	if (device->policy.is_deferred)
		due_us = min_t(s64, due_us, DEFERRED_TICK_US);
	WRITE_ONCE(device->tick_by, last_jiffy(due_us));
	hrtimer_forward_now(timer, ns_to_ktime(due_us * NSEC_PER_USEC));
	return HRTIMER_RESTART;
}

void pc_start_ticking(struct pc_device *device)
{
	u64 us = device->policy.is_deferred ? DEFERRED_TICK_US : STRICT_TICK_US;

	if (xchg(&device->is_ticking, true))
		return;
	/* Before the timer can end, which clears it. */
	WRITE_ONCE(device->tick_by, last_jiffy(us));
	hrtimer_start(&device->timer, ns_to_ktime(us * NSEC_PER_USEC), HRTIMER_MODE_REL_SOFT);
}

/*
 * A tick may run beside that of the timer and in any context. It flushes only what is due.
 *
 * Only the timer's own code may set `tick_by` when it is zero. Otherwise a timer that is stopping might leave it set.
 */
void pc_tick_late(struct pc_device *device)
{
	unsigned long by = READ_ONCE(device->tick_by);

	if (!READ_ONCE(device->is_ticking))
		pc_start_ticking(device);
	else if (!by || (jiffies > by && try_cmpxchg(&device->tick_by, &by, last_jiffy(DEFERRED_TICK_US))))
		tick(device);
}

u64 pc_late_us_max(struct pc_device *device)
{
	return device->policy.is_deferred ? jiffies_to_usecs(usecs_to_jiffies(DEFERRED_TICK_US) + 1) : 0;
}

/* The driver must no longer map or unmap. */
static void stop_ticking(struct pc_device *device)
{
	hrtimer_cancel(&device->timer);
	WRITE_ONCE(device->is_ticking, false);
	WRITE_ONCE(device->tick_by, 0);
}

/* The driver uses the memory for something else now. */
bool pc_was_not_mapped(struct pc_device *device, u64 at)
{
	if (at == PCR_LOST)
		cut_off(device);
	return at >= PCR_LOST;
}

bool pc_was_not_unmapped(struct pc_device *device, dma_addr_t at, size_t size, int error)
{
	this_cpu_inc(device->counts->failed);
	if (error == PCR_REFUSED)
		error = pcr_unmap_whole(device->space, at, size);
	if (error > 0) {
		pr_warn_ratelimited("%s: its driver has unmapped %pad as something else than it had mapped; that was unmapped, up to the first page without a mapping\n",
				    pci_name(device->pdev), &at);
		/* The caller counts one. */
		this_cpu_add(device->counts->unmaps, error - 1);
		return false;
	}
	pr_err_ratelimited("%s: %pad was not unmapped: error %d\n", pci_name(device->pdev), &at, error);
	if (error != -EIO)
		return true;
	atomic64_inc(&device->lost);
	cut_off(device);
	return true;
}

void pc_keep_ports_of_protected(void)
{
	struct pc_device *device;

	/* A device that is in the list has a domain. */
	mutex_lock(&pc_devices_lock);
	list_for_each_entry(device, &pc_devices, list) {
		struct pci_dev *port = pc_keep_ports(device->pdev);

		if (!port || !device->is_there || pc_accepts_open_ports() || READ_ONCE(device->is_cut_off))
			continue;
		pr_err("the port %s has ceased to keep %s apart from other devices (ACS), or does not answer\n", pci_name(port),
		       pci_name(device->pdev));
		cut_off(device);
	}
	mutex_unlock(&pc_devices_lock);
}

/* ---- what cannot be protected ---- */

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

/*
 * Lists the memory windows of other devices: a request to an address there may never reach the IOMMU. Returns the
 * number of windows, or a negative error number.
 */
static int windows_of(struct pci_dev *pdev, struct pcr_window *windows, int room)
{
	struct pci_host_bridge *bridge = pci_find_host_bridge(pdev->bus);
	struct resource_entry *window;
	int count = 0;

	resource_list_for_each_entry(window, &bridge->windows) {
		if (resource_type(window->res) != IORESOURCE_MEM)
			continue;
		if (count == room) {
			pr_err("%s is not protected: its host bridge has more than %d windows\n", pci_name(pdev), room);
			return -E2BIG;
		}
		windows[count++] = (struct pcr_window) { window->res->start - window->offset, resource_size(window->res) };
	}
	return count;
}

static struct pcr_opening opening_of(struct pci_dev *pdev, const struct pc_policy *policy, u8 bits, bool maps_reserved)
{
	return (struct pcr_opening) {
		.design = policy->design,
		.design_len = strlen(policy->design),
		.segment = pci_domain_nr(pdev->bus),
		.source = pc_own_id(pdev),
		.address_bits = bits,
		.is_deferred = policy->is_deferred,
		.maps_reserved = maps_reserved,
	};
}

bool pc_has_reserved(struct pci_dev *pdev)
{
	struct pc_policy any = {};
	struct pcr_opening opening = opening_of(pdev, &any, WIDEST_BITS, READ_ONCE(map_reserved));

	return !opening.maps_reserved && pcr_reserved(&opening);
}

static int open_space(struct pc_device *device, u8 bits, struct pcr_space **space)
{
	struct pcr_opening opening = opening_of(device->pdev, &device->policy, bits, device->maps_reserved);
	struct pcr_window windows[WINDOWS];
	int count = windows_of(device->pdev, windows, WINDOWS);

	if (count < 0)
		return count;
	opening.windows = windows;
	opening.window_count = count;
	return pcr_open(device->unit->rust, &opening, space);
}

static void look_after(struct work_struct *work);

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
	if (policy->is_deferred)
		pc_defer(&device->ops);
	device->unit = unit;
	device->pdev = pci_dev_get(pdev);
	device->policy = *policy;
	device->has_driver = device->is_there = true;
	INIT_DELAYED_WORK(&device->look, look_after);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&device->timer, on_tick, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
#else
	hrtimer_init(&device->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	device->timer.function = on_tick;
#endif
	pc_wake_ports(pdev);
	return device;
}

static void drop(struct pc_device *device)
{
	pc_let_ports_sleep(device->pdev);
	pci_dev_put(device->pdev);
	module_put(THIS_MODULE);
	free_percpu(device->counts);
	kfree(device);
}

static int open(struct pc_device *device, bool has_choice)
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
	error = pc_close(device->pdev, has_choice);
	if (error)
		return error;
	error = open_space(device, bits, &device->space);
	if (!error)
		device->last = DMA_BIT_MASK(bits);
	return error;
}

static void close(struct pc_device *device)
{
	pcr_close(device->space);
	if (device->is_there)
		pc_let(device->pdev);
}

/* Makes the kernel shut the device down ahead of the unit before a reboot. */
static bool link(struct pc_device *device)
{
	device->link = device_link_add(&device->pdev->dev, &pc_platform->dev, DL_FLAG_STATELESS);
	return device->link;
}

bool pc_is_protected(struct pci_dev *pdev)
{
	return pdev->dev.dma_ops && pdev->dev.dma_ops->map_sg == pc_ops.map_sg;
}

/* A driver is bound while buffers of the former driver are still mapped. */
static void take_over(struct pc_device *device)
{
	device->has_driver = true;
	if (!link(device))
		pr_warn("nothing stops %s ahead of its unit\n", pci_name(device->pdev));
	pr_info("%s is protected as before: %s, %s; buffers of its former driver are still mapped\n",
		pci_name(device->pdev), device->policy.design, device->policy.is_deferred ? "deferred" : "strict");
}

/* The device has no driver that does DMA yet. The caller holds the device's lock. */
int pc_protect(struct pci_dev *pdev, const struct pc_policy *policy, bool has_choice)
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
	if (pc_is_protected(pdev)) {
		take_over(pc_device_of(&pdev->dev));
		return 0;
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
	if (pc_is_broken_by_translation(pdev)) {
		pr_err("%s is not protected: it does not work behind the IOMMU of this chipset\n", pci_name(pdev));
		return -EOPNOTSUPP;
	}
	if (pc_shares_id(pdev) || pc_is_exposed(pdev) || is_reserved_for(pdev, &opening))
		return -EOPNOTSUPP;
	device = make(pdev, policy, unit);
	if (!device)
		return -ENOMEM;
	device->maps_reserved = maps_reserved;
	error = open(device, has_choice);
	if (error) {
		drop(device);
		return error;
	}
	if (!link(device)) {
		pr_err("%s is not protected: nothing would stop it ahead of its unit\n", pci_name(pdev));
		close(device);
		drop(device);
		return -ENOMEM;
	}
	set_dma_ops(&pdev->dev, &device->ops);
	mutex_lock(&pc_devices_lock);
	list_add_tail(&device->list, &pc_devices);
	mutex_unlock(&pc_devices_lock);
	pr_info("%s is protected: %s, %s\n", pci_name(pdev), policy->design, policy->is_deferred ? "deferred" : "strict");
	return 0;
}

/* Exchanges the domain of a device that is in the list. */
static int exchange(struct pc_device *device, u8 bits)
{
	struct pcr_space *before = device->space, *after;
	int error = READ_ONCE(device->is_cut_off) ? -EIO : pcr_detach(before, pc_own_id(device->pdev));

	if (error)
		return error;
	error = open_space(device, bits, &after);
	if (error)
		return pcr_attach(before, pc_own_id(device->pdev));
	device->space = after;
	device->last = DMA_BIT_MASK(bits);
	pcr_close(before);
	return 0;
}

int pc_reopen(struct pc_device *device, u8 bits)
{
	int error;

	/* Readers of the list access the domains, and what looks at ports may cut the device off. */
	mutex_lock(&pc_devices_lock);
	/* So may the timer. */
	stop_ticking(device);
	error = exchange(device, bits);
	/* For what the former domain still has to do, if that stays. */
	pc_start_ticking(device);
	mutex_unlock(&pc_devices_lock);
	return error;
}

/* ---- going ---- */

/*
 * The buffers that are mapped, and that a late unmap will name: those that drivers have mapped and not unmapped. The
 * domain also has those that firmware reserves, those whose unmap waits for a flush, and those that are lost. The last
 * two are not apart: a flush that fails leaves what it was for in its queue.
 *
 * Nothing maps meanwhile, and an unmap is counted after it, so this never counts too few.
 */
static u64 left(struct pc_device *device)
{
	struct pc_counts sum = pc_counts_of(device);
	s64 mapped = sum.maps - sum.unmaps + atomic64_read(&device->lasting) - atomic64_read(&device->lost);

	return mapped > 0 ? mapped : 0;
}

/* Ends the protection. Nothing is mapped any more, and the caller holds the device's lock. */
static void end(struct pc_device *device)
{
	mutex_lock(&pc_devices_lock);
	list_del(&device->list);
	mutex_unlock(&pc_devices_lock);
	set_dma_ops(&device->pdev->dev, NULL);
	/* The last unmap may still be returning, in the text of this module. */
	pc_wait_for_callers();
	stop_ticking(device);
	close(device);
	drop(device);
}

static struct workqueue_struct *looking;

static void look_later(struct pc_device *device)
{
	device->is_looked_after = queue_delayed_work(looking, &device->look, msecs_to_jiffies(LEFT_MS));
}

static void look_after(struct work_struct *work)
{
	struct pc_device *device = container_of(to_delayed_work(work), struct pc_device, look);
	struct pci_dev *pdev = pci_dev_get(device->pdev);

	device_lock(&pdev->dev);
	device->is_looked_after = false;
	/* If a driver was bound in the meantime, its unbinding checks again. */
	if (!device->has_driver && left(device)) {
		look_later(device);
	} else if (!device->has_driver) {
		pr_info("%s: all that its driver had left is unmapped\n", pci_name(pdev));
		end(device);
	}
	device_unlock(&pdev->dev);
	pci_dev_put(pdev);
}

/* The driver was unbound, and the driver core has released everything that it held for the driver. */
void pc_unprotect(struct pci_dev *pdev)
{
	struct pc_device *device = pc_device_of(&pdev->dev);
	u64 count = left(device);

	if (device->link)
		device_link_del(device->link);
	device->has_driver = false;
	if (count)
		pr_warn("%s: its driver has left %llu buffers mapped; it stays protected until they are unmapped\n",
			pci_name(pdev), count);
	/* Work that cannot be cancelled waits for the device's lock, which is held here, and will do the check. */
	if (device->is_looked_after && !cancel_delayed_work(&device->look))
		return;
	if (count)
		look_later(device);
	else
		end(device);
}

/* The device was removed, and another device may come in its place. */
void pc_leave(struct pci_dev *pdev)
{
	device_lock(&pdev->dev);
	if (pc_is_protected(pdev)) {
		struct pc_device *device = pc_device_of(&pdev->dev);

		mutex_lock(&pc_devices_lock);
		pcr_detach(device->space, pc_own_id(pdev));
		device->is_there = false;
		mutex_unlock(&pc_devices_lock);
	}
	device_unlock(&pdev->dev);
}

int pc_protect_start(void)
{
	looking = alloc_workqueue("portcullis", WQ_UNBOUND, 0);
	return looking ? 0 : -ENOMEM;
}

void pc_protect_stop(void)
{
	destroy_workqueue(looking);
}
