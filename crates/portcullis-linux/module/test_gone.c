// SPDX-License-Identifier: MIT OR GPL-2.0
/* A device on the first bus that answers no reads of its configuration, like one without power. */
#include <linux/module.h>

#include "test.h"

static struct pci_bus *bus;
static unsigned int gone_devfn;
static struct pci_ops *before, ops;

static int read(struct pci_bus *at, unsigned int devfn, int where, int size, u32 *value)
{
	if (devfn != gone_devfn)
		return before->read(at, devfn, where, size, value);
	*value = ~0;
	return PCIBIOS_SUCCESSFUL;
}

static void come_back(void)
{
	if (bus)
		pci_bus_set_ops(bus, before);
	bus = NULL;
}

static int go(unsigned int domain, unsigned int number, unsigned int devfn)
{
	come_back();
	bus = pci_find_bus(domain, number);
	if (!bus || !pci_is_root_bus(bus)) {
		bus = NULL;
		return -ENODEV;
	}
	gone_devfn = devfn;
	before = bus->ops;
	ops = *before;
	ops.read = read;
	pci_bus_set_ops(bus, &ops);
	return 0;
}

/* "0000:00:05.0": this device; an empty line: none. */
static ssize_t gone_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	unsigned int domain, number, slot, function;
	char text[16];
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (sscanf(text, "%x:%x:%x.%u", &domain, &number, &slot, &function) == 4)
		error = go(domain, number, PCI_DEVFN(slot, function));
	else
		come_back();
	return error ?: len;
}

const struct file_operations test_gone = { .owner = THIS_MODULE, .write = gone_write };

void test_gone_stop(void)
{
	come_back();
}
