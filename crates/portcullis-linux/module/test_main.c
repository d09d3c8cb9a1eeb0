// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Not for servers: an attacker, and a count of instructions, both through the DMA API, so that whoever serves the device is tried. In
 * /sys/kernel/debug/portcullis_test; what they find goes to the log.
 *
 *   echo 0000:00:04.0 2048 16384 32 > pairs    maps and unmaps of 2 KiB, so many pairs, 32 at a time
 *   echo 3 > attack                            QEMU's edu device writes to a buffer after its unmap, three times
 */
#include <linux/debugfs.h>
#include <linux/module.h>
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

static int __init portcullis_test_init(void)
{
	int error = pci_register_driver(&test_edu);

	if (error)
		return error;
	folder = debugfs_create_dir("portcullis_test", NULL);
	debugfs_create_file("pairs", 0200, folder, NULL, &test_pairs);
	debugfs_create_file("attack", 0200, folder, NULL, &test_attack);
	return 0;
}

static void __exit portcullis_test_exit(void)
{
	debugfs_remove_recursive(folder);
	pci_unregister_driver(&test_edu);
}

module_init(portcullis_test_init);
module_exit(portcullis_test_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Tests of portcullis.ko");
