/* The kernel's DMA API over an IOMMU: addresses, map, unmap, flush queues. */
#include "device.h"
#include "carved/rbtree.h"
#include "carved/iova.h"
#include "carved/dma.inc"

void dma_open(struct iommu_domain *domain, bool lazy)
{
	struct iommu_dma_cookie *cookie = kzalloc(sizeof(*cookie), GFP_KERNEL);

	cookie->type = IOMMU_DMA_IOVA_COOKIE;
	cookie->options.qt = IOMMU_DMA_OPTS_PER_CPU_QUEUE;
	cookie->options.fq_size = IOVA_DEFAULT_FQ_SIZE;
	domain->iova_cookie = cookie;
	domain->geometry.force_aperture = true;
	domain->geometry.aperture_end = BIT(44) - 1;
	init_iova_domain(&cookie->iovad, PAGE_SIZE, 1);
	if (iova_domain_init_rcaches(&cookie->iovad) || (lazy && iommu_dma_init_fq_percpu(cookie)))
		abort();
	if (lazy) {
		/* As if the timer were always armed: queues are emptied only when full. */
		atomic_set(&cookie->fq_timer_on, 1);
		cookie->fq_domain = domain;
	}
}
