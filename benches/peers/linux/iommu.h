/* An IOMMU domain as the kernel's drivers see one. */
#ifndef PEERS_IOMMU_H
#define PEERS_IOMMU_H
#include "memory.h"

typedef unsigned ioasid_t;
typedef int (*iommu_fault_handler_t)(void);
struct device;
struct iommu_domain;
struct iommu_dma_cookie;
struct iommu_user_data_array;
struct iopf_group;
#include "carved/iommu.h"

#define NUMA_NO_NODE (-1)
#define trace_map(...) ((void)0)
#define trace_unmap(...) ((void)0)

int iommu_map(struct iommu_domain *domain, unsigned long iova, phys_addr_t address, size_t size, int rights, gfp_t flags);
size_t iommu_unmap(struct iommu_domain *domain, unsigned long iova, size_t size);
size_t iommu_unmap_fast(struct iommu_domain *domain, unsigned long iova, size_t size, struct iommu_iotlb_gather *gather);
phys_addr_t iommu_iova_to_phys(struct iommu_domain *domain, dma_addr_t iova);

/* The number of invalidations that this CPU has requested. An invalidation does nothing else here. */
extern __thread unsigned long invalidations;
void invalidate(void);

/* Lines of tables that this CPU has written back. */
extern __thread unsigned long flushed_lines;
/* Whether the processor has the instruction to write lines back. */
bool can_write_back(void);

/* A new domain of VT-d with four levels. The unit snoops if it is coherent. */
struct iommu_domain *vtd_domain(bool coherent);

#endif
