/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Maps and unmaps, in the format of the kernel's own DMA API events, which `portcullis compare` reads. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM portcullis

#if !defined(PORTCULLIS_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define PORTCULLIS_TRACE_H

#include <linux/device.h>
#include <linux/dma-direction.h>
#include <linux/tracepoint.h>

#define portcullis_directions \
	{ DMA_BIDIRECTIONAL, "BIDIRECTIONAL" }, { DMA_TO_DEVICE, "TO_DEVICE" }, { DMA_FROM_DEVICE, "FROM_DEVICE" }

TRACE_EVENT(portcullis_map,
	TP_PROTO(struct device *dev, u64 at, u64 phys, size_t size, enum dma_data_direction dir),
	TP_ARGS(dev, at, phys, size, dir),
	TP_STRUCT__entry(
		__array(char, device, 16)
		__field(u64, at)
		__field(u64, phys)
		__field(size_t, size)
		__field(u32, dir)
	),
	TP_fast_assign(
		strscpy(__entry->device, dev_name(dev), sizeof(__entry->device));
		__entry->at = at;
		__entry->phys = phys;
		__entry->size = size;
		__entry->dir = dir;
	),
	TP_printk("%s dir=%s dma_addr=%llx size=%zu phys_addr=%llx", __entry->device,
		  __print_symbolic(__entry->dir, portcullis_directions), __entry->at, __entry->size, __entry->phys)
);

TRACE_EVENT(portcullis_unmap,
	TP_PROTO(struct device *dev, u64 at, size_t size, enum dma_data_direction dir),
	TP_ARGS(dev, at, size, dir),
	TP_STRUCT__entry(
		__array(char, device, 16)
		__field(u64, at)
		__field(size_t, size)
		__field(u32, dir)
	),
	TP_fast_assign(
		strscpy(__entry->device, dev_name(dev), sizeof(__entry->device));
		__entry->at = at;
		__entry->size = size;
		__entry->dir = dir;
	),
	TP_printk("%s dir=%s dma_addr=%llx size=%zu", __entry->device,
		  __print_symbolic(__entry->dir, portcullis_directions), __entry->at, __entry->size)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
