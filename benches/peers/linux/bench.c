/* Runs Linux's DMA API, and its IOVA allocator alone, on the workloads of `portcullis bench`. */
#include "../meter.h"
#include "../queue.h"
#include "device.h"
#include "carved/rbtree.h"
#include "carved/iova.h"

#define LIVE 1024U
#define BUFFERS (1UL << 33)	/* physical address of the first buffer */
#define BELOW_4G (DMA_BIT_MASK(32) >> PAGE_SHIFT)

/* The work of a ring. */
struct work {
	const char *workload;
	unsigned live, burst;
	size_t size;
	bool noncoherent;
};

/* Buffers that are mapped and unmapped first in, first out, on one CPU. */
struct ring {
	struct device device;
	struct iova_domain *addresses;	/* of the allocator alone */
	int cpu;
	unsigned live, at, burst;
	size_t size;
	unsigned long iova[LIVE];
	unsigned long buffer[LIVE];
	unsigned long maps, unmaps, invalidated, flushed;
	struct queue_end end;
};

static inline void ring_map(struct ring *ring, unsigned slot, unsigned long buffer)
{
	ring->buffer[slot] = buffer;
	ring->iova[slot] = iommu_dma_map_page(&ring->device, phys_to_virt(buffer), 0, ring->size, DMA_FROM_DEVICE, 0);
}

static struct ring *ring_new(struct iommu_domain *domain, int cpu, unsigned live, size_t size)
{
	static struct dev_iommu of_device = { .pci_32bit_workaround = 1 };
	struct ring *ring = kzalloc(sizeof(*ring), GFP_KERNEL);

	ring->device = (struct device){ .dma_mask = DMA_BIT_MASK(64), .iommu = &of_device, .domain = domain, .coherent = true };
	ring->cpu = cpu;
	ring->live = live;
	ring->size = size;
	return ring;
}

static struct ring *ring_filled(struct iommu_domain *domain, int cpu, const struct work *work)
{
	struct ring *ring = ring_new(domain, cpu, work->live, work->size);

	ring->burst = work->burst;
	this_cpu = cpu;
	for (unsigned slot = 0; slot < work->live; slot++)
		ring_map(ring, slot, BUFFERS + slot * work->size);
	return ring;
}

static void ring_body(void *state, unsigned long pairs)
{
	struct ring *ring = state;
	unsigned long before = invalidations;
	unsigned slot = ring->at;

	this_cpu = ring->cpu;
	for (unsigned long pair = 0; pair < pairs; pair++) {
		iommu_dma_unmap_page(&ring->device, ring->iova[slot], ring->size, DMA_FROM_DEVICE, 0);
		ring_map(ring, slot, BUFFERS + pair % LIVE * ring->size);
		slot = slot + 1 == ring->live ? 0 : slot + 1;
	}
	ring->at = slot;
	ring->maps += pairs;
	ring->unmaps += pairs;
	ring->invalidated += invalidations - before;
}

/* Refills a ring like a driver: unmaps a burst of buffers, one by one because there is no other way, and then maps as
 * many. */
static void burst_body(void *state, unsigned long pairs)
{
	struct ring *ring = state;
	unsigned long before = invalidations, lines = flushed_lines;

	this_cpu = ring->cpu;
	for (unsigned long pair = 0; pair < pairs; pair += ring->burst) {
		for (unsigned slot = ring->at; slot < ring->at + ring->burst; slot++)
			iommu_dma_unmap_page(&ring->device, ring->iova[slot], ring->size, DMA_FROM_DEVICE, 0);
		for (unsigned slot = ring->at; slot < ring->at + ring->burst; slot++)
			ring_map(ring, slot, BUFFERS + (pair + slot) % LIVE * ring->size);
		ring->at = (ring->at + ring->burst) % ring->live;
	}
	ring->maps += pairs;
	ring->unmaps += pairs;
	ring->invalidated += invalidations - before;
	ring->flushed += flushed_lines - lines;
}

/* One CPU maps, and another unmaps. */
static void map_body(void *state, unsigned long pairs)
{
	struct ring *ring = state;

	this_cpu = ring->cpu;
	ring->maps += pairs;
	while (pairs--)
		queue_put(&ring->end, iommu_dma_map_page(&ring->device, phys_to_virt(BUFFERS + pairs % LIVE * ring->size), 0,
							 ring->size, DMA_FROM_DEVICE, 0), !pairs);
}

static void unmap_body(void *state, unsigned long pairs)
{
	struct ring *ring = state;
	unsigned long before = invalidations;

	this_cpu = ring->cpu;
	ring->unmaps += pairs;
	while (pairs--)
		iommu_dma_unmap_page(&ring->device, queue_take(&ring->end, !pairs), ring->size, DMA_FROM_DEVICE, 0);
	ring->invalidated += invalidations - before;
}

/* Addresses alone, with no table behind them. */
static void iova_body(void *state, unsigned long pairs)
{
	struct ring *ring = state;
	unsigned long pages = ring->size >> PAGE_SHIFT;
	unsigned slot = ring->at;

	this_cpu = ring->cpu;
	while (pairs--) {
		free_iova_fast(ring->addresses, ring->iova[slot], pages);
		ring->iova[slot] = alloc_iova_fast(ring->addresses, pages, BELOW_4G, true);
		slot = slot + 1 == ring->live ? 0 : slot + 1;
	}
	ring->at = slot;
}

static void iova_put_body(void *state, unsigned long pairs)
{
	struct ring *ring = state;

	this_cpu = ring->cpu;
	while (pairs--)
		queue_put(&ring->end, alloc_iova_fast(ring->addresses, 1, BELOW_4G, true), !pairs);
}

static void iova_take_body(void *state, unsigned long pairs)
{
	struct ring *ring = state;

	this_cpu = ring->cpu;
	while (pairs--)
		free_iova_fast(ring->addresses, queue_take(&ring->end, !pairs), 1);
}

/* Checks that every page leads to its buffer, and after the unmap nowhere. */
static void check_translations(struct ring *ring)
{
	struct iommu_domain *domain = ring->device.domain;

	this_cpu = ring->cpu;
	for (unsigned slot = 0; slot < ring->live; slot++) {
		for (size_t at = 0; at < ring->size; at += PAGE_SIZE)
			if (iommu_iova_to_phys(domain, ring->iova[slot] + at) != ring->buffer[slot] + at)
				peers_wrong("slot %u does not lead to its buffer", slot);
		iommu_dma_unmap_page(&ring->device, ring->iova[slot], ring->size, DMA_FROM_DEVICE, 0);
		for (size_t at = 0; at < ring->size; at += PAGE_SIZE)
			if (iommu_iova_to_phys(domain, ring->iova[slot] + at))
				peers_wrong("slot %u is still translated", slot);
	}
}

/* Checks the number of invalidations: one per unmap, or one per full flush queue, which holds 255 unmaps. A flush also
 * empties what it can of the other queues, in turn. */
static void check_counts(struct ring *const *rings, int count, bool lazy, unsigned queues)
{
	unsigned long maps = 0, unmaps = 0, invalidated = 0;

	for (int i = 0; i < count; i++) {
		maps += rings[i]->maps;
		unmaps += rings[i]->unmaps;
		invalidated += rings[i]->invalidated;
	}
	unsigned long most = lazy ? unmaps / 255 + queues : unmaps, least = lazy ? unmaps / 255 / queues : unmaps;

	if (maps != unmaps)
		peers_wrong("%lu maps and %lu unmaps", maps, unmaps);
	if (invalidated < least || invalidated > most)
		peers_wrong("%lu invalidations for %lu unmaps", invalidated, unmaps);
	if (warnings)
		peers_wrong("the kernel's code gave %lu warnings", warnings);
}

/* Checks that a line was written back for each entry written and each cleared, if the unit does not snoop. */
static void check_lines(const struct ring *ring, bool noncoherent)
{
	unsigned long least = noncoherent ? ring->maps + ring->unmaps : 0;

	if (ring->flushed < least || (!noncoherent && ring->flushed))
		peers_wrong("%lu lines written back for %lu unmaps", ring->flushed, ring->unmaps);
}

static void run_ring(bool lazy, int threads, const struct work *work, unsigned long pairs)
{
	struct peers_row row = { "linux-6.12", lazy ? "deferred" : "strict", work->workload };
	struct iommu_domain *domain = vtd_domain(!work->noncoherent);
	bool bursts = work->burst > 1 || work->noncoherent;
	struct peers_thread bodies[CPUS];
	struct ring *rings[CPUS];

	dma_open(domain, lazy);
	for (int i = 0; i < threads; i++) {
		rings[i] = ring_filled(domain, i, work);
		bodies[i] = (struct peers_thread){ bursts ? burst_body : ring_body, rings[i] };
	}
	if (!peers_measure(&row, bodies, threads, PEERS_EACH, pairs))
		return;
	check_counts(rings, threads, lazy, threads);
	for (int i = 0; i < threads; i++) {
		check_translations(rings[i]);
		check_lines(rings[i], work->noncoherent);
	}
}

static void run_cross_cpu(bool lazy, unsigned long pairs)
{
	struct peers_row row = { "linux-6.12", lazy ? "deferred" : "strict", "cross-cpu" };
	struct iommu_domain *domain = vtd_domain(true);
	struct queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL);
	struct ring *maps = ring_new(domain, 0, 0, PAGE_SIZE), *unmaps = ring_new(domain, 1, 0, PAGE_SIZE);

	dma_open(domain, lazy);
	maps->end.queue = unmaps->end.queue = queue;
	if (peers_measure(&row, (struct peers_thread[]){ { map_body, maps }, { unmap_body, unmaps } }, 2, PEERS_SUM, pairs))
		check_counts((struct ring *[]){ maps, unmaps }, 2, lazy, 1);
}

static int ascending(const void *a, const void *b)
{
	unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;

	return (x > y) - (x < y);
}

/* Checks that no address is held twice, in one ring or in two rings of one domain. */
static void check_addresses(struct ring *const *rings, int count)
{
	static unsigned long held[CPUS * LIVE];
	size_t used = 0;

	for (int i = 0; i < count; i++)
		for (unsigned slot = 0; slot < rings[i]->live; slot++)
			held[used++] = rings[i]->iova[slot];
	qsort(held, used, sizeof(*held), ascending);
	for (size_t i = 0; i < used; i++)
		if (!held[i] || (i && held[i] - held[i - 1] < rings[0]->size >> PAGE_SHIFT))
			peers_wrong("an address was handed out twice, or none was");
}

static struct iova_domain *iova_domain(void)
{
	struct iova_domain *domain = kzalloc(sizeof(*domain), GFP_KERNEL);

	init_iova_domain(domain, PAGE_SIZE, 1);
	if (iova_domain_init_rcaches(domain))
		abort();
	return domain;
}

static void run_iova(const char *workload, int threads, unsigned live, size_t size, unsigned long pairs)
{
	struct peers_row row = { "linux-6.12-iova", "none", workload };
	struct iova_domain *addresses = iova_domain();
	struct peers_thread bodies[CPUS];
	struct ring *rings[CPUS];

	for (int i = 0; i < threads; i++) {
		rings[i] = ring_new(NULL, i, live, size);
		rings[i]->addresses = addresses;
		for (unsigned slot = 0; slot < live; slot++)
			rings[i]->iova[slot] = alloc_iova_fast(addresses, size >> PAGE_SHIFT, BELOW_4G, true);
		bodies[i] = (struct peers_thread){ iova_body, rings[i] };
	}
	if (peers_measure(&row, bodies, threads, PEERS_EACH, pairs))
		check_addresses(rings, threads);
}

static void run_iova_cross_cpu(unsigned long pairs)
{
	struct peers_row row = { "linux-6.12-iova", "none", "cross-cpu" };
	struct queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL);
	struct ring *put = ring_new(NULL, 0, 0, PAGE_SIZE), *take = ring_new(NULL, 1, 0, PAGE_SIZE);

	put->addresses = take->addresses = iova_domain();
	put->end.queue = take->end.queue = queue;
	peers_measure(&row, (struct peers_thread[]){ { iova_put_body, put }, { iova_take_body, take } }, 2, PEERS_SUM, pairs);
}

/* The rows of one ring. */
static const struct work page_1 = { "page-1", LIVE, 1, PAGE_SIZE, false };
static const struct work descriptor_64 = { "descriptor-64", LIVE / 4, 1, 64 * PAGE_SIZE, false };
static const struct work batch_64 = { "page-1-batch-64", LIVE, 64, PAGE_SIZE, false };
static const struct work ring_256 = { "ring-256", 256, 16, PAGE_SIZE, false };
static const struct work noncoherent = { "page-1-noncoherent", LIVE, 1, PAGE_SIZE, true };
static const struct work batch_64_noncoherent = { "page-1-batch-64-noncoherent", LIVE, 64, PAGE_SIZE, true };

int main(void)
{
	if (iova_cache_get())
		return 1;
	peers_begin();
	for (int lazy = 0; lazy < 2; lazy++) {
		run_ring(lazy, 1, &page_1, 50000);
		run_ring(lazy, 2, &page_1, 50000);
		run_ring(lazy, 1, &descriptor_64, 10000);
		run_ring(lazy, 1, &batch_64, 51200);
		run_ring(lazy, 1, &ring_256, 51200);
		if (can_write_back()) {
			run_ring(lazy, 1, &noncoherent, 10240);
			run_ring(lazy, 1, &batch_64_noncoherent, 10240);
		}
		run_cross_cpu(lazy, 50000);
	}
	run_iova("page-1", 1, LIVE, PAGE_SIZE, 300000);
	run_iova("page-1", 2, LIVE, PAGE_SIZE, 300000);
	run_iova("descriptor-64", 1, LIVE / 4, 64 * PAGE_SIZE, 100000);
	run_iova_cross_cpu(300000);
	peers_end();
	return 0;
}
