# The units are brought up while a disk and a network card are in use. Then both are protected, beside a device that is
# not. Drivers are unbound and bound again, and interrupts move from CPU to CPU. Every byte must be right.
. /lib.sh
load e1000e && load nvme && card_up && disk_up || fail "a device does not work"
dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct 2>/dev/null
right=$(md5sum </tmp/data | cut -d' ' -f1)
sent=$(fetched)
[ "$(sum_of 0 4)" = "$right" ] && [ "$sent" != "$(md5sum </dev/null | cut -d' ' -f1)" ] || fail "a device does not work"

has_unmapped_all() { [ "$(count "$1" live_ranges)" = "$(count "$1" lasting)" ]; }

# Load the module under live traffic.
(for turn in 1 2 3 4; do [ "$(sum_of 0 4)" = "$right" ] || echo WRONG; done >/tmp/disk) &
ping -c 20 -i 0.1 10.0.2.2 >/tmp/card &
usleep 300000
load portcullis || fail "the module is not loaded"
storm 4
wait
[ ! -s /tmp/disk ] || fail "the disk was read wrongly while the module was loaded"
grep -q "20 packets received" /tmp/card || fail "packets were lost while the module was loaded"
[ "$(of_units faults)" = 0 ] || fail "a device was shut out while the module was loaded"

protect "$(card)=$POLICY" && protect "$(disk)=$POLICY" && card_up && disk_up || fail "a device is not protected"
for round in 1 2; do
	for part in 0 1 2 3; do
		(
			[ "$(sum_of $part 1)" = "$(dd if=/tmp/data bs=1M skip=$part count=1 2>/dev/null | md5sum | cut -d' ' -f1)" ] ||
				echo "round $round, reader $part"
		) >>/tmp/wrong &
		(
			dd if=/tmp/data of=/dev/nvme0n1 bs=16k seek=$((1024 + 256 * part)) oflag=direct 2>/dev/null
			[ "$(sum_of $((16 + 4 * part)) 4)" = "$right" ] || echo "round $round, writer $part"
		) >>/tmp/wrong &
	done
	([ "$(fetched)" = "$sent" ] || echo "round $round, card") >>/tmp/wrong &
	ping -c 100 -i 0.01 -s 1400 10.0.2.2 >/tmp/pings &
	storm 12
	[ "$moves" -ge 40 ] || fail "only $moves changes of affinity"
	wait
	[ ! -s /tmp/wrong ] || fail "wrong bytes: $(cat /tmp/wrong)"
	grep -q "100 packets received" /tmp/pings || fail "packets were lost"
	driver=$(driver_of "$(card)")
	device=$(card)
	unbind "$device" && bind "$device" "$driver" && card_up || fail "the card is not bound again"
done
cat $SEEN/devices $SEEN/units
[ "$(count "$(disk)" maps)" -gt 500 ] && [ "$(count "$(card)" maps)" -gt 100 ] || fail "the domains were not used"
until_true has_unmapped_all "$(disk)" || fail "S2 strict: the disk keeps buffers that it does not use"
[ "$(count "$(disk)" failed)" = 0 ] && [ "$(count "$(card)" failed)" = 0 ] || fail "a map or an unmap has failed"
[ "$(of_units faults)" = 0 ] || fail "S5 rights: a device was refused what it needed"
! has_lost_interrupts || fail "an interrupt was lost"
arrives 1 && arrives 3 && arrives 0 || fail "the card's interrupts do not move"
if [ -n "$REMAPS" ]; then
	[ "$(of_units remaps_interrupts)" = 1 ] && [ "$(of_units forwarded)" -gt 0 ] || fail "the kernel has not used the queue"
	! echo 0 2>/dev/null >/proc/sys/kernel/ftrace_enabled || fail "what redirects the kernel can be turned off"
fi
if rmmod portcullis 2>/dev/null; then fail "the module is unloaded while devices are protected"; fi

device=$(disk)
card=$(card)
unbind "$device" && unbind "$card" || fail "a driver does not go"
none_protected || fail "a device is protected without a driver"
rmmod portcullis || fail "the module is not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
dmesg | grep "buffers mapped" && fail "a driver has left buffers mapped"
bind "$device" nvme && disk_up && [ "$(sum_of 0 4)" = "$right" ] || fail "the disk does not work without the module"
bind "$card" "$driver" && card_up && arrives 2 && arrives 1 || fail "the card's interrupts do not move without the module"
storm 3
[ "$(sum_of 0 4)" = "$right" ] && ! has_lost_interrupts || fail "an interrupt was lost without the module"
