// SPDX-License-Identifier: MIT OR GPL-2.0
/* A driver that is bound slowly: it takes a second from the moment that the device has it until others are told. */
#include <linux/delay.h>
#include <linux/module.h>

#include "test.h"

static char slow_name[16];

static int on_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct device *dev = data;

	if (event == BUS_NOTIFY_BIND_DRIVER && !strcmp(dev_name(dev), slow_name)) {
		slow_name[0] = 0;
		msleep(1000);
	}
	return NOTIFY_DONE;
}

/* Ahead of the module under test. */
static struct notifier_block notifier = { .notifier_call = on_event, .priority = 1 };

int test_slow_start(void)
{
	return bus_register_notifier(&pci_bus_type, &notifier);
}

void test_slow_stop(void)
{
	bus_unregister_notifier(&pci_bus_type, &notifier);
}

/* "0000:00:05.1": the next time that this device gets a driver. */
static ssize_t slow_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	char text[sizeof(slow_name)];
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	strscpy(slow_name, strim(text), sizeof(slow_name));
	return len;
}

const struct file_operations test_slow = { .owner = THIS_MODULE, .write = slow_write };
