# What NVMe makes of a dead queue. The first unmap fails, and the disk is cut off. Then NVMe ends a read of many pages with
# an error, because the map of its list says that it will never succeed. A read of one page is mapped as a single buffer.
# All errors of such maps are the same, and NVMe repeats the read for ever.
. /lib.sh
load nvme && load portcullis || fail "a module is not loaded"
disk=$(disk)
protect "$disk" && disk_up || fail "the disk is not protected"
reads() { dd if=/dev/nvme0n1 of=/dev/null bs="$1" count=1 iflag=direct 2>&1; }
reads 256k && reads 4k || fail "the disk does not work"
# As in dead.sh.
UNIT=0xfed90000
devmem $((UNIT + 0x18)) 32 $(($(devmem $((UNIT + 0x1c)) 32) & 0x96ffffff & ~(1 << 26)))
hush
reads 4k || fail "the disk does not answer, so nothing is shown"
said "$disk: .* was not unmapped: error -5" && said "$disk is shut out" || fail "S11 completion: the disk is not cut off"
# The kernel waits for reads that are repeated if it is asked to turn the machine off.
end() {
	echo "JOB-DONE $1"
	usleep 500000
	echo b >/proc/sysrq-trigger
}
reads 256k >/tmp/many &
many=$!
usleep 3000000
if kill -0 $many 2>/dev/null || ! grep -q "emote I/O error" /tmp/many; then
	echo "FAILED S11 completion: a read of many pages has not failed"
	end 1
fi
reads 4k >/dev/null &
one=$!
usleep 1000000
before=$(count "$disk" failed)
usleep 2000000
if ! kill -0 $one 2>/dev/null || [ "$(count "$disk" failed)" = "$before" ]; then
	echo "FAILED a read of one page has ended or hangs, and docs/linux.md says that it is repeated for ever"
	end 1
fi
end 0
