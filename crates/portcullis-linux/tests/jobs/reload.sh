# The module is loaded and unloaded ten times while a disk and a network card are at work, their interrupts move, and CPUs
# go and come. Another user of ftrace traces the function that the module redirects. Then interrupts still move.
. /lib.sh
load e1000e && load nvme && card_up && disk_up || fail "a device does not work"
dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct 2>/dev/null
right=$(md5sum </tmp/data | cut -d' ' -f1)
(while [ ! -e /tmp/stop ]; do [ "$(sum_of 0 4)" = "$right" ] || echo WRONG; done >/tmp/disk) &
(ping -i 0.02 10.0.2.2 >/tmp/card) &
(while [ ! -e /tmp/stop ]; do storm 4 && echo "$moves" >/tmp/moves; done) &
echo qi_submit_sync >/sys/kernel/tracing/set_ftrace_filter && echo function >/sys/kernel/tracing/current_tracer || fail "nothing traces"
for turn in 1 2 3 4 5 6 7 8 9 10; do
	load portcullis || fail "turn $turn: the module is not loaded"
	usleep 200000
	cpu=$((turn % 3 + 1))
	echo 0 >/sys/devices/system/cpu/cpu$cpu/online && echo 1 >/sys/devices/system/cpu/cpu$cpu/online || fail "a CPU does not go and come"
	[ "$(of_units faults)" = 0 ] || fail "turn $turn: S5 rights: a device was refused what it needed"
	rmmod portcullis || fail "turn $turn: the module is not unloaded"
done
dmesg | grep "units were taken"
[ -z "$REMAPS" ] || grep -q "qi_submit_sync <-" /sys/kernel/tracing/trace || fail "nothing was traced, so nothing is shown"
touch /tmp/stop
killall -INT ping
wait
[ "$(cat /tmp/moves)" -ge 8 ] || fail "interrupts were not moved"
[ ! -s /tmp/disk ] || fail "the disk was read wrongly"
grep -q " 0% packet loss" /tmp/card || fail "packets were lost: $(tail -2 /tmp/card)"
[ "$(dmesg | grep -c "gone, and nothing is left behind")" = 10 ] || fail "memory is left behind"
! has_lost_interrupts || fail "an interrupt was lost"
arrives 1 && arrives 3 && arrives 0 || fail "interrupts do not move any more"
