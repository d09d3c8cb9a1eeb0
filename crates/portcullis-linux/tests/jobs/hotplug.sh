# A network card is plugged in while all devices are protected, and is protected too. It is unplugged while it is at work,
# and leaves nothing behind.
. /lib.sh
load e1000e && load portcullis protect=all || fail "a module is not loaded"
# QEMU's monitor. The serial line must not echo what the monitor prints.
exec 3<>/dev/ttyS1
stty raw -echo <&3
comes() {
	for try in $(seq 20); do
		# QEMU refuses this while the former card still has power, and if the card is already there.
		echo "device_add e1000e,netdev=net,bus=hot,id=card" >&3
		sleep 1
		[ ! -e /sys/class/net/eth0 ] || return 0
	done
	return 1
}
# Unplugging takes five seconds, as on servers, because an operator may press the button again to cancel.
has_gone() { [ ! -e "/sys/bus/pci/devices/$card" ]; }

for round in 1 2; do
	[ ! -e /sys/class/net/eth0 ] && comes || fail "round $round: no card comes"
	card=$(card)
	grep -q "^$card design portcullis protection strict " $SEEN/devices || fail "round $round: the card that came is not protected"
	card_up || fail "round $round: the card that came does not work"
	[ "$(count "$card" maps)" -gt 0 ] || fail "round $round: the card that came does not use its domain"
	ping -i 0.01 10.0.2.2 >/dev/null &
	pings=$!
	usleep 200000
	echo "device_del card" >&3
	until_true has_gone || until_true has_gone || fail "round $round: the card does not go"
	kill $pings 2>/dev/null
	grep "^$card " $SEEN/devices && fail "round $round: the card has gone, and is still protected"
done
dmesg | grep "buffers mapped" && fail "the card's driver has left buffers mapped"
[ "$(of_units faults)" = 0 ] || fail "S5 rights: a card was refused what it needed"
rmmod portcullis || fail "the module is not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
