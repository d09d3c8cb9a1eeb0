// SPDX-License-Identifier: MIT OR GPL-2.0
/* The cost of a map and of an unmap. */
#include <linux/dma-mapping.h>
#include <linux/module.h>

#include "test.h"

#define BATCH_MAX 64
#define BUFFER_BYTES 65536

struct pairs {
	struct device *dev;
	unsigned int bytes, count, batch;
	void *memory;
	dma_addr_t at[BATCH_MAX];
	u64 maps_ns, unmaps_ns, clock_ns;
};

/* Each buffer begins at a page, and all lie within the allocated memory. */
static void *buffer(struct pairs *pairs, unsigned int index)
{
	unsigned int extent = PAGE_ALIGN(pairs->bytes);

	return pairs->memory + index % (BUFFER_BYTES / extent) * extent;
}

static int map_batch(struct pairs *pairs)
{
	void *buffers[BATCH_MAX];
	unsigned int k;
	u64 begun;

	for (k = 0; k < pairs->batch; k++)
		buffers[k] = buffer(pairs, k);
	begun = ktime_get_ns();
	for (k = 0; k < pairs->batch; k++)
		pairs->at[k] = dma_map_single(pairs->dev, buffers[k], pairs->bytes, DMA_FROM_DEVICE);
	pairs->maps_ns += ktime_get_ns() - begun;
	for (k = 0; k < pairs->batch; k++)
		if (dma_mapping_error(pairs->dev, pairs->at[k])) {
			pr_err("a map of %u bytes fails\n", pairs->bytes);
			return -EIO;
		}
	return 0;
}

static void unmap_batch(struct pairs *pairs)
{
	unsigned int k;
	u64 begun = ktime_get_ns();

	for (k = 0; k < pairs->batch; k++)
		dma_unmap_single(pairs->dev, pairs->at[k], pairs->bytes, DMA_FROM_DEVICE);
	pairs->unmaps_ns += ktime_get_ns() - begun;
	/* Both times include the cost of reading the clock, which is measured here. */
	begun = ktime_get_ns();
	pairs->clock_ns += ktime_get_ns() - begun;
}

static int run(struct pairs *pairs)
{
	unsigned int done;
	int error;

	for (done = 0; done < pairs->count; done += pairs->batch) {
		error = map_batch(pairs);
		if (error)
			return error;
		unmap_batch(pairs);
	}
	pr_info("pairs %u bytes %u batch %u map_ns %llu unmap_ns %llu pair_ns %llu\n", done, pairs->bytes, pairs->batch,
		DIV_ROUND_CLOSEST_ULL(pairs->maps_ns - pairs->clock_ns, done),
		DIV_ROUND_CLOSEST_ULL(pairs->unmaps_ns - pairs->clock_ns, done),
		DIV_ROUND_CLOSEST_ULL(pairs->maps_ns + pairs->unmaps_ns - 2 * pairs->clock_ns, done));
	return 0;
}

static int read_pairs(const char *text, struct pairs *pairs)
{
	unsigned int domain, bus, slot, function;
	struct pci_dev *pdev;

	if (sscanf(text, "%x:%x:%x.%u %u %u %u", &domain, &bus, &slot, &function, &pairs->bytes, &pairs->count,
		   &pairs->batch) != 7 || !pairs->count || !pairs->batch || pairs->batch > BATCH_MAX || !pairs->bytes ||
	    pairs->bytes > BUFFER_BYTES)
		return -EINVAL;
	pdev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!pdev)
		return -ENODEV;
	pairs->dev = &pdev->dev;
	return 0;
}

static ssize_t pairs_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	struct pairs *pairs = kzalloc(sizeof(*pairs), GFP_KERNEL);
	char text[64];
	int error = -ENOMEM;

	if (!pairs)
		return error;
	pairs->memory = (void *)__get_free_pages(GFP_KERNEL, get_order(BUFFER_BYTES));
	if (pairs->memory)
		error = test_text(from, len, text, sizeof(text)) ?: read_pairs(text, pairs);
	if (!error) {
		error = run(pairs);
		put_device(pairs->dev);
	}
	free_pages((unsigned long)pairs->memory, get_order(BUFFER_BYTES));
	kfree(pairs);
	return error ?: len;
}

const struct file_operations test_pairs = { .owner = THIS_MODULE, .write = pairs_write };
