//! `portcullis capture-help`.

/// What the command prints.
pub(crate) const HELP: &str = "\
Recording a trace on a Linux host (as root; the kernel needs CONFIG_FTRACE and an IOMMU in use):

  1. trace-cmd start -b 65536 -C global -e iommu:map -e iommu:unmap -e dma -e intel_iommu
  2. run your workload for a few seconds
  3. trace-cmd stop; cat /sys/kernel/tracing/trace | xz > my.trace.xz; trace-cmd reset

Then: portcullis compare my.trace.xz

The output of trace-cmd report and of perf script --show-lost-events is read too (perf record -a -e 'iommu:*' -e 'dma:*'
-e 'intel_iommu:*'), and so are .gz and .zst. perf does not distinguish an interrupt from the task that it interrupted.

What it costs: each map or unmap writes two or three events of 60 to 100 bytes into memory, which takes 0.2 to 0.5 µs.
At a million maps per second, expect the server to slow down visibly while it records. -b is the buffer of each CPU in
KiB: 64 MiB hold about half a million events. Events that do not fit are lost; the trace says so, and the comparison
warns.

Limits:
  - The mode of the host does not matter, strict or deferred: every design is priced for what the drivers map. AMD and
    Arm hosts have the events of iommu: and dma:, too; leave intel_iommu out there.
  - dma:* events exist since Linux 6.12. Leave out -e dma on older kernels, where step 1 would fail. Without these events
    a mapping has no device, no direction and no exact length, and the estimates are ranges.
  - intel_iommu:* are not used for the comparison, but --accesses needs them to line a device log up with the trace.
  - Devices that portcullis.ko protects make no iommu: events. Record the module's own events, -e portcullis, instead of
    the others. They carry what dma:* events carry, on older kernels too, and the length of each piece of a scatter list.
  - Passed-through devices (iommu=pt) make no iommu: events. If a trace has none, only its dma:* events are read. These
    leave out coherent memory (dma_alloc), and do not always give the length of each piece of a scatter list.
  - The payload of a buffer shows in the events dma_sync_*_for_cpu, which -e dma includes, and in unmaps of fewer bytes
    than were mapped. The kernel syncs, and prints these events, only if a device bounces or is not coherent with the
    CPUs' caches; on other hosts, x86 among them, only with CONFIG_DMA_API_DEBUG.
  - A trace shows addresses and sizes, not data. It does show which buffers a driver reuses.
";
