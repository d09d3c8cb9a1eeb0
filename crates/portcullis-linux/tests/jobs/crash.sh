# The kernel crashes while protected devices are at work. The crash kernel takes the unit over with their tables, so that
# the DMA that is still going on stays within its buffers. Then the drivers make the devices work again.
. /lib.sh
second=$(sed -n 's/.* second=\([0-9a-f]*\).*/\1/p' /proc/cmdline)
if [ -n "$second" ]; then
	dmesg | grep "DMAR"
	[ -e /proc/vmcore ] || fail "this is no crash kernel"
	dmesg | grep -q "DMAR: Copied translation tables from previous kernel" || fail "the crash kernel has not taken the tables over"
	load e1000e && load nvme && card_up && disk_up || fail "a device does not work in the crash kernel"
	[ "$(sum_of 0 8)" = "$second" ] || fail "the disk is read wrongly in the crash kernel"
	ping -c 20 -i 0.01 -s 1400 10.0.2.2 | grep -q "20 packets received" || fail "packets get lost in the crash kernel"
	dmesg | grep "DMAR: .*fault" && fail "a device is refused something in the crash kernel"
	exit 0
fi
load e1000e && load nvme && load portcullis && card_up && disk_up || fail "a device does not work"
protect "$(card)" && protect "$(disk)" && card_up && disk_up || fail "a device is not protected"
dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct 2>/dev/null
right=$(md5sum </tmp/data | cut -d' ' -f1)
(cd / && ls -d init lib.sh job.sh bin bin/busybox bin/sh modules modules/* | cpio -o -H newc) >/tmp/second 2>/dev/null
line="$(sed 's/crashkernel=[^ ]*//' /proc/cmdline) nr_cpus=1 reset_devices intel_iommu=on second=$right"
kexec load-crash /vmlinuz /tmp/second "$line" || fail "the crash kernel is not loaded"
(while sum_of 0 8 >/dev/null; do :; done) &
ping -i 0.01 10.0.2.2 >/dev/null &
usleep 500000
echo c >/proc/sysrq-trigger
fail "the kernel does not crash"
