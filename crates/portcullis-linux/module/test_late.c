// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Pages that are mapped for the attacker and stay mapped after its driver is unbound, like received pages that
 * sockets still hold (page_pool).
 */
#include <linux/dma-mapping.h>
#include <linux/module.h>

#include "test.h"

#define SETS 4
#define PAGES 8

static struct late {
	struct device *dev;
	struct page *pages[PAGES];
	dma_addr_t at[PAGES];
} lates[SETS];

static void give(struct late *late)
{
	unsigned int k;

	for (k = 0; k < PAGES && late->pages[k]; k++) {
		dma_unmap_page(late->dev, late->at[k], PAGE_SIZE, DMA_FROM_DEVICE);
		__free_page(late->pages[k]);
	}
	put_device(late->dev);
	*late = (struct late) {};
}

static int take(struct late *late)
{
	unsigned int k;

	late->dev = get_device(&test_edu_device->dev);
	for (k = 0; k < PAGES; k++) {
		struct page *page = alloc_page(GFP_KERNEL);

		late->at[k] = page ? dma_map_page(late->dev, page, 0, PAGE_SIZE, DMA_FROM_DEVICE) : DMA_MAPPING_ERROR;
		if (dma_mapping_error(late->dev, late->at[k])) {
			if (page)
				__free_page(page);
			give(late);
			return -ENOMEM;
		}
		late->pages[k] = page;
	}
	return 0;
}

/* "take 0" maps the set of pages with this number, "give 0" unmaps it. */
static ssize_t late_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	unsigned int index;
	char text[16], word[8];
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (sscanf(text, "%7s %u", word, &index) != 2 || index >= SETS)
		return -EINVAL;
	if (!strcmp(word, "give") && lates[index].dev)
		give(&lates[index]);
	else if (!strcmp(word, "take") && !lates[index].dev && test_edu_device)
		error = take(&lates[index]);
	else
		error = -EINVAL;
	return error ?: len;
}

const struct file_operations test_late = { .owner = THIS_MODULE, .write = late_write };
