# Functions for jobs, which begin with `. /lib.sh`. Where the shell can do something by itself it does, because another
# program takes an emulated machine 10 to 20 ms to start.

PARAMETER=/sys/module/portcullis/parameters/protect
SEEN=/sys/kernel/debug/portcullis
TESTS=/sys/kernel/debug/portcullis_test

# fail TEXT: ends the job as failed.
fail() {
	echo "FAILED $*"
	dmesg | grep portcullis | tail -20
	exit 1
}

# Whether the kernel remaps interrupts, as this machine is to.
[ -z "$REMAPS" ] || dmesg | grep -q "DMAR-IR: Enabled IRQ remapping in ${REMAPS#1}" || fail "interrupts are not remapped"

# load NAME [PARAMETERS]: inserts a module with these parameters, after the modules that it needs and that are missing.
load() {
	name=${1//-/_}
	shift
	order=$name
	if [ -e "/modules/$name.load" ]; then
		order=
		while read -r module; do order="$order $module"; done <"/modules/$name.load"
	fi
	for module in $order; do
		[ ! -e "/sys/module/$module" ] || continue
		if [ "$module" = "$name" ]; then
			insmod "/modules/$module.ko" "$@" || return
		else
			insmod "/modules/$module.ko" || return
		fi
	done
}

# said TEXT: whether the module has logged TEXT since `hush`.
said() { dmesg | grep -q "portcullis: .*$1"; }
hush() { dmesg -c >/dev/null; }

# pci_of NUMBER: the device with these vendor and device numbers, as in 1234:11e8.
pci_of() {
	for device in /sys/bus/pci/devices/*; do
		read -r vendor <"$device/vendor"
		read -r model <"$device/device"
		[ "${vendor#0x}:${model#0x}" = "$1" ] && echo "${device##*/}"
	done
}

driver_of() {
	driver=$(readlink "/sys/bus/pci/devices/$1/driver")
	echo "${driver##*/}"
}
unbind() { echo "$1" >"/sys/bus/pci/devices/$1/driver/unbind"; }
bind() { echo "$1" >"/sys/bus/pci/drivers/$2/bind"; }

# protect DEVICE[=POLICY]: unbinds a device's driver, and binds it again with the device protected.
protect() {
	device=${1%%=*}
	driver=$(driver_of "$device")
	read -r listed <$PARAMETER
	unbind "$device" && echo "${listed:+$listed,}$1" >$PARAMETER && bind "$device" "$driver" || return
	is_protected "$device"
}

is_protected() {
	while read -r name _; do
		[ "$name" != "$1" ] || return 0
	done <$SEEN/devices
	return 1
}

# The file has no size that `test -s` could see.
none_protected() { [ -e $SEEN/devices ] && ! read -r _ <$SEEN/devices; }

# value NAME LINE: sets `value` to the value NAME in the line, or to nothing.
value() {
	value=
	case $2 in
	*" $1 "*)
		value=${2##* "$1" }
		value=${value%% *}
		;;
	esac
}
# count DEVICE NAME: the value NAME in the device's line.
count() {
	while read -r device line; do
		[ "$device" = "$1" ] && value "$2" "$line" && echo "$value"
	done <$SEEN/devices
}
# of_units NAME: the sum of the value NAME over all units.
of_units() {
	sum=0
	while read -r line; do
		value "$1" "$line"
		sum=$((sum + value))
	done <$SEEN/units
	echo $sum
}
# has_faults COUNT: whether at least COUNT faults were recorded. The module polls for faults ten times a second, and
# hardware may record one fault for several refused requests.
has_faults() { [ "$(of_units faults)" -ge "$1" ]; }

# until_true COMMAND...: waits until COMMAND succeeds, for at most ten seconds. The shell expands $(...) in its arguments
# only once.
until_true() {
	turns=100
	while [ $turns -gt 0 ]; do
		"$@" >/dev/null 2>&1 && return
		usleep 100000
		turns=$((turns - 1))
	done
	return 1
}

# name_of CARD: the network interface of a network card.
name_of() {
	for interface in "/sys/bus/pci/devices/$1/net/"*; do
		[ -e "$interface" ] && echo "${interface##*/}" && return
	done
	return 1
}
# The file cannot be read while the interface is down.
is_linked() { read -r carrier <"/sys/class/net/$1/carrier" && [ "$carrier" = 1 ]; }
# starts CARD NETWORK: gives a network card its address in 10.0.NETWORK.0/24, where QEMU's router is. The link comes up
# seconds later.
starts() { until_true name_of "$1" && ifconfig "$(name_of "$1")" "10.0.$2.15" netmask 255.255.255.0 up; }
comes_up() { starts "$1" "$2" && until_true is_linked "$(name_of "$1")"; }
# reaches CARD NETWORK: whether packets reach that router and come back.
reaches() { comes_up "$1" "$2" && until_true ping -c 1 -W 1 "10.0.$2.2"; }
# is_cut_off CARD NETWORK: whether packets do not reach it.
is_cut_off() {
	comes_up "$1" "$2" || return
	if ping -c 2 -W 1 "10.0.$2.2" >/dev/null; then return 1; fi
}

# The first network card.
card() {
	card=$(readlink /sys/class/net/eth0/device)
	echo "${card##*/}"
}
card_up() { until_true [ -e /sys/class/net/eth0 ] && reaches "$(card)" 2; }
# fetched: the checksum of the file that the host sends.
fetched() { nc 10.0.2.100 80 </dev/null | md5sum | cut -d' ' -f1; }

# The first disk.
disk() {
	disk=$(readlink /sys/class/nvme/nvme0/device)
	echo "${disk##*/}"
}
disk_up() { until_true [ -b /dev/nvme0n1 ]; }
# sum_of FROM COUNT: the checksum of COUNT MiB of the disk from MiB FROM on, read without caches.
sum_of() { dd if=/dev/nvme0n1 bs=1M skip="$1" count="$2" iflag=direct 2>/dev/null | md5sum | cut -d' ' -f1; }

# storm TURNS: moves the interrupts of the disk and of the card from CPU to CPU, of four. Sets `moves` to the number of
# changes that the kernel took. Interrupts that the kernel places itself stay where they are.
storm() {
	moves=0
	interrupts=$(sed -n 's/^ *\([0-9]*\):.*\(nvme\|eth\)[0-9].*/\1/p' /proc/interrupts)
	for turn in $(seq "$1"); do
		for interrupt in $interrupts; do
			echo $(((turn + interrupt) % 4)) 2>/dev/null >"/proc/irq/$interrupt/smp_affinity_list" && moves=$((moves + 1))
		done
		usleep 20000
	done
}
# Whether a driver has found out by itself what an interrupt should have told it.
has_lost_interrupts() { dmesg | grep -E "completion polled|timeout, aborting|Detected Hardware Unit Hang|NETDEV WATCHDOG"; }
# arrives CPU: the interrupts of the first network card go to this CPU, and packets arrive there.
arrives() {
	interrupts=$(sed -n 's/^ *\([0-9]*\):.*eth0.*/\1/p' /proc/interrupts)
	for interrupt in $interrupts; do echo "$1" >"/proc/irq/$interrupt/smp_affinity_list"; done
	before=$(of_cpu "$1")
	ping -c 10 -i 0.01 10.0.2.2 | grep -q "10 packets received" && [ "$(of_cpu "$1")" -ge $((before + 10)) ]
}
# of_cpu CPU: the interrupts of that card on this CPU.
of_cpu() { awk -v column=$(($1 + 2)) '/eth0/ { sum += $column } END { print sum + 0 }' /proc/interrupts; }

# registers DEVICE: the address of an attacker's registers. They can be used without its driver, and
# after the kernel has removed the device.
registers() {
	read -r start _ <"/sys/bus/pci/devices/$1/resource"
	echo "$start"
}
# hidden DEVICE: removes an attacker without a driver from the kernel. It still works. Prints where its registers are.
hidden() {
	registers "$1"
	# Turn on its memory decoding and its bus mastering.
	printf '\006' | dd of="/sys/bus/pci/devices/$1/config" bs=1 seek=4 conv=notrunc 2>/dev/null
	echo 1 >"/sys/bus/pci/devices/$1/remove"
}
# moves REGISTERS FROM TO COMMAND: makes that attacker move 16 bytes, if it has bus mastering. It takes 100 ms, and a
# fault is known up to 100 ms later.
moves() {
	devmem $(($1 + 0x80)) 64 "$2"
	devmem $(($1 + 0x88)) 64 "$3"
	devmem $(($1 + 0x90)) 64 16
	devmem $(($1 + 0x98)) 64 "$4"
}
# reads REGISTERS ADDRESS, writes REGISTERS ADDRESS: between ADDRESS and the attacker's buffer.
reads() { moves "$1" "$2" 0x40000 1; }
writes() { moves "$1" 0x40000 "$2" 3; }
# is_refused REGISTERS ADDRESS [writes]: whether such a read, or a write, is refused with one fault.
is_refused() {
	faults=$(of_units faults)
	"${3:-reads}" "$1" "$2"
	until_true has_faults $((faults + 1)) && [ "$(of_units faults)" = $((faults + 1)) ]
}
# is_served REGISTERS ADDRESS [writes]: whether such a read, or a write, causes no fault. QEMU records none for a write
# to a page that was read before.
is_served() {
	faults=$(of_units faults)
	"${3:-reads}" "$1" "$2"
	usleep 400000
	[ "$(of_units faults)" = "$faults" ]
}
