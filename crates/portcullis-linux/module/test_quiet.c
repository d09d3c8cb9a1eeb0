// SPDX-License-Identifier: MIT OR GPL-2.0
/* Maps that cannot succeed, and whose driver wants no message about it, or wants one. */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/scatterlist.h>

#include "test.h"

/* An address for nothing, one for a list of nothing, and memory for a device that can address none. */
static int fail_all(struct device *dev, struct page *page, unsigned long attrs)
{
	u64 before = dev->coherent_dma_mask;
	struct scatterlist piece;
	dma_addr_t at;
	void *memory;

	at = dma_map_page_attrs(dev, page, 0, 0, DMA_TO_DEVICE, attrs);
	if (!dma_mapping_error(dev, at))
		return -EIO;
	sg_init_table(&piece, 1);
	sg_set_page(&piece, page, 0, 0);
	if (dma_map_sg_attrs(dev, &piece, 1, DMA_TO_DEVICE, attrs))
		return -EIO;
	dev->coherent_dma_mask = 0xff;
	memory = dma_alloc_attrs(dev, PAGE_SIZE, &at, GFP_KERNEL, attrs);
	dev->coherent_dma_mask = before;
	return memory ? -EIO : 0;
}

/* "quiet" or "loud" */
static ssize_t quiet_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	struct page *page;
	char text[16];
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (!test_edu_device)
		return -ENODEV;
	page = alloc_page(GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	error = fail_all(&test_edu_device->dev, page, strcmp(text, "quiet\n") ? 0 : DMA_ATTR_NO_WARN);
	__free_page(page);
	return error ?: len;
}

const struct file_operations test_quiet = { .owner = THIS_MODULE, .write = quiet_write };
