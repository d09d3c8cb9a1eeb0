// SPDX-License-Identifier: MIT OR GPL-2.0
/* Records that a device also uses the id of another function, as the kernel's quirks do for some devices. */
#include <linux/bitmap.h>
#include <linux/module.h>

#include "test.h"

static int set_alias(struct pci_dev *pdev, unsigned int devfn)
{
	unsigned long *mask = bitmap_zalloc(256, GFP_KERNEL);

	if (!mask)
		return -ENOMEM;
	__set_bit(devfn, mask);
	/* The kernel frees it with the device. */
	bitmap_free(xchg(&pdev->dma_alias_mask, mask));
	return 0;
}

/* "0000:00:01.0 0x10": the device also uses the id of function 02.0 on its bus. */
static ssize_t alias_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	unsigned int domain, bus, slot, function, devfn;
	struct pci_dev *pdev;
	char text[32];
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (sscanf(text, "%x:%x:%x.%u %x", &domain, &bus, &slot, &function, &devfn) != 5 || devfn > 255)
		return -EINVAL;
	pdev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!pdev)
		return -ENODEV;
	error = set_alias(pdev, devfn);
	pci_dev_put(pdev);
	return error ?: len;
}

const struct file_operations test_alias = { .owner = THIS_MODULE, .write = alias_write };
