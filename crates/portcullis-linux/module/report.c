// SPDX-License-Identifier: MIT OR GPL-2.0
/* /sys/kernel/debug/portcullis: a line for each device and each unit, with names and values in turn. */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>

#include "faults.h"
#include "portcullis.h"

static struct dentry *folder;

static int devices_show(struct seq_file *to, void *data)
{
	struct pc_device *device;

	mutex_lock(&pc_devices_lock);
	list_for_each_entry(device, &pc_devices, list) {
		struct pc_counts sum = pc_counts_of(device);
		struct pcr_space_use use;

		pcr_space_use(device->space, &use);
		seq_printf(to, "%s design %s protection %s bits %u window_us_max %llu late_us_max %llu maps %llu unmaps %llu bytes %llu lasting %lld failed %llu live_ranges %llu queued_unmaps %llu table_pages %llu record_bytes %llu\n",
			   pci_name(device->pdev), device->policy.design, device->policy.is_deferred ? "deferred" : "strict",
			   fls64(device->last), use.window_us_max, pc_late_us_max(device), sum.maps, sum.unmaps, sum.bytes,
			   (s64)atomic64_read(&device->lasting), sum.failed, use.live_ranges, use.queued_unmaps,
			   use.table_pages, use.record_bytes);
	}
	mutex_unlock(&pc_devices_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(devices);

static int units_show(struct seq_file *to, void *data)
{
	int index;

	for (index = 0; index < pc_unit_count; index++) {
		struct pc_unit *unit = &pc_units[index];
		struct pcr_unit_use use;

		pcr_unit_use(unit->rust, &use);
		seq_printf(to, "%#llx segment %u cap %#llx ecap %#llx bits %u commits %llu waits %llu faults %lld faults_lost %lld remaps_interrupts %d forwarded %lld\n",
			   unit->place.base, unit->place.segment, use.capability, use.extended_capability, use.address_bits,
			   use.commits, use.waits, (s64)atomic64_read(&unit->faults), (s64)atomic64_read(&unit->faults_lost),
			   !!unit->remapper, (s64)atomic64_read(&unit->forwarded));
	}
	seq_printf(to, "memory pages %lld allocations %lld\n", pc_pages_lent(), pc_allocations_lent());
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(units);

/* The fault timer counts meanwhile. */
static int faults_show(struct seq_file *to, void *data)
{
	int index;
	u32 k;

	for (index = 0; index < pc_unit_count; index++) {
		struct pc_unit *unit = &pc_units[index];
		struct fault_table *table = unit->faults_by;
		u32 used = smp_load_acquire(&table->used);

		for (k = 0; k < used; k++) {
			struct fault_source *source = &table->sources[k];

			seq_printf(to, "%04x:%02x:%02x.%u faults %llu\n", unit->place.segment, PCI_BUS_NUM(source->id),
				   PCI_SLOT(source->id), PCI_FUNC(source->id), READ_ONCE(source->count));
		}
		if (READ_ONCE(table->others))
			seq_printf(to, "others faults %llu\n", READ_ONCE(table->others));
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(faults);

void pc_report_start(void)
{
	folder = debugfs_create_dir("portcullis", NULL);
	debugfs_create_file("devices", 0400, folder, NULL, &devices_fops);
	debugfs_create_file("units", 0400, folder, NULL, &units_fops);
	debugfs_create_file("faults", 0400, folder, NULL, &faults_fops);
}

void pc_report_stop(void)
{
	debugfs_remove_recursive(folder);
}
