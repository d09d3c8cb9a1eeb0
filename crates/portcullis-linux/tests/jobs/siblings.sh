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
	said "$first is not protected: it can use the id of $second, which is bound to portcullis_edu" || fail "the reason is not said"
	binds "$first" && through "$first" && through "$second" || fail "a refused name has changed something"

	# Neither has a driver. Then one of them has.
	unbind "$first" && unbind "$second" && echo "$first" >$PARAMETER || fail "$first is not taken without a neighbor at work"
	cut_off "$first" && cut_off "$second" || fail "S1 reach: a device that is shut out can use the id of $second, which passes through"
	hush
	binds "$first" && is_protected "$first" || fail "$first is not protected"
	binds "$second" && said "$second stays cut off with $first, which is protected or shut out: the latter can use its id" || fail "nothing says why $second is cut off"
	cut_off "$second" || fail "S1 reach: a driver lets $second through, whose id $first can use"
	echo "$second" 2>/dev/null >/sys/module/portcullis/parameters/open && fail "$second is opened, and its id can be used by $first"
	# It is removed from the machine, and found again.
	unbind "$second" && echo 1 >"/sys/bus/pci/devices/$second/remove" && echo 1 >/sys/bus/pci/rescan
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
	unbind "$first" && unbind "$second" && echo >$PARAMETER && binds "$first" && binds "$second" || fail "a driver does not come again"
}
shift
[ $# = 4 ] || fail "there are $# attackers, and four are expected"
apart "$1" "$2"
apart "$3" "$4"
# The first device that is removed, with one that is cut off with it.
unbind "$1" && unbind "$2" && echo "$1" >$PARAMETER && cut_off "$2" || fail "S1 reach: a device that is shut out can use the id of $2, which passes through"
echo 1 >"/sys/bus/pci/devices/$1/remove"
through "$2" || fail "a device stays cut off with one that is gone"
echo 1 >/sys/bus/pci/rescan && until_true is_protected "$1" && cut_off "$2" && unbind "$1" && echo >$PARAMETER && through "$2" || fail "S1 reach: a device that is shut out as it comes can use the id of $2, which passes through"

# A virtual function comes while its physical function is protected.
disk=$(disk)
protect "$disk" || fail "the disk is not protected"
hush
echo 1 >"/sys/bus/pci/devices/$disk/sriov_numvfs" || fail "there is no virtual function"
function=$(readlink "/sys/bus/pci/devices/$disk/virtfn0")
said "${function##*/} stays cut off with $disk, which is protected or shut out: the latter can use its id" || fail "S1 reach: a virtual function passes through, whose id $disk can use"

# It is accepted by the owner.
rmmod portcullis_test && rmmod nvme && rmmod portcullis && load portcullis_test && load portcullis unisolated=1 || fail "a module is not loaded again"
unbind "$3" && echo "$3" >$PARAMETER && binds "$3" && is_protected "$3" && through "$4" || fail "unisolated=1 does not accept a neighbor"
rmmod portcullis_test && rmmod portcullis || fail "the modules are not unloaded"
