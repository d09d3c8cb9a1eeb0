# Functions of one slot, and devices below one port, can use each other's ids. While one of them is protected, the others
# are protected or cut off.
. /lib.sh
load nvme && load portcullis && load portcullis_test || fail "a module is not loaded"
set -- $(pci_of 1234:11e8)
memory=0x1000000
# A hostile device turns its bus mastering on by itself.
master() { printf '\006' | dd of="/sys/bus/pci/devices/$1/config" bs=1 seek=4 conv=notrunc 2>/dev/null; }
cut_off() { master "$1" && is_refused "$(registers "$1")" $memory; }
through() { master "$1" && is_served "$(registers "$1")" $memory; }
binds() { bind "$1" portcullis_edu; }

# apart FIRST SECOND
apart() {
	first=$1 second=$2
	through "$first" && through "$second" || fail "a device that is not named is cut off"
	# The other one has a driver, and nothing maps its buffers.
	hush
	unbind "$first" && ! echo "$first" 2>/dev/null >$PARAMETER || fail "$first is taken, and $second passes through"
	said "$first is not protected: that would cut off $second, which passes through (portcullis_edu): one can use the id of the other" || fail "the reason is not said"
	binds "$first" && through "$first" && through "$second" || fail "a refused name has changed something"

	# Neither has a driver. Then one of them has.
	unbind "$first" && unbind "$second" && echo "$first" >$PARAMETER || fail "$first is not taken without a neighbor at work"
	cut_off "$first" && cut_off "$second" || fail "S1 reach: a device that is shut out can use the id of $second, which passes through"
	hush
	binds "$first" && is_protected "$first" || fail "$first is not protected"
	binds "$second" && said "$second stays cut off with $first, which is protected or shut out: one can use the id of the other" || fail "nothing says why $second is cut off"
	cut_off "$second" || fail "S1 reach: a driver lets $second through, whose id $first can use"
	unbind "$second" && hush
	echo "$second" 2>/dev/null >/sys/module/portcullis/parameters/open && fail "$second is opened, and its id can be used by $first"
	said "$second stays cut off with $first" || fail "$second is not opened, and not because of $first"
	# It is removed from the machine, and found again.
	echo 1 >"/sys/bus/pci/devices/$second/remove" && echo 1 >/sys/bus/pci/rescan
	until_true [ -e "/sys/bus/pci/devices/$second/driver" ] && cut_off "$second" || fail "S1 reach: a neighbor that comes lets $first use an id that passes through"

	# Both are named, and are protected each by its own domain.
	unbind "$second" && echo "$first,$second" >$PARAMETER && binds "$second" && is_protected "$second" && is_protected "$first" || fail "neighbors are not protected together"
	unbind "$first" && cut_off "$first" || fail "S1 reach: a device passes through without its driver"
	echo "$first" 2>/dev/null >/sys/module/portcullis/parameters/open && fail "$first is opened, and its id can be used by $second"
	cut_off "$first" || fail "S1 reach: a device that was refused to its owner passes through"
	# The end of one leaves the other protected, and itself cut off.
	echo "$second" >$PARAMETER && cut_off "$first" && is_protected "$second" || fail "S1 reach: a device passes through whose id $second can use"
	unbind "$second" && echo >$PARAMETER && through "$first" && through "$second" || fail "a device is not let through again"

	# Under `all`, a device without a driver is cut off together with the first that has one.
	echo all >$PARAMETER && through "$second" && binds "$first" && is_protected "$first" && cut_off "$second" || fail "S1 reach: under all, $first can use the id of $second, which passes through"
	binds "$second" && is_protected "$second" || fail "$second is not protected under all"
	unbind "$first" && unbind "$second" || fail "a driver does not go"
	# A device that was named and is under `all` now costs no neighbor.
	echo "$first" >$PARAMETER && binds "$second" && cut_off "$second" || fail "S1 reach: a device passes through whose id $first can use"
	echo all >$PARAMETER && cut_off "$first" && through "$second" || fail "$second stays cut off with $first, which is not named any more"
	unbind "$second" || fail "a driver does not go"
	# What cannot be protected costs no neighbor that is at work: neither by its driver's end, nor as an external device.
	echo >$PARAMETER && binds "$second" && echo all >$PARAMETER || fail "a driver does not come again"
	hush
	binds "$first" && said "$first is not protected: that would cut off $second" && through "$first" || fail "$first is not let through under all"
	unbind "$first" && cut_off "$first" || fail "S1 reach: under all, a device passes through without its driver"
	through "$second" || fail "a device that is at work is cut off with $first, which is not named"
	echo >$PARAMETER && binds "$first" && through "$first" && through "$second" || fail "a driver does not come again"
}
shift
[ $# = 5 ] || fail "there are $# attackers, and five are expected"
apart "$1" "$2"
apart "$3" "$4"

# The port above a protected device loses its state, as in a reset, and firmware has left direct ways open. Linux does
# nothing about it. A device whose port does not answer is shut out.
port=$(basename "$(dirname "$(readlink -f "/sys/bus/pci/devices/$3")")")
control=$((0x14e))
has_acs() { [ "$(dd if="/sys/bus/pci/devices/$port/config" bs=1 skip=$control count=1 2>/dev/null | od -An -tu1 | tr -d ' ')" = "$1" ]; }
unbind "$3" && unbind "$4" && echo "$3" >$PARAMETER && binds "$3" && is_protected "$3" || fail "$3 is not protected"
has_acs 31 || fail "the port above a protected device does not do all that it can to keep it apart (ACS)"
hush
printf '\100' | dd of="/sys/bus/pci/devices/$port/config" bs=1 seek=$control conv=notrunc 2>/dev/null
until_true has_acs 31 || fail "S1 reach: the port above a protected device stays open after it has lost its state"
said "the port $port had ceased to keep $3 apart" && is_protected "$3" || fail "nothing says that a port has lost its state"
echo "$port" >$TESTS/gone && until_true said "$3 is shut out: bind its driver again" || fail "S1 reach: the port above a protected device answers nothing, and is believed"
echo >$TESTS/gone && cut_off "$3" || fail "S1 reach: a device whose port did not answer reaches memory"
echo "$port" >$TESTS/gone && unbind "$3" && hush && binds "$3" && said "$3 stays shut out" && echo >$TESTS/gone || fail "a device is protected below a port that does not answer"
unbind "$3" && binds "$3" && is_protected "$3" || fail "a bind does not give a device back whose port had not answered"
unbind "$3" && echo >$PARAMETER && through "$3" && through "$4" && binds "$3" && binds "$4" || fail "a device is not let through again"

# The first device is removed from the kernel while it is shut out, and still works. It counts as long as it is named.
unbind "$1" && unbind "$2" && echo "$1" >$PARAMETER && cut_off "$2" || fail "S1 reach: a device that is shut out can use the id of $2, which passes through"
gone=$(hidden "$1")
is_refused "$gone" $memory && cut_off "$2" || fail "S1 reach: a device passes through whose id can be used by $1, which was removed"
binds "$2" && cut_off "$2" || fail "S1 reach: a driver opens a device whose id can be used by $1, which was removed"
echo >$PARAMETER && through "$2" || fail "a device stays cut off with one that is gone and not named any more"
echo 1 >/sys/bus/pci/rescan && until_true [ -e "/sys/bus/pci/devices/$1/driver" ] && through "$1" || fail "a device that is found again is shut out"
# It is named, removed, and found again.
unbind "$1" && unbind "$2" && echo "$1" >$PARAMETER && gone=$(hidden "$1") && echo 1 >/sys/bus/pci/rescan && until_true is_protected "$1" && cut_off "$2" || fail "S1 reach: a device is found again, and $2 passes through"
unbind "$1" && echo >$PARAMETER && through "$1" && through "$2" || fail "S1 reach: a device that is shut out as it comes can use the id of $2, which passes through"

# A graphics device may get a driver that has to pass through, so its neighbor is not protected unless it is named.
graphics=$(pci_of 1002:5046)
beside=$5
unbind "$beside" && hush && echo all >$PARAMETER && binds "$beside" && through "$beside" || fail "the neighbor of a graphics device is not let through under all"
# It is shut out after it was plugged in.
unbind "$beside" && echo 1 >"/sys/bus/pci/devices/$graphics/remove" && echo 1 >/sys/bus/pci/rescan && binds "$beside" && through "$beside" || fail "the neighbor of a graphics device that was plugged in is not let through under all"
said "$beside is not protected: that would cut off $graphics" || fail "nothing says why $beside is not protected"
unbind "$beside" && echo "$beside" >$PARAMETER && binds "$beside" && is_protected "$beside" || fail "the neighbor of a graphics device is not protected by its name"
unbind "$beside" && echo >$PARAMETER || fail "the driver does not go"

# A virtual function comes while its physical function is at work, and while it is protected.
disk=$(disk)
is_live() { read -r state </sys/class/nvme/nvme0/state && [ "$state" = live ]; }
echo all >$PARAMETER && echo 1 >"/sys/bus/pci/devices/$disk/sriov_numvfs" || fail "there is no virtual function"
echo 1 >/sys/class/nvme/nvme0/reset_controller && until_true is_live || fail "a virtual function cuts off its physical function, which is not protected"
echo 0 >"/sys/bus/pci/devices/$disk/sriov_numvfs" && echo >$PARAMETER && protect "$disk" || fail "the disk is not protected"
hush
echo 1 >"/sys/bus/pci/devices/$disk/sriov_numvfs" || fail "there is no virtual function"
function=$(readlink "/sys/bus/pci/devices/$disk/virtfn0")
said "${function##*/} stays cut off with $disk, which is protected or shut out: one can use the id of the other" || fail "S1 reach: a virtual function passes through, whose id $disk can use"

# The drivers of two neighbors are bound at the same time.
echo >$PARAMETER && through "$1" && through "$2" && echo all >$PARAMETER && echo "$2" >$TESTS/slow || fail "no bind is slow"
binds "$2" &
usleep 300000
binds "$1" && is_protected "$1" || fail "$1 is not protected while a driver of $2 is being bound"
wait && is_protected "$2" || fail "$2 is not protected when its driver was bound with that of $1"

# It is accepted by the owner.
rmmod portcullis_test && rmmod nvme && rmmod portcullis && load portcullis_test && load portcullis unisolated=1 || fail "a module is not loaded again"
unbind "$3" && echo "$3" >$PARAMETER && binds "$3" && is_protected "$3" && through "$4" || fail "unisolated=1 does not accept a neighbor"

# An external card whose first function gets no driver.
rmmod portcullis_test && rmmod portcullis && load portcullis && load portcullis_test external=1 || fail "a module is not loaded again"
unbind "$3" && cut_off "$3" || fail "S1 reach: an external device passes through without its driver"
through "$4" || fail "an external device that is at work is cut off with $3, which has no driver"
rmmod portcullis_test && rmmod portcullis || fail "the modules are not unloaded"
