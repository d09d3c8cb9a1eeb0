// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Looks at a unit after portcullis.ko was shut down for a reboot, which no program can see, and ends the job. Devices
 * are shut down in the opposite order of their coming, so this device has to come before that of the module.
 */
#include <linux/io.h>
#include <linux/module.h>
#include <linux/platform_device.h>

#include "test.h"

#define GSTS 0x1c
#define TRANSLATES BIT(31)

static void __iomem *registers;

static void look(struct platform_device *device)
{
	bool translates = readl(registers + GSTS) & TRANSLATES;

	if (!translates)
		pr_emerg("FAILED S1 reach: translation is off while devices are protected\n");
	pr_emerg("JOB-DONE %d\n", !translates);
}

static struct platform_driver driver = { .driver = { .name = "portcullis_test_end" }, .shutdown = look };
static struct platform_device *end;

/* The address of a unit's registers. */
static ssize_t end_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	u64 at;
	int error = kstrtou64_from_user(from, len, 0, &at);

	if (error || registers)
		return error ?: -EBUSY;
	registers = ioremap(at, PAGE_SIZE);
	if (!registers)
		return -ENOMEM;
	error = platform_driver_register(&driver);
	if (!error) {
		end = platform_device_register_simple(driver.driver.name, PLATFORM_DEVID_NONE, NULL, 0);
		error = PTR_ERR_OR_ZERO(end);
		if (error)
			platform_driver_unregister(&driver);
	}
	if (!error)
		return len;
	iounmap(registers);
	registers = NULL;
	return error;
}

const struct file_operations test_end = { .owner = THIS_MODULE, .write = end_write };

void test_end_stop(void)
{
	if (!registers)
		return;
	platform_device_unregister(end);
	platform_driver_unregister(&driver);
	iounmap(registers);
}
