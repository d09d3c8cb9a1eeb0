/* The kernel's IOMMU core, between the DMA API and the driver. */
#include "iommu.h"
#include "carved/core.inc"
