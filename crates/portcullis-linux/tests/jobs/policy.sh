# Devices that cannot be protected are refused, and the log has the reason. A named device is shut out; others pass
# through.
. /lib.sh
load e1000e && load e1000 && load nvme && load portcullis || fail "a module is not loaded"
direct=$(pci_of 8086:10d3 | grep "^0000:00:")
switched=$(pci_of 8086:10d3 | grep -v "^0000:00:")
bridged=$(pci_of 8086:100e)
# Starts all at once, because each takes seconds.
start_all() { starts "$direct" 2 && starts "$bridged" 3 && starts "$switched" 4; }
all_work() { start_all && reaches "$direct" 2 && reaches "$bridged" 3 && reaches "$switched" 4 && disk_up; }
all_work || fail "a device does not work with the module loaded"

# again LIST: unbinds the drivers of the devices that cannot be protected, and binds them again with LIST named.
again() {
	unbind "$bridged" && unbind "$switched" && echo "$1" >$PARAMETER && bind "$bridged" e1000 && bind "$switched" e1000e || fail "a driver does not come again"
}
# refused CARD REASON: checks that the card was refused for this reason and is shut out.
refused() {
	grep -q "^$1 " $SEEN/devices && fail "$1 is protected"
	said "$1 is not protected: $2" || fail "$1 is refused, and the reason is not: $2"
	said "$1 stays shut out" || fail "$1 is not protected, and not shut out"
}
[ "$(of_units faults)" = 0 ] || fail "a device that passes through was refused something"
hush
again "$bridged,$switched"
refused "$bridged" "behind the bridge .* to conventional PCI all devices have one id"
refused "$switched" "the port .* does not keep it apart from other devices"
start_all
is_cut_off "$bridged" 3 && is_cut_off "$switched" 4 || fail "S1 reach: packets of a card get through that should be shut out"
has_faults 1 || fail "S1 reach: a card that should be shut out was refused nothing"

again ""
all_work || fail "a card does not work when it is let through again"

rmmod portcullis && load portcullis unisolated=1 || fail "the module is not loaded again"
protect "$switched" && reaches "$switched" 4 || fail "unisolated=1 does not protect what is behind a switch"

# With protect=all, every device that can be protected is, from the first driver on.
rmmod e1000e && rmmod e1000 && rmmod nvme && rmmod portcullis && load portcullis protect=all || fail "the module is not loaded again"
hush
load e1000e && load e1000 && load nvme && load portcullis_test || fail "a driver is not loaded"
all_work || fail "a device does not work with protect=all"
for device in "$direct" "$(disk)" "$(pci_of 1234:11e8)"; do
	grep -q "^$device " $SEEN/devices || fail "$device is not protected with protect=all"
done
for device in "$bridged" "$switched"; do
	said "$device passes through, for it cannot be protected" || fail "$device is not protected, and nothing says so"
	grep -q "^$device " $SEEN/devices && fail "$device is protected, and said not to be"
done
true
