// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The coherent half of the DMA API: memory that driver and device share for as long as the driver runs. x86 keeps
 * caches coherent, so it is ordinary memory. Large pieces are made of single pages if no contiguous memory is free.
 */
#include <linux/dma-map-ops.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "portcullis.h"

/* Any page will do, because the device uses an address of the domain. */
static gfp_t any_zone(gfp_t gfp)
{
	return gfp & ~(__GFP_DMA | __GFP_DMA32 | __GFP_HIGHMEM | __GFP_COMP);
}

/* Drivers rely on this: the device can address the memory, which is aligned to its size. */
static struct pcr_wish wish_of(struct device *dev, size_t size, gfp_t gfp)
{
	return (struct pcr_wish) {
		.limit = dev->coherent_dma_mask >= pc_device_of(dev)->last ? U64_MAX : dev->coherent_dma_mask,
		.alignment = roundup_pow_of_two(size),
		.is_lasting = true,
		.is_quiet = !!(gfp & __GFP_NOWARN),
	};
}

static bool note(struct pc_device *device, u64 at)
{
	if (pc_was_not_mapped(device, at)) {
		this_cpu_inc(device->counts->failed);
		return false;
	}
	atomic64_inc(&device->lasting);
	return true;
}

/* Returns false if the device may still have the memory, which is then never freed. */
static bool unmap(struct device *dev, dma_addr_t at, bool is_list, size_t size)
{
	struct pc_device *device = pc_device_of(dev);
	int error = is_list ? pcr_unmap_list(device->space, at) : pcr_unmap(device->space, at, size);

	if (error && pc_was_not_unmapped(device, at, is_list ? 1 : size, error))
		return false;
	atomic64_dec(&device->lasting);
	pc_after_unmap(device, device->policy.is_deferred);
	return true;
}

struct page *pc_alloc_pages(struct device *dev, size_t size, dma_addr_t *at, enum dma_data_direction dir, gfp_t gfp)
{
	struct pc_device *device = pc_device_of(dev);
	struct page *page = alloc_pages_node(dev_to_node(dev), any_zone(gfp) | __GFP_ZERO, get_order(size));
	struct pcr_wish wish = wish_of(dev, PAGE_ALIGN(size), gfp);

	if (!page)
		return NULL;
	*at = pcr_map_with(device->space, page_to_phys(page), PAGE_ALIGN(size), dir, &wish);
	if (note(device, *at))
		return page;
	__free_pages(page, get_order(size));
	return NULL;
}

void pc_free_pages(struct device *dev, size_t size, struct page *page, dma_addr_t at, enum dma_data_direction dir)
{
	if (unmap(dev, at, false, PAGE_ALIGN(size)))
		__free_pages(page, get_order(size));
}

static void free_single(struct page **pages, size_t count)
{
	while (count--)
		__free_page(pages[count]);
	kvfree(pages);
}

static struct page **single_pages(struct device *dev, size_t count, gfp_t gfp)
{
	struct page **pages = kvcalloc(count, sizeof(*pages), GFP_KERNEL | (gfp & __GFP_NOWARN));
	size_t i;

	for (i = 0; pages && i < count; i++) {
		pages[i] = alloc_pages_node(dev_to_node(dev), any_zone(gfp) | __GFP_ZERO, 0);
		if (!pages[i]) {
			free_single(pages, i);
			return NULL;
		}
	}
	return pages;
}

static u64 map_single_pages(struct device *dev, struct page **pages, size_t count, gfp_t gfp)
{
	struct pcr_wish wish = wish_of(dev, count << PAGE_SHIFT, gfp);
	struct sg_table table;
	u64 at;

	if (sg_alloc_table_from_pages(&table, pages, count, 0, count << PAGE_SHIFT, GFP_KERNEL | (gfp & __GFP_NOWARN)))
		return DMA_MAPPING_ERROR;
	at = pcr_map_list(pc_device_of(dev)->space, table.sgl, table.orig_nents, DMA_BIDIRECTIONAL, &wish);
	sg_free_table(&table);
	return at;
}

/* Single pages, which are contiguous for both the CPU and the device. */
static void *alloc_scattered(struct device *dev, size_t size, dma_addr_t *at, gfp_t gfp)
{
	size_t count = size >> PAGE_SHIFT;
	struct page **pages = single_pages(dev, count, gfp);
	void *memory;

	if (!pages)
		return NULL;
	/* The mapping now owns the pages and their list. */
	memory = vmap(pages, count, VM_MAP | VM_MAP_PUT_PAGES, PAGE_KERNEL);
	if (!memory) {
		free_single(pages, count);
		return NULL;
	}
	*at = map_single_pages(dev, pages, count, gfp);
	if (note(pc_device_of(dev), *at))
		return memory;
	vfree(memory);
	return NULL;
}

void *pc_alloc(struct device *dev, size_t size, dma_addr_t *at, gfp_t gfp, unsigned long attrs)
{
	bool scatters = size > PAGE_SIZE && gfpflags_allow_blocking(gfp) && !(attrs & DMA_ATTR_FORCE_CONTIGUOUS);
	struct page *page;

	size = PAGE_ALIGN(size);
	if (attrs & DMA_ATTR_NO_WARN)
		gfp |= __GFP_NOWARN;
	page = pc_alloc_pages(dev, size, at, DMA_BIDIRECTIONAL, scatters ? gfp | __GFP_NORETRY | __GFP_NOWARN : gfp);
	if (page)
		return page_address(page);
	return scatters ? alloc_scattered(dev, size, at, gfp) : NULL;
}

void pc_free(struct device *dev, size_t size, void *memory, dma_addr_t at, unsigned long attrs)
{
	size = PAGE_ALIGN(size);
	if (!is_vmalloc_addr(memory)) {
		pc_free_pages(dev, size, virt_to_page(memory), at, DMA_BIDIRECTIONAL);
		return;
	}
	if (unmap(dev, at, true, size))
		vfree(memory);
}

static struct page *page_at(void *memory, size_t index)
{
	void *at = memory + (index << PAGE_SHIFT);

	return is_vmalloc_addr(at) ? vmalloc_to_page(at) : virt_to_page(at);
}

int pc_mmap(struct device *dev, struct vm_area_struct *vma, void *memory, dma_addr_t at, size_t size,
	    unsigned long attrs)
{
	size_t count = PAGE_ALIGN(size) >> PAGE_SHIFT, from = vma->vm_pgoff, wanted = vma_pages(vma), i;
	int error = 0;

	if (from >= count || wanted > count - from)
		return -ENXIO;
	for (i = 0; !error && i < wanted; i++)
		error = remap_pfn_range(vma, vma->vm_start + (i << PAGE_SHIFT), page_to_pfn(page_at(memory, from + i)),
					PAGE_SIZE, vma->vm_page_prot);
	return error;
}

int pc_get_sgtable(struct device *dev, struct sg_table *table, void *memory, dma_addr_t at, size_t size,
		   unsigned long attrs)
{
	size_t count = PAGE_ALIGN(size) >> PAGE_SHIFT, i;
	struct page **pages = kvcalloc(count, sizeof(*pages), GFP_KERNEL);
	int error;

	if (!pages)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		pages[i] = page_at(memory, i);
	error = sg_alloc_table_from_pages(table, pages, count, 0, count << PAGE_SHIFT, GFP_KERNEL);
	kvfree(pages);
	return error;
}
