# Devices that share an id: none of them is protected, and none passes through while another is shut out.
. /lib.sh
load portcullis && load portcullis_test || fail "a module is not loaded"
set -- $(pci_of 1234:11e8)
# Two on the first bus, and two behind a bridge to conventional PCI.
alone=$1 aliased=$2 left=$3 right=$4
memory=0x1000000
cut_off() { is_refused "$(registers "$1")" $memory; }
through() { is_served "$(registers "$1")" $memory; }
all_through() { through "$alone" && through "$aliased" && through "$left" && through "$right"; }
# again DEVICE LIST: binds the device's driver again, with the devices in LIST named.
again() { unbind "$1" && echo "$2" >$PARAMETER && bind "$1" portcullis_edu; }
all_through || fail "a device is shut out with the module loaded"

# A name is refused while another device is at work that would be cut off.
unbind "$left" && hush || fail "the driver does not go"
echo "$left" 2>/dev/null >$PARAMETER && fail "$left is taken, and $right passes through"
said "$left is not protected: that would cut off $right, which passes through (portcullis_edu): they share an id" || fail "the reason is not said"
# Both devices are named.
unbind "$right" && echo "$left" >$PARAMETER && bind "$left" portcullis_edu && bind "$right" portcullis_edu && hush && again "$right" "$left,$right" || fail "a driver is not bound again"
said "$right is not protected: behind the bridge .* to conventional PCI all devices have one id; put it into" || fail "the reason is not said"
cut_off "$left" && cut_off "$right" || fail "S1 reach: a device that is shut out gets through"
# The driver of one is unbound, and the other stays shut out. Then the other way round.
unbind "$left" && cut_off "$right" || fail "S1 reach: the end of one driver lets a device through that is shut out"
bind "$left" portcullis_edu && unbind "$right" && cut_off "$left" || fail "S1 reach: the end of the other driver lets a device through that is shut out"
# A neighbor that is not named is unbound, bound again, removed from the machine, and found again.
hush
echo "$left" >$PARAMETER && said "$right stays cut off with $left, which is protected or shut out: they share an id" || fail "nothing says why $right is cut off"
bind "$right" portcullis_edu && cut_off "$left" && cut_off "$right" || fail "S1 reach: a driver's start lets a device through that is shut out"
again "$right" "$left" && cut_off "$left" || fail "S1 reach: a neighbour's driver lets a device through that is shut out"
echo 1 >"/sys/bus/pci/devices/$right/remove"
echo 1 >/sys/bus/pci/rescan
until_true [ -e "/sys/bus/pci/devices/$right/driver" ] && cut_off "$left" && cut_off "$right" || fail "S1 reach: a neighbour that comes lets a device through that is shut out"
# The driver of the bridge is unbound.
bridge=$(basename "$(dirname "$(readlink -f "/sys/bus/pci/devices/$left")")")
if [ -e "/sys/bus/pci/devices/$bridge/driver" ]; then
	unbind "$bridge" && cut_off "$left" || fail "S1 reach: the bridge's driver lets a device through that is shut out"
fi
again "$left" "" && all_through || fail "a device is not let through again"
# Both are shut out without their names, and the bridge is found again.
unbind "$left" && unbind "$right" && echo all >$PARAMETER && bind "$left" portcullis_edu && bind "$right" portcullis_edu && unbind "$left" && unbind "$right" || fail "a driver does not come or go"
if [ -e "/sys/bus/pci/devices/$bridge/driver" ]; then
	driver=$(driver_of "$bridge")
	unbind "$bridge" && bind "$bridge" "$driver" || fail "the driver of the bridge does not come"
fi
printf '\006' | dd of="/sys/bus/pci/devices/$left/config" bs=1 seek=4 conv=notrunc 2>/dev/null
cut_off "$left" || fail "S1 reach: the bridge's driver lets a device through that is shut out"
echo >$PARAMETER && bind "$left" portcullis_edu && bind "$right" portcullis_edu && all_through || fail "a device is not let through again"

# The kernel knows that a device uses the id of its neighbor.
echo "$alone 0x$(printf %02x $((0x${aliased:8:2} << 3)))" >$TESTS/alias || fail "no alias is set"
unbind "$alone" && hush
again "$aliased" "$aliased" && said "$aliased is not protected: $alone uses its id too" || fail "$aliased is protected, and $alone uses its id"
unbind "$aliased" && echo "$alone" >$PARAMETER && said "$aliased stays cut off with $alone, .*: they share an id" || fail "nothing says why $aliased is cut off"
bind "$alone" portcullis_edu && said "$alone is not protected: it uses the ids of other functions too" || fail "$alone is protected, and uses the id of $aliased"
cut_off "$alone" && bind "$aliased" portcullis_edu && cut_off "$aliased" || fail "S1 reach: the id of a device that is shut out passes through for its neighbour"
again "$alone" "" && all_through || fail "a device is not let through again"

# A device that the kernel has removed reaches nothing. When it is found again, it passes through.
unbind "$alone" || fail "the driver does not go"
gone=$(hidden "$alone")
is_refused "$gone" $memory || fail "S1 reach: a device gets through after the kernel has removed it"
echo 1 >/sys/bus/pci/rescan
until_true [ -e "/sys/bus/pci/devices/$alone/driver" ] && through "$alone" || fail "a device that is found again is shut out"

# The same of the last two devices behind the bridge. Their id passes as long as one of them is there.
unbind "$left" && unbind "$right" || fail "a driver does not go"
gone=$(hidden "$left")
is_served "$gone" $memory || fail "the id of a device that is there does not pass through"
hidden "$right" >/dev/null
is_refused "$gone" $memory || fail "S1 reach: an id passes through when all that used it were removed"

rmmod portcullis_test && rmmod portcullis || fail "the modules are not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
