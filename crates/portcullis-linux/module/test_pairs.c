// SPDX-License-Identifier: MIT OR GPL-2.0
/* What a map and an unmap take. */
#include <linux/dma-mapping.h>
#include <linux/module.h>

#include "test.h"

#define BATCH_MAX 64
#define BUFFER_BYTES 65536

static int pairs(struct pci_dev *pdev, unsigned int bytes, unsigned int count, unsigned int batch)
{
	u8 *memory = (u8 *)__get_free_pages(GFP_KERNEL, get_order(BUFFER_BYTES));
	u64 maps_ns = 0, unmaps_ns = 0, begun;
	dma_addr_t at[BATCH_MAX];
	unsigned int done, k;

	if (!memory)
		return -ENOMEM;
	for (done = 0; done < count; done += batch) {
		begun = ktime_get_ns();
		for (k = 0; k < batch; k++)
			at[k] = dma_map_single(&pdev->dev, memory + (k * PAGE_SIZE) % (BUFFER_BYTES - bytes + 1), bytes,
					       DMA_FROM_DEVICE);
		maps_ns += ktime_get_ns() - begun;
		for (k = 0; k < batch; k++)
			if (dma_mapping_error(&pdev->dev, at[k])) {
				pr_err("map %u of %u fails\n", done + k, count);
				free_pages((unsigned long)memory, get_order(BUFFER_BYTES));
				return -ENOMEM;
			}
		begun = ktime_get_ns();
		for (k = 0; k < batch; k++)
			dma_unmap_single(&pdev->dev, at[k], bytes, DMA_FROM_DEVICE);
		unmaps_ns += ktime_get_ns() - begun;
	}
	free_pages((unsigned long)memory, get_order(BUFFER_BYTES));
	pr_info("pairs %u bytes %u batch %u map_ns %llu unmap_ns %llu\n", done, bytes, batch, div_u64(maps_ns, done),
		div_u64(unmaps_ns, done));
	return 0;
}

static ssize_t pairs_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	unsigned int domain, bus, slot, function, bytes, count, batch;
	struct pci_dev *pdev;
	char text[64];
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (sscanf(text, "%x:%x:%x.%u %u %u %u", &domain, &bus, &slot, &function, &bytes, &count, &batch) != 7 || !batch ||
	    batch > BATCH_MAX || !bytes || bytes > BUFFER_BYTES)
		return -EINVAL;
	pdev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!pdev)
		return -ENODEV;
	error = pairs(pdev, bytes, count, batch);
	pci_dev_put(pdev);
	return error ?: len;
}

const struct file_operations test_pairs = { .owner = THIS_MODULE, .write = pairs_write };
