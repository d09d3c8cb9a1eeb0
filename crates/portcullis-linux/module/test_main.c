// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Tests, not for servers: an attacker, and costs of operations. They use the DMA API, so they test any provider of it.
 * The files are in /sys/kernel/debug/portcullis_test, and results go to the log.
 *
 *   echo 0000:00:04.0 2048 16384 32 > pairs    maps and unmaps 2 KiB, 16384 pairs, 32 at a time
 *   echo 10.0.2.99 1400 10000 > datagrams      10,000 datagrams of 1,400 bytes, to another card of this machine
 *   echo /dev/nvme0n1 10000 > reads            10,000 reads of 4 KiB
 *   echo buffer 3 > attack      QEMU's edu device writes to a buffer before and after its unmap, three times
 *   echo memory 3 > attack      likewise, by the address of the memory instead of that of the mapping
 *   echo lengths > attack       likewise, of two pages that are unmapped by a wrong address or a wrong length
 *   echo late > attack          likewise, under deferred protection, while the timer that is to flush is kept from it
 *   echo 0000:00:04.0 > exhaust maps with interrupts off when no memory is left
 *   echo 0x1fff0000 0x20000000 > places     checks that buffers of edu lie within boundaries, outside the memory of
 *                               other devices, and outside this range, which firmware reserves
 *   echo take 0 > late          pages are mapped for edu, and stay mapped without its driver until `give 0`
 *   echo 0000:00:01.0 0x10 > alias         the device also uses the id of 02.0
 *   echo 0000:00:01.0 > slow    the next bind of this device's driver takes a second
 *   echo quiet > quiet          maps of edu that cannot succeed, with DMA_ATTR_NO_WARN; `loud`: without it
 *   echo try > steps            that newer kernels' API of two steps refuses edu
 *   echo 0xfed90000 > end       when the machine reboots, the job ends with whether this unit translates
 *   echo 0000:00:05.0 > gone    this device on the first bus answers no reads of its configuration; none: all do
 */
#include <linux/debugfs.h>
#include <linux/kernel_stat.h>
#include <linux/module.h>
#include <linux/tick.h>
#include <linux/uaccess.h>

#include "test.h"

static struct dentry *folder;

int test_text(const char __user *from, size_t len, char *to, size_t room)
{
	if (len >= room)
		return -EINVAL;
	if (copy_from_user(to, from, len))
		return -EFAULT;
	to[len] = 0;
	return 0;
}

/*
 * The busy time of the CPU. Idle time is excluded: a sender also waits for room in a queue, and that time depends more
 * on the simulated card than on the work.
 */
int test_busy_ns(u64 *busy_ns)
{
	u64 idle_us = get_cpu_idle_time_us(0, NULL);

	if (num_online_cpus() != 1 || idle_us == -1ull) {
		pr_err("busy time is known only with one CPU, and if idle time is counted\n");
		return -EINVAL;
	}
	*busy_ns = ktime_get_ns() - idle_us * NSEC_PER_USEC;
	return 0;
}

static int __init portcullis_test_init(void)
{
	int error = test_slow_start();

	if (error)
		return error;
	error = test_edu_register();
	if (error) {
		test_slow_stop();
		return error;
	}
	folder = debugfs_create_dir("portcullis_test", NULL);
	debugfs_create_file("pairs", 0200, folder, NULL, &test_pairs);
	debugfs_create_file("datagrams", 0200, folder, NULL, &test_datagrams);
	debugfs_create_file("reads", 0200, folder, NULL, &test_reads);
	debugfs_create_file("attack", 0200, folder, NULL, &test_attack);
	debugfs_create_file("exhaust", 0200, folder, NULL, &test_exhaust);
	debugfs_create_file("places", 0200, folder, NULL, &test_places);
	debugfs_create_file("late", 0200, folder, NULL, &test_late);
	debugfs_create_file("alias", 0200, folder, NULL, &test_alias);
	debugfs_create_file("slow", 0200, folder, NULL, &test_slow);
	debugfs_create_file("quiet", 0200, folder, NULL, &test_quiet);
	debugfs_create_file("steps", 0200, folder, NULL, &test_steps);
	debugfs_create_file("end", 0200, folder, NULL, &test_end);
	debugfs_create_file("gone", 0200, folder, NULL, &test_gone);
	return 0;
}

static void __exit portcullis_test_exit(void)
{
	debugfs_remove_recursive(folder);
	test_gone_stop();
	test_end_stop();
	test_edu_unregister();
	test_slow_stop();
}

module_init(portcullis_test_init);
module_exit(portcullis_test_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Tests of portcullis.ko");
