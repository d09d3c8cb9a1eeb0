# Two disks and two network cards work at once on four CPUs for ten minutes. One of each is protected, and the other
# passes through.
. /lib.sh
load e1000e && load nvme && load portcullis && card_up && disk_up && until_true [ -b /dev/nvme1n1 ] || fail "a device does not work"
ifconfig eth1 10.0.5.15 netmask 255.255.255.0 up
until_true ping -c 1 -W 1 10.0.5.2 || fail "the second card does not work"
protect "$(card)=$POLICY" && protect "$(disk)=$POLICY" && card_up && disk_up || fail "a device is not protected"
[ "$(grep -c . $SEEN/devices)" = 2 ] || fail "not one card and one disk are protected"
dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
right=$(md5sum </tmp/data | cut -d' ' -f1)
sent=$(fetched)

# works DISK TURN: writes to the disk and reads the data back, without caches.
works() {
	at=$((4 * ($2 % 8)))
	dd if=/tmp/data of="/dev/$1" bs=16k seek=$((64 * at)) oflag=direct 2>/dev/null
	read=$(dd if="/dev/$1" bs=1M skip=$at count=4 iflag=direct 2>/dev/null | md5sum | cut -d' ' -f1)
	[ "$read" = "$right" ] || echo "turn $2, $1"
}
end=$(($(cut -d. -f1 /proc/uptime) + SECONDS_LONG))
turn=0
while [ "$(cut -d. -f1 /proc/uptime)" -lt $end ]; do
	turn=$((turn + 1))
	works nvme0n1 $turn >>/tmp/wrong &
	works nvme1n1 $turn >>/tmp/wrong &
	([ "$(fetched)" = "$sent" ] || echo "turn $turn, fetched") >>/tmp/wrong &
	ping -c 50 -i 0.01 -s 1400 10.0.2.2 | grep -q "50 packets received" || echo "turn $turn, eth0" >>/tmp/wrong
	ping -c 50 -i 0.01 -s 1400 10.0.5.2 | grep -q "50 packets received" || echo "turn $turn, eth1" >>/tmp/wrong
	wait
	[ ! -s /tmp/wrong ] || fail "wrong: $(cat /tmp/wrong)"
done
echo "soak: $turn turns"
cat $SEEN/devices $SEEN/units
[ "$(of_units faults)" = 0 ] || fail "S5 rights: a device was refused what it needed"
[ "$(count "$(disk)" failed)" = 0 ] && [ "$(count "$(card)" failed)" = 0 ] || fail "a map or an unmap has failed"
unbind "$(disk)" && unbind "$(card)" && rmmod portcullis || fail "the module is not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
dmesg | grep "buffers mapped" && fail "a driver has left buffers mapped"
true
