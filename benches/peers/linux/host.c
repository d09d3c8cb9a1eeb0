/* The parts of the stand-ins that no fast path reaches. */
#include "iommu.h"
#include <cpuid.h>
#include <stdio.h>
#include <sys/mman.h>

#define ARENA_PAGES (1UL << 16)

__thread int this_cpu;
__thread unsigned long invalidations;
__thread unsigned long flushed_lines;
unsigned long warnings;
char *arena;
struct page *arena_pages;

static size_t arena_used;
static void *free_pages;
static spinlock_t arena_lock;

static void *map(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return memory;
}

/* The arena uses large pages, like a kernel's direct map. */
__attribute__((constructor)) static void open_arena(void)
{
	size_t size = ARENA_PAGES * PAGE_SIZE;

	arena = (char *)ALIGN((uintptr_t)map(size + SZ_2M), SZ_2M);
	madvise(arena, size, MADV_HUGEPAGE);
	arena_pages = map(ARENA_PAGES * sizeof(*arena_pages));
}

bool can_write_back(void)
{
	unsigned eax, ebx, ecx, edx;

	return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && ebx & bit_CLFLUSHOPT;
}

void *iommu_alloc_page_node(int node, gfp_t flags)
{
	void *page;

	(void)node, (void)flags;
	spin_lock(&arena_lock);
	page = free_pages;
	if (page)
		free_pages = *(void **)page;
	else if (arena_used < ARENA_PAGES)
		page = arena + arena_used++ * PAGE_SIZE;
	spin_unlock(&arena_lock);
	return page ? memset(page, 0, PAGE_SIZE) : NULL;
}

void iommu_free_page(void *page)
{
	spin_lock(&arena_lock);
	*(void **)page = free_pages;
	free_pages = page;
	spin_unlock(&arena_lock);
}

void spin_lock_slow(spinlock_t *lock)
{
	do
		while (READ_ONCE(lock->held))
			__builtin_ia32_pause();
	while (!spin_trylock(lock));
}

void *__alloc_percpu(size_t size, size_t align)
{
	static char *areas;
	static size_t used;

	used = ALIGN(used, max(align, 64UL));
	if (!areas || used + size > 1UL << CPU_AREA_SHIFT) {
		areas = map((size_t)CPUS << CPU_AREA_SHIFT);
		used = 0;
	}
	used += size;
	return used <= 1UL << CPU_AREA_SHIFT ? areas + used - size : NULL;
}

void *kzalloc(size_t size, gfp_t flags)
{
	void *object = aligned_alloc(64, ALIGN(size, 64));

	(void)flags;
	return object ? memset(object, 0, size) : NULL;
}

struct kmem_cache *kmem_cache_create(const char *name, size_t size, size_t align, int flags, void *constructor)
{
	struct kmem_cache *cache = kzalloc(sizeof(*cache), GFP_KERNEL);

	(void)name, (void)align, (void)flags, (void)constructor;
	if (cache)
		cache->size = ALIGN(size, 64);
	return cache;
}

void *kmem_cache_refill(struct kmem_cache *cache)
{
	size_t slab = 1UL << 16;
	char *objects = map(slab);

	for (size_t at = cache->size; at + cache->size <= slab; at += cache->size)
		kmem_cache_free(cache, objects + at);
	return objects;
}

noinline void invalidate(void)
{
	invalidations++;
	barrier();
}
