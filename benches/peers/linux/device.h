/* The DMA API, and the device that it needs: a trusted one with a mask of 64 bits that snoops caches and needs no
 * bounce buffers. */
#ifndef PEERS_DEVICE_H
#define PEERS_DEVICE_H
#include "iommu.h"

enum dma_data_direction { DMA_BIDIRECTIONAL, DMA_TO_DEVICE, DMA_FROM_DEVICE, DMA_NONE };
#define DMA_MAPPING_ERROR UINT64_MAX
#define DMA_ATTR_SKIP_CPU_SYNC BIT(5)
#define DMA_ATTR_PRIVILEGED BIT(9)

struct dev_iommu { unsigned pci_32bit_workaround; };
struct device {
	u64 dma_mask, bus_dma_limit;
	struct dev_iommu *iommu;
	struct iommu_domain *domain;
	bool coherent;
};
struct pci_dev { bool untrusted; };
#define dev_is_pci(device) false
#define to_pci_dev(device) ((struct pci_dev *)(device))
#define dev_is_dma_coherent(device) ((device)->coherent)
#define dma_get_mask(device) ((device)->dma_mask)
#define dma_get_min_align_mask(device) 0
#define iommu_get_dma_domain(device) ((device)->domain)
#define iommu_deferred_attach(device, domain) 0

#define DEFINE_STATIC_KEY_FALSE(name) static const bool name = false
#define static_branch_unlikely(name) false
#define dma_kmalloc_needs_bounce(device, size, direction) false
#define is_swiotlb_active(device) false
#define trace_swiotlb_bounced(...) ((void)0)
#define swiotlb_tbl_map_single(...) DMA_MAPPING_ERROR
#define swiotlb_tbl_unmap_single(...) ((void)0)
#define arch_sync_dma_for_device(...) ((void)0)
#define arch_sync_dma_for_cpu(...) ((void)0)
/* Callers pass the address in place of a page. */
#define page_to_phys(page) virt_to_phys(page)

dma_addr_t iommu_dma_map_page(struct device *device, struct page *page, unsigned long offset, size_t size,
			      enum dma_data_direction direction, unsigned long attributes);
void iommu_dma_unmap_page(struct device *device, dma_addr_t iova, size_t size, enum dma_data_direction direction,
			  unsigned long attributes);

/* Gives `domain` to the DMA API. */
void dma_open(struct iommu_domain *domain, bool lazy);

#endif
