/* The kernel's VT-d tables, second level. */
#include "iommu.h"

/* These types have the same size as in the kernel. */
struct xarray { u64 words[2]; };
struct mmu_notifier { u64 words[7]; };
struct iommu_hwpt_vtd_s1 { u64 words[3]; };
struct qi_batch;
#include "carved/vtd.h"

static inline struct dmar_domain *to_dmar_domain(struct iommu_domain *domain)
{
	return container_of(domain, struct dmar_domain, domain);
}

static inline void cache_tag_flush_range(struct dmar_domain *domain, unsigned long start, unsigned long end, int leaf_only)
{
	(void)domain, (void)start, (void)end, (void)leaf_only;
	invalidate();
}

/* Nothing here is mapped in large pages. */
#define switch_to_super_page(...) __builtin_trap()

/* Lines are written back and evicted from the caches, between full barriers. */
static inline void clflush_cache_range(void *address, unsigned size)
{
	uintptr_t line = (uintptr_t)address & ~63UL, end = (uintptr_t)address + size;

	__asm__ volatile("mfence" ::: "memory");
	for (; line < end; line += 64, flushed_lines++)
		__asm__ volatile("clflushopt (%0)" :: "r"(line) : "memory");
	__asm__ volatile("mfence" ::: "memory");
}

#define debug_dma_dump_mappings(device) ((void)(device))
#include "carved/vtd.inc"

static void invalidate_all(struct iommu_domain *domain)
{
	(void)domain;
	invalidate();
}

static const struct iommu_domain_ops operations = {
	.map_pages = intel_iommu_map_pages,
	.unmap_pages = intel_iommu_unmap_pages,
	.iova_to_phys = intel_iommu_iova_to_phys,
	.flush_iotlb_all = invalidate_all,
	.iotlb_sync = intel_iommu_tlb_sync,
};

struct iommu_domain *vtd_domain(bool coherent)
{
	struct dmar_domain *domain = kzalloc(sizeof(*domain), GFP_KERNEL);

	domain->gaw = 48;
	domain->agaw = width_to_agaw(domain->gaw);
	domain->iommu_superpage = 2;
	domain->iommu_coherency = coherent;
	domain->pgd = iommu_alloc_page_node(NUMA_NO_NODE, GFP_KERNEL);
	domain->domain.ops = &operations;
	domain->domain.type = IOMMU_DOMAIN_DMA;
	domain->domain.pgsize_bitmap = SZ_4K | SZ_2M | SZ_1G;
	return &domain->domain;
}
