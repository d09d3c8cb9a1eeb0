// SPDX-License-Identifier: MIT OR GPL-2.0
/* Maps in atomic context with no page left: first they succeed from the domain's reserve, then they are refused. */
#include <linux/dma-mapping.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/vmalloc.h>

#include "test.h"

#define BUFFER_BYTES 65536
#define MAPS_MAX 65536

/* Takes all pages that the allocator gives out in atomic context. */
static void take_all(struct list_head *taken)
{
	struct page *page;

	while ((page = alloc_page(GFP_ATOMIC | __GFP_NOWARN)) != NULL)
		list_add(&page->lru, taken);
}

static void give_back(struct list_head *taken)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, taken, lru)
		__free_page(page);
}

static unsigned int map_until_refused(struct device *dev, void *memory, dma_addr_t *at)
{
	unsigned int count;

	for (count = 0; count < MAPS_MAX; count++) {
		at[count] = dma_map_single(dev, memory, BUFFER_BYTES, DMA_FROM_DEVICE);
		if (dma_mapping_error(dev, at[count]))
			break;
	}
	return count;
}

static int exhaust(struct device *dev, void *memory, dma_addr_t *at)
{
	LIST_HEAD(taken);
	unsigned long flags;
	unsigned int count, again, k;

	/* Nothing else runs on this CPU until interrupts are on again. */
	local_irq_save(flags);
	take_all(&taken);
	count = map_until_refused(dev, memory, at);
	for (k = 0; k < count; k++)
		dma_unmap_single(dev, at[k], BUFFER_BYTES, DMA_FROM_DEVICE);
	/* There is still no page, but what was unmapped can be mapped again. */
	again = map_until_refused(dev, memory, at);
	for (k = 0; k < again; k++)
		dma_unmap_single(dev, at[k], BUFFER_BYTES, DMA_FROM_DEVICE);
	give_back(&taken);
	local_irq_restore(flags);
	if (!count || count == MAPS_MAX) {
		pr_err("exhaust: %u of at most %u are mapped, which shows nothing\n", count, MAPS_MAX);
		return -EIO;
	}
	pr_info("exhaust: %u mapped, then none; all unmapped, %s again\n", count, again ? "mapped" : "none mapped");
	return 0;
}

static ssize_t exhaust_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	unsigned int domain, bus, slot, function;
	struct pci_dev *pdev;
	dma_addr_t *at;
	char text[32];
	void *memory;
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (sscanf(text, "%x:%x:%x.%u", &domain, &bus, &slot, &function) != 4)
		return -EINVAL;
	pdev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!pdev)
		return -ENODEV;
	at = vmalloc(array_size(MAPS_MAX, sizeof(*at)));
	memory = (void *)__get_free_pages(GFP_KERNEL, get_order(BUFFER_BYTES));
	error = at && memory ? exhaust(&pdev->dev, memory, at) : -ENOMEM;
	free_pages((unsigned long)memory, get_order(BUFFER_BYTES));
	vfree(at);
	pci_dev_put(pdev);
	return error ?: len;
}

const struct file_operations test_exhaust = { .owner = THIS_MODULE, .write = exhaust_write };
