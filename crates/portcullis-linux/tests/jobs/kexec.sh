# A kernel with protected devices at work starts another kernel, which finds the unit off and protects the devices again.
. /lib.sh
load e1000e && load nvme && load portcullis && card_up && disk_up || fail "a device does not work"
protect "$(card)" && protect "$(disk)" && card_up && disk_up || fail "a device is not protected"

second=$(sed -n 's/.* second=\([0-9a-f]*\).*/\1/p' /proc/cmdline)
if [ -n "$second" ]; then
	[ "$(sum_of 0 8)" = "$second" ] || fail "the disk is read wrongly in the second kernel"
	ping -c 20 -i 0.01 -s 1400 10.0.2.2 | grep -q "20 packets received" || fail "packets get lost in the second kernel"
	[ "$(count "$(disk)" maps)" -gt 0 ] && [ "$(of_units faults)" = 0 ] || fail "a device does not use its domain in the second kernel"
	exit 0
fi

dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct 2>/dev/null
right=$(md5sum </tmp/data | cut -d' ' -f1)
(cd / && ls -d init lib.sh job.sh bin bin/busybox bin/sh modules modules/* | cpio -o -H newc) >/tmp/second 2>/dev/null
kexec load /vmlinuz /tmp/second "$(cat /proc/cmdline) second=$right" || fail "the second kernel is not loaded"
(while sum_of 0 8 >/dev/null; do :; done) &
ping -i 0.01 10.0.2.2 >/dev/null &
usleep 500000
kexec go
fail "the second kernel does not start"
