// SPDX-License-Identifier: MIT OR GPL-2.0
/* Pages that are mapped for the attacker, and outlive its driver, as received ones do: sockets hold them, and a page pool unmaps them later. */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/version.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#include <net/page_pool/helpers.h>
#else
#include <net/page_pool.h>
#endif

#include "test.h"

#define POOLS 4
#define PAGES 8

static struct {
	struct page_pool *pool;
	struct page *pages[PAGES];
} lates[POOLS];

static void give(unsigned int index)
{
	unsigned int k;

	for (k = 0; k < PAGES; k++)
		if (lates[index].pages[k])
			page_pool_put_full_page(lates[index].pool, lates[index].pages[k], false);
	lates[index].pool = NULL;
}

static int take(unsigned int index)
{
	struct page_pool_params params = {
		.flags = PP_FLAG_DMA_MAP, .pool_size = PAGES, .nid = NUMA_NO_NODE, .dev = &test_edu_device->dev, .dma_dir = DMA_FROM_DEVICE,
	};
	struct page_pool *pool = page_pool_create(&params);
	unsigned int k;
	int error = 0;

	if (IS_ERR(pool))
		return PTR_ERR(pool);
	lates[index].pool = pool;
	for (k = 0; k < PAGES; k++) {
		lates[index].pages[k] = page_pool_dev_alloc_pages(pool);
		if (!lates[index].pages[k])
			error = -ENOMEM;
	}
	if (!error)
		pr_info("late: pool %u has %u pages, the first at %#llx\n", index, PAGES,
			(u64)page_pool_get_dma_addr(lates[index].pages[0]));
	/* The driver is done with it; it goes with its last page. */
	page_pool_destroy(pool);
	if (error)
		give(index);
	return error;
}

/* "take 0" or "give 0": a pool by its number. */
static ssize_t late_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	unsigned int index;
	char text[16], word[8];
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (sscanf(text, "%7s %u", word, &index) != 2 || index >= POOLS)
		return -EINVAL;
	if (!strcmp(word, "give") && lates[index].pool)
		give(index);
	else if (!strcmp(word, "take") && !lates[index].pool && test_edu_device)
		error = take(index);
	else
		error = -EINVAL;
	return error ?: len;
}

const struct file_operations test_late = { .owner = THIS_MODULE, .write = late_write };
