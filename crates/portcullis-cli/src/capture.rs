//! `portcullis capture-help`.

/// What the command prints.
pub(crate) const HELP: &str = "\
Recording a trace on a Linux host (as root; the kernel needs CONFIG_FTRACE and an IOMMU in use):

  1. trace-cmd start -b 65536 -C global -e iommu:map -e iommu:unmap -e dma -e intel_iommu
  2. run your workload for a few seconds
  3. trace-cmd stop; cat /sys/kernel/tracing/trace | xz > my.trace.xz; trace-cmd reset

Then: portcullis compare my.trace.xz

The output of trace-cmd report and of perf script --show-lost-events is read too (perf record -a -e 'iommu:*' -e 'dma:*'
-e 'intel_iommu:*'), and so are .gz and .zst. perf does not tell interrupts from the tasks that they came into.

What it costs: each map or unmap writes two or three events of 60 to 100 bytes into memory, some 0.2 to 0.5 µs; at a
million maps per second expect the server to slow down visibly while it records. -b is the buffer of each CPU in KiB:
64 MiB hold about half a million events. What does not fit is lost; the trace says so, and the comparison warns.

Limits:
  - dma:* events exist since Linux 6.12; without them a mapping has no device, no direction and no exact length.
  - intel_iommu:* are not used for the comparison, but --accesses needs them to line a device log up with the trace.
  - Devices that portcullis.ko protects make no iommu: events. Record -e portcullis, the module's own, instead of the others:
    they say what dma:* say, on older kernels too, and of scatter lists how long each piece is.
  - Passed-through devices (iommu=pt) make no iommu: events. Where none is in a trace, the dma:* events alone are read: not
    coherent memory (dma_alloc), and of scatter lists not always how long each piece is.
  - How much of a buffer is payload shows in the events dma_sync_*_for_cpu, which -e dma includes, and where an unmap names fewer
    bytes than were mapped. The kernel syncs, and prints these events, only where a device does not see the CPUs' caches or
    bounces; on other hosts, x86 among them, only with CONFIG_DMA_API_DEBUG.
  - A trace shows addresses and sizes, not data. It does show which buffers a driver reuses.
";
