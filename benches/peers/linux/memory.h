/* Lists, objects, and pages for tables. */
#ifndef PEERS_MEMORY_H
#define PEERS_MEMORY_H
#include "sync.h"

struct list_head { struct list_head *next, *prev; };
struct hlist_node { struct hlist_node *next, **pprev; };
#define LIST_HEAD_INIT(head) { .next = &(head), .prev = &(head) }
static inline void INIT_LIST_HEAD(struct list_head *head) { head->prev = head->next = head; }
static inline bool list_empty(const struct list_head *head) { return READ_ONCE(head->next) == head; }
static inline void list_link(struct list_head *before, struct list_head *after)
{
	before->next = after;
	after->prev = before;
}
static inline void list_add_tail(struct list_head *entry, struct list_head *head)
{
	list_link(head->prev, entry);
	list_link(entry, head);
}
static inline void list_del(struct list_head *entry) { list_link(entry->prev, entry->next); }
static inline void list_splice(struct list_head *from, struct list_head *head)
{
	if (list_empty(from))
		return;
	list_link(from->prev, head->next);
	list_link(head, from->next);
}
#define list_entry(entry, type, member) container_of(entry, type, member)
#define hlist_entry_safe(entry, type, member) ((entry) ? container_of(entry, type, member) : NULL)

/* Objects of one size: a stack of free objects per CPU, and nothing else. */
#define GFP_KERNEL 0U
#define GFP_ATOMIC 1U
#define __GFP_NOWARN 0U
#define __GFP_HIGHMEM 2U
#define __GFP_COMP 4U
#define __GFP_DMA 8U
#define __GFP_DMA32 16U
#define SLAB_HWCACHE_ALIGN 0
#define might_sleep_if(condition) ((void)0)
#define gfpflags_allow_blocking(flags) false
#define kmemleak_transient_leak(object) ((void)0)

struct cpu_stack { void *top; } __attribute__((aligned(64)));
struct kmem_cache { size_t size; struct cpu_stack free[CPUS]; };
struct kmem_cache *kmem_cache_create(const char *name, size_t size, size_t align, int flags, void *constructor);
void *kmem_cache_refill(struct kmem_cache *cache);
#define kmem_cache_destroy(cache) ((void)(cache))
static inline void kmem_cache_free(struct kmem_cache *cache, void *object)
{
	*(void **)object = cache->free[this_cpu].top;
	cache->free[this_cpu].top = object;
}
static inline void *kmem_cache_alloc(struct kmem_cache *cache, gfp_t flags)
{
	void **object = cache->free[this_cpu].top;

	(void)flags;
	if (unlikely(!object))
		return kmem_cache_refill(cache);
	cache->free[this_cpu].top = *object;
	return object;
}
static inline void *kmem_cache_zalloc(struct kmem_cache *cache, gfp_t flags)
{
	return memset(kmem_cache_alloc(cache, flags), 0, cache->size);
}

void *kzalloc(size_t size, gfp_t flags);
#define kcalloc(count, size, flags) kzalloc((count) * (size), flags)
#define kmalloc(size, flags) kzalloc(size, flags)
#define kfree(object) free(object)

/* Pages for tables come from one arena. A physical address is a virtual one. */
struct page { struct list_head lru; };
extern char *arena;
extern struct page *arena_pages;
void *iommu_alloc_page_node(int node, gfp_t flags);
void iommu_free_page(void *page);
static inline struct page *virt_to_page(const void *address)
{
	return &arena_pages[((const char *)address - arena) >> PAGE_SHIFT];
}
static inline void *page_address(const struct page *page) { return arena + ((size_t)(page - arena_pages) << PAGE_SHIFT); }
static inline void iommu_put_pages_list(struct list_head *pages)
{
	while (!list_empty(pages)) {
		struct page *page = list_entry(pages->next, struct page, lru);

		list_del(&page->lru);
		iommu_free_page(page_address(page));
	}
}
#define pfn_to_page(pfn) virt_to_page((const void *)((uintptr_t)(pfn) << PAGE_SHIFT))
#define page_to_pfn(page) ((uintptr_t)page_address(page) >> PAGE_SHIFT)
#define phys_to_virt(address) ((void *)(uintptr_t)(address))
#define virt_to_phys(address) ((phys_addr_t)(uintptr_t)(address))

#endif
