# Measures the works one after another. A number is valid only if the configuration was as intended, before and after.
# Variables are set in front of this script: MODE is none, linux or ours; EXPECT is what implements the DMA API for the
# devices: the type of their IOMMU groups, or DESIGN/PROTECTION.
. /lib.sh
# Many, because newer kernels count idle time in ticks of 4 ms.
DATAGRAMS=40000
READS=10000
SENDER=0000:00:04.0
RECEIVER=0000:00:05.0
DISK=0000:00:06.0

# serves DEVICE: what implements the DMA API for it, as in EXPECT.
serves() {
	group=/sys/bus/pci/devices/$1/iommu_group
	if [ -e "$group" ]; then
		cat "$group/type"
	elif [ -e $SEEN/devices ]; then
		sed -n "s,^$1 design \([a-z]*\) protection \([a-z]*\) .*,\1/\2,p" $SEEN/devices
	else
		echo none
	fi
}
is_as_meant() {
	for device in $SENDER $RECEIVER $DISK; do
		[ "$(serves $device)" = "$EXPECT" ] || fail "$device is served by $(serves $device) instead of $EXPECT"
		[ $MODE != ours ] || [ "$(count $device failed)" = 0 ] || fail "a map or an unmap of $device has failed"
	done
}
maps() { if [ $MODE = ours ]; then count "$1" maps; else echo 0; fi; }
# have_mapped COUNT DEVICE BEFORE: with MODE=ours, checks that the device has mapped COUNT times or more since BEFORE.
have_mapped() { [ $MODE != ours ] || [ $(($(maps "$2") - $3)) -ge "$1" ] || fail "$2 has mapped less than $1 times"; }
# work NAME FILE ARGUMENTS: runs a work of the test module. The last line of the log has the result.
work() {
	echo "$3" >$TESTS/$2 || fail "$1 does not work"
	echo "work $1 $(dmesg | grep portcullis_test: | tail -n 1)"
}
received() { cat "/sys/class/net/$1/statistics/rx_packets"; }

if [ $MODE = ours ]; then
	load portcullis && echo "$SENDER=$EXPECT,$RECEIVER=$EXPECT,$DISK=$EXPECT" >$PARAMETER || fail "the module is not loaded"
fi
load portcullis_test && load e1000e && load nvme && disk_up || fail "a driver is not loaded"
is_as_meant
# The capabilities of the table walkers.
sed -n 's/.* ecap \([^ ]*\).*/ecap \1/p' $SEEN/units 2>/dev/null
sed 's/^/ecap 0x/' /sys/class/iommu/*/intel-iommu/ecap 2>/dev/null

# The cards are idle, so nothing else maps.
for pair in "2k 2048 16384 32" "64k 65536 16384 1"; do
	set -- $pair
	echo "$SENDER $2 1024 $4" >$TESTS/pairs || fail "pairs do not work"
	before=$(maps $SENDER)
	work "pair-$1" pairs "$SENDER $2 $3 $4"
	have_mapped "$3" $SENDER "$before"
done

# One card sends to the other, which has another address and drops what it receives.
from=$(name_of $SENDER) to=$(name_of $RECEIVER)
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >"$file"; done
ifconfig "$from" 10.0.2.15 netmask 255.255.255.0 up && ifconfig "$to" 10.9.9.9 netmask 255.255.255.0 up || fail "a card is not up"
until_true is_linked "$from" && until_true is_linked "$to" || fail "a card has no link"
arp -i "$from" -s 10.0.2.99 "$(cat "/sys/class/net/$to/address")" || fail "there is no way to the other card"
for bytes in 64 1400; do
	echo "10.0.2.99 $bytes 2000" >$TESTS/datagrams || fail "datagrams do not work"
	sent=$(maps $SENDER) got=$(maps $RECEIVER) before=$(received "$to")
	work "datagram-$bytes" datagrams "10.0.2.99 $bytes $DATAGRAMS"
	have_mapped "$DATAGRAMS" $SENDER "$sent"
	have_mapped $((DATAGRAMS / 100 * 99)) $RECEIVER "$got"
	[ $((($(received "$to") - before) * 100)) -ge $((DATAGRAMS * 99)) ] || fail "$to has not received what $from has sent"
done

# With a scheduler, another task submits a read, and does not get to run while the test waits for the read in a loop.
# Without one, the test submits it.
echo none >/sys/block/nvme0n1/queue/scheduler || fail "the disk has a scheduler"
echo "/dev/nvme0n1 2000" >$TESTS/reads || fail "reads do not work"
before=$(maps $DISK)
work nvme-read-4k reads "/dev/nvme0n1 $READS"
have_mapped "$READS" $DISK "$before"
is_as_meant
