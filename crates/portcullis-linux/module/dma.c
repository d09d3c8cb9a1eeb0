// SPDX-License-Identifier: MIT OR GPL-2.0
/* The streaming half of the DMA API: buffers are mapped just before a device uses them, and unmapped just after. */
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/scatterlist.h>

#include "portcullis.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* The narrowest domain, in bits: a narrower one has hardly any room beside the reserved regions. */
#define NARROWEST_BITS 24

/* Not inlined, like everything that is rare: the common paths then need few registers and save none of the others. */
static noinline dma_addr_t note_failure(struct pc_device *device, u64 at)
{
	pc_was_not_mapped(device, at);
	this_cpu_inc(device->counts->failed);
	return DMA_MAPPING_ERROR;
}

static __always_inline dma_addr_t note_map(struct pc_device *device, u64 at, size_t size)
{
	struct pc_counts __percpu *counts = device->counts;

	if (unlikely(at >= PCR_LOST))
		return note_failure(device, at);
	this_cpu_inc(counts->maps);
	this_cpu_add(counts->bytes, size);
	return at;
}

static struct pcr_wish wish_of(struct device *dev, unsigned long attrs)
{
	return (struct pcr_wish) {
		.limit = likely(*dev->dma_mask >= pc_device_of(dev)->last) ? U64_MAX : *dev->dma_mask,
		.alignment = 1,
		.is_quiet = !!(attrs & DMA_ATTR_NO_WARN),
	};
}

/* For a device that drives fewer address bits than its domain has, for quiet maps, and while maps are traced. */
static noinline dma_addr_t map_seldom(struct device *dev, u64 phys, size_t size, enum dma_data_direction dir,
				      unsigned long attrs)
{
	struct pc_device *device = pc_device_of(dev);
	struct pcr_wish wish = wish_of(dev, attrs);
	u64 at;

	if (wish.limit != U64_MAX || wish.is_quiet)
		at = pcr_map_with(device->space, phys, size, dir, &wish);
	else
		at = pcr_map(device->space, phys, size, dir);
	if (at < PCR_LOST)
		trace_portcullis_map(dev, at, phys, size, dir);
	return note_map(device, at, size);
}

static __always_inline dma_addr_t map(struct device *dev, u64 phys, size_t size, enum dma_data_direction dir,
				      unsigned long attrs)
{
	struct pc_device *device = pc_device_of(dev);

	if (unlikely(*dev->dma_mask < device->last) || unlikely(attrs & DMA_ATTR_NO_WARN) ||
	    trace_portcullis_map_enabled())
		return map_seldom(dev, phys, size, dir, attrs);
	return note_map(device, pcr_map(device->space, phys, size, dir), size);
}

#ifdef PC_MAPS_PHYS
static dma_addr_t map_phys(struct device *dev, phys_addr_t phys, size_t size, enum dma_data_direction dir,
			   unsigned long attrs)
{
	return map(dev, phys, size, dir, attrs);
}
#else
static dma_addr_t map_page(struct device *dev, struct page *page, unsigned long offset, size_t size,
			   enum dma_data_direction dir, unsigned long attrs)
{
	return map(dev, page_to_phys(page) + offset, size, dir, attrs);
}

static dma_addr_t map_resource(struct device *dev, phys_addr_t phys, size_t size, enum dma_data_direction dir,
			       unsigned long attrs)
{
	return map(dev, phys, size, dir, attrs);
}
#endif

static __always_inline void unmap(struct pc_device *device, dma_addr_t at, size_t size, bool is_deferred)
{
	int error = pcr_unmap(device->space, at, size);

	if (unlikely(error) && pc_was_not_unmapped(device, at, size, error))
		return;
	this_cpu_inc(device->counts->unmaps);
	pc_after_unmap(device, is_deferred);
}

/* Traced before the unmap, because another CPU may get the address as soon as it is unmapped. */
static noinline void unmap_traced(struct device *dev, dma_addr_t at, size_t size, enum dma_data_direction dir)
{
	trace_portcullis_unmap(dev, at, size, dir);
	unmap(pc_device_of(dev), at, size, pc_device_of(dev)->policy.is_deferred);
}

static void unmap_page(struct device *dev, dma_addr_t at, size_t size, enum dma_data_direction dir, unsigned long attrs)
{
	if (trace_portcullis_unmap_enabled())
		unmap_traced(dev, at, size, dir);
	else
		unmap(pc_device_of(dev), at, size, false);
}

static void unmap_page_deferred(struct device *dev, dma_addr_t at, size_t size, enum dma_data_direction dir,
				unsigned long attrs)
{
	if (trace_portcullis_unmap_enabled())
		unmap_traced(dev, at, size, dir);
	else
		unmap(pc_device_of(dev), at, size, true);
}

u64 pcs_next_piece(void **list, u64 *len)
{
	struct scatterlist *piece = *list;

	*list = sg_next(piece);
	*len = piece->length;
	return sg_phys(piece);
}

/* The bytes of the pages that a piece takes. */
static u64 extent_of(struct scatterlist *piece)
{
	return PAGE_ALIGN(offset_in_page(piece->offset) + piece->length);
}

static bool lies_across(u64 at, u32 len, u64 mask)
{
	return (at & mask) + len - 1 > mask;
}

/*
 * Sets the addresses of a list's pieces, each in front of a boundary or behind it if they are padded: see Pieces in
 * space.rs. False if a piece would lie across a boundary that its device cannot cross.
 */
static bool place(struct device *dev, struct scatterlist *list, int count, u64 at, bool is_padded)
{
	u64 mask = dma_get_seg_boundary(dev);
	struct scatterlist *piece;
	int i;

	for_each_sg(list, piece, count, i) {
		u64 offset = offset_in_page(piece->offset);

		if (is_padded && lies_across(at + offset, piece->length, mask))
			at = ALIGN(at, mask + 1);
		sg_dma_address(piece) = at + offset;
		sg_dma_len(piece) = piece->length;
		if (lies_across(sg_dma_address(piece), piece->length, mask))
			return false;
		at += extent_of(piece);
	}
	return true;
}

/* Unmaps the run of pages that begins in the page of `at`. */
static bool unmap_run(struct pc_device *device, u64 at)
{
	int error = pcr_unmap_list(device->space, at);

	return likely(!error) || !pc_was_not_unmapped(device, at, 1, error);
}

/* Takes back a run that does not lie where its device can reach it. If that fails, it counts as mapped and lost. */
static bool take_back(struct pc_device *device, u64 at)
{
	if (unmap_run(device, at)) {
		pc_has_unmapped(device);
		return true;
	}
	this_cpu_inc(device->counts->maps);
	return false;
}

/*
 * Maps a list of which a piece would lie across a boundary. If the whole run fits between two boundaries, it is mapped
 * there. Otherwise there is padding in front of the pieces that would lie across one.
 */
static noinline int map_between(struct device *dev, struct scatterlist *list, int count, enum dma_data_direction dir,
				struct pcr_wish *wish)
{
	u64 boundary = (u64)dma_get_seg_boundary(dev) + 1, bytes = 0, at;
	struct pc_device *device = pc_device_of(dev);
	struct scatterlist *piece;
	int i;

	for_each_sg(list, piece, count, i)
		bytes += extent_of(piece);
	if (bytes <= boundary)
		wish->boundary = boundary;
	else
		wish->alignment = wish->piece_boundary = boundary;
	at = pcr_map_list(device->space, list, count, dir, wish);
	if (unlikely(at >= PCR_LOST) && pc_was_not_mapped(device, at))
		return -ENOMEM;
	if (place(dev, list, count, at, bytes > boundary))
		return 0;
	/* A piece is longer than the distance of two boundaries. */
	take_back(device, at);
	return -EINVAL;
}

/* Maps all pieces in one run of pages. Each begins in a new page. There is one map and one unmap. */
static int map_run(struct device *dev, struct scatterlist *list, int count, enum dma_data_direction dir,
		   unsigned long attrs)
{
	struct pc_device *device = pc_device_of(dev);
	struct pcr_wish wish = wish_of(dev, attrs);
	u64 at = pcr_map_list(device->space, list, count, dir, &wish);

	if (unlikely(at >= PCR_LOST) && pc_was_not_mapped(device, at))
		return -ENOMEM;
	if (likely(place(dev, list, count, at, false)))
		return 0;
	return take_back(device, at) ? map_between(dev, list, count, dir, &wish) : -EIO;
}

static int map_sg(struct device *dev, struct scatterlist *list, int count, enum dma_data_direction dir,
		  unsigned long attrs)
{
	struct pc_device *device = pc_device_of(dev);
	int i, error = map_run(dev, list, count, dir, attrs);
	struct scatterlist *piece;
	size_t bytes = 0;

	if (unlikely(error)) {
		this_cpu_inc(device->counts->failed);
		/* Drivers try again after ENOMEM. A device that was cut off never gets an address again. */
		return READ_ONCE(device->is_cut_off) ? -EREMOTEIO : error;
	}
	for_each_sg(list, piece, count, i) {
		bytes += piece->length;
		trace_portcullis_map(dev, sg_dma_address(piece), sg_phys(piece), piece->length, dir);
	}
	this_cpu_inc(device->counts->maps);
	this_cpu_add(device->counts->bytes, bytes);
	return count;
}

static __always_inline void unmap_list(struct device *dev, struct scatterlist *list, int count,
				       enum dma_data_direction dir, bool is_deferred)
{
	struct pc_device *device = pc_device_of(dev);
	struct scatterlist *piece;
	int i;

	if (trace_portcullis_unmap_enabled())
		for_each_sg(list, piece, count, i)
			trace_portcullis_unmap(dev, sg_dma_address(piece), sg_dma_len(piece), dir);
	if (!unmap_run(device, sg_dma_address(list)))
		return;
	this_cpu_inc(device->counts->unmaps);
	pc_after_unmap(device, is_deferred);
}

static void unmap_sg(struct device *dev, struct scatterlist *list, int count, enum dma_data_direction dir,
		     unsigned long attrs)
{
	unmap_list(dev, list, count, dir, false);
}

static void unmap_sg_deferred(struct device *dev, struct scatterlist *list, int count, enum dma_data_direction dir,
			      unsigned long attrs)
{
	unmap_list(dev, list, count, dir, true);
}

/*
 * A driver declares here what its device can address, mostly before it maps anything. Then a domain of that width
 * replaces the present one, so that no map has to request a low address. Later, each map gets a limit instead.
 */
static int dma_supported(struct device *dev, u64 mask)
{
	struct pc_device *device = pc_device_of(dev);
	u8 bits = fls64(mask + 1) - 1;
	struct pcr_space_use use;

	if (mask >= device->last)
		return 1;
	if (bits < NARROWEST_BITS)
		return 0;
	pcr_space_use(device->space, &use);
	return use.live_ranges || !pc_reopen(device, bits);
}

/* Any width from the narrowest on is enough, because devices use addresses of the domain. */
static u64 get_required_mask(struct device *dev)
{
	return DMA_BIT_MASK(32);
}

const struct dma_map_ops pc_ops = {
	.alloc = pc_alloc,
	.free = pc_free,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
	.alloc_pages_op = pc_alloc_pages,
#else
	.alloc_pages = pc_alloc_pages,
#endif
	.free_pages = pc_free_pages,
	.mmap = pc_mmap,
	.get_sgtable = pc_get_sgtable,
#ifdef PC_MAPS_PHYS
	.map_phys = map_phys,
	.unmap_phys = unmap_page,
#else
	.map_page = map_page,
	.unmap_page = unmap_page,
	.map_resource = map_resource,
	.unmap_resource = unmap_page,
#endif
	.map_sg = map_sg,
	.unmap_sg = unmap_sg,
	.dma_supported = dma_supported,
	.get_required_mask = get_required_mask,
};

void pc_defer(struct dma_map_ops *ops)
{
#ifdef PC_MAPS_PHYS
	ops->unmap_phys = unmap_page_deferred;
#else
	ops->unmap_page = ops->unmap_resource = unmap_page_deferred;
#endif
	ops->unmap_sg = unmap_sg_deferred;
}
