// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Where the DMA API places buffers: within a device's boundaries, and not in memory of other devices or of firmware.
 */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/scatterlist.h>

#include "test.h"

#define BOUNDARY 65536
#define LISTS 24
/* At most start addresses, one of the pieces of a list lies across a boundary. */
#define PIECE_BYTES (5 * PAGE_SIZE)
/* Pieces begin within a page, as those of unaligned requests to a disk do. */
#define OFFSET 512
/* The short list is shorter than the distance of two boundaries. */
#define PIECES_SHORT 3
#define PIECES_LONG 7

#define PLACES 1024
#define PLACE_ORDER 10
#define PLACE_BYTES (PAGE_SIZE << PLACE_ORDER)

struct lists {
	struct scatterlist pieces[LISTS][PIECES_LONG];
};

static int crossings(struct scatterlist *pieces, int pieces_count)
{
	int k, count = 0;

	for (k = 0; k < pieces_count; k++) {
		u64 first = sg_dma_address(&pieces[k]);

		count += first / BOUNDARY != (first + sg_dma_len(&pieces[k]) - 1) / BOUNDARY;
	}
	return count;
}

static void fill(struct scatterlist *list, void *memory, int pieces)
{
	int k;

	sg_init_table(list, pieces);
	for (k = 0; k < pieces; k++)
		sg_set_buf(&list[k], memory + k * PIECE_BYTES + OFFSET, PIECE_BYTES - OFFSET);
}

/* The number of pieces of all lists that lie across a boundary; negative if a list cannot be mapped. */
static int map_lists(struct device *dev, struct lists *lists, void *memory, int pieces)
{
	int count, done, crossed = 0;

	for (count = 0; count < LISTS; count++) {
		fill(lists->pieces[count], memory, pieces);
		if (dma_map_sg(dev, lists->pieces[count], pieces, DMA_FROM_DEVICE) != pieces)
			break;
		crossed += crossings(lists->pieces[count], pieces);
	}
	for (done = 0; done < count; done++)
		dma_unmap_sg(dev, lists->pieces[done], pieces, DMA_FROM_DEVICE);
	return count == LISTS ? crossed : -EIO;
}

static int check_boundary(struct device *dev, void *memory, int pieces)
{
	struct lists *lists = kzalloc(sizeof(*lists), GFP_KERNEL);
	u64 before = dma_get_seg_boundary(dev);
	int free, bound;

	if (!lists)
		return -ENOMEM;
	free = map_lists(dev, lists, memory, pieces);
	dma_set_seg_boundary(dev, BOUNDARY - 1);
	bound = map_lists(dev, lists, memory, pieces);
	dma_set_seg_boundary(dev, before);
	kfree(lists);
	pr_info("places: of %d pieces in lists of %d, %d lie across a boundary, and %d when the device cannot cross it\n",
		LISTS * pieces, pieces, free, bound);
	return free > 0 && !bound ? 0 : -EIO;
}

/* The device writes to a page. */
static int expect(void *memory, dma_addr_t at, bool is_to_land)
{
	bool landed;
	int error = test_edu_lands(memory, at, &landed);

	if (!error && landed != is_to_land) {
		pr_err("places: the device %s memory by %#llx\n", landed ? "reaches" : "does not reach", (u64)at);
		error = -EIO;
	}
	return error;
}

/* No addresses keep a piece that is longer than the distance of two boundaries within them. */
static int check_refusal(struct device *dev, void *memory)
{
	u64 before = dma_get_seg_boundary(dev);
	struct scatterlist piece;
	int error;

	sg_init_one(&piece, memory, BOUNDARY + PAGE_SIZE);
	dma_set_seg_boundary(dev, BOUNDARY - 1);
	error = dma_map_sg(dev, &piece, 1, DMA_FROM_DEVICE) ? -EIO : 0;
	dma_set_seg_boundary(dev, before);
	return error;
}

/* The device reaches the first and the last page of each piece that is kept within boundaries, until the unmap. */
static int check_reach(struct device *dev, void *memory)
{
	u64 before = dma_get_seg_boundary(dev), at;
	struct scatterlist list[PIECES_LONG];
	u64 last = PIECE_BYTES - PAGE_SIZE - OFFSET;
	int k, error = 0;

	fill(list, memory, PIECES_LONG);
	dma_set_seg_boundary(dev, BOUNDARY - 1);
	if (dma_map_sg(dev, list, PIECES_LONG, DMA_FROM_DEVICE) != PIECES_LONG)
		error = -EIO;
	dma_set_seg_boundary(dev, before);
	if (error)
		return error;
	for (k = 0; k < PIECES_LONG && !error; k++) {
		at = sg_dma_address(&list[k]);
		error = expect(sg_virt(&list[k]), at, true) ?: expect(sg_virt(&list[k]) + last, at + last, true);
	}
	at = sg_dma_address(&list[PIECES_LONG - 1]);
	dma_unmap_sg(dev, list, PIECES_LONG, DMA_FROM_DEVICE);
	return error ?: expect(sg_virt(&list[PIECES_LONG - 1]), at, false);
}

struct taken {
	u64 start, end;
};

static const char *owner_of(struct pci_dev *pdev, u64 start, u64 end, const struct taken *reserved)
{
	struct pci_bus *root = pdev->bus;
	struct resource *window;
	int index;

	while (!pci_is_root_bus(root))
		root = root->parent;
	pci_bus_for_each_resource(root, window, index)
		if (window && resource_type(window) == IORESOURCE_MEM && start <= window->end && window->start < end)
			return "the devices' own memory";
	if (start < 0xfef00000 && 0xfee00000 < end)
		return "interrupts";
	if (start < reserved->end && reserved->start < end)
		return "firmware";
	return NULL;
}

/* Maps the same memory until nothing is left below 4 GiB. */
static int check_owners(struct pci_dev *pdev, void *memory, const struct taken *reserved)
{
	u64 *at = kvcalloc(PLACES, sizeof(*at), GFP_KERNEL), lowest = U64_MAX;
	int count, done, error = 0;

	if (!at)
		return -ENOMEM;
	for (count = 0; count < PLACES; count++) {
		const char *owner;

		at[count] = dma_map_single(&pdev->dev, memory, PLACE_BYTES, DMA_FROM_DEVICE);
		if (dma_mapping_error(&pdev->dev, at[count]))
			break;
		lowest = min(lowest, at[count]);
		owner = owner_of(pdev, at[count], at[count] + PLACE_BYTES, reserved);
		if (owner && !error) {
			pr_err("places: a buffer is at %#llx, which belongs to %s\n", at[count], owner);
			error = -EIO;
		}
	}
	for (done = 0; done < count; done++)
		dma_unmap_single(&pdev->dev, at[done], PLACE_BYTES, DMA_FROM_DEVICE);
	kvfree(at);
	pr_info("places: %d buffers of 4 MiB below 4 GiB, the lowest at %#llx\n", count, lowest);
	/* Otherwise no map had to pass over the memory of others, and the test shows nothing. */
	return error ?: count < PLACES && lowest < reserved->start ? 0 : -EIO;
}

/* "0x1fff0000 0x20000000": tests the attacker; firmware reserves this range for it. */
static ssize_t places_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	struct taken reserved;
	char text[48];
	void *memory;
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (sscanf(text, "%llx %llx", &reserved.start, &reserved.end) != 2)
		return -EINVAL;
	if (!test_edu_device)
		return -ENODEV;
	memory = (void *)__get_free_pages(GFP_KERNEL, PLACE_ORDER);
	if (!memory)
		return -ENOMEM;
	error = dma_set_mask_and_coherent(&test_edu_device->dev, DMA_BIT_MASK(32)) ?:
		check_boundary(&test_edu_device->dev, memory, PIECES_SHORT) ?:
		check_boundary(&test_edu_device->dev, memory, PIECES_LONG) ?:
		check_refusal(&test_edu_device->dev, memory) ?: check_reach(&test_edu_device->dev, memory) ?:
		check_owners(test_edu_device, memory, &reserved);
	free_pages((unsigned long)memory, PLACE_ORDER);
	return error ?: len;
}

const struct file_operations test_places = { .owner = THIS_MODULE, .write = places_write };
