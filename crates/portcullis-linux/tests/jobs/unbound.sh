# A device reaches no memory while it has no driver: before its driver is bound, after it is unbound, after its probe has
# failed, after it was plugged in, and if the module is loaded with its name. Its owner may open it.
. /lib.sh
load portcullis || fail "the module is not loaded"
edu=$(pci_of 1234:11e8)
registers=$(registers "$edu")
SECRET=0x1000000
# The device turns its bus mastering on by itself, as a hostile one does.
master() { printf '\006' | dd of="/sys/bus/pci/devices/$edu/config" bs=1 seek=4 conv=notrunc 2>/dev/null; }
is_open() { master && is_served "$registers" $SECRET; }
is_shut() { master && is_refused "$registers" $SECRET; }
shut_when() { is_shut || fail "S1 reach: the device reads memory $1"; }

is_open || fail "a device that is not named is refused memory, so nothing is shown"
echo "$edu" >$PARAMETER && shut_when "before its driver is bound"
load portcullis_test && is_protected "$edu" || fail "the attacker is not protected"
shut_when "that was not mapped for it"
rmmod portcullis_test && shut_when "after its driver was unbound"
load portcullis_test fail_probe=1 && none_protected || fail "a driver that has failed has left something"
shut_when "after its probe has failed"
rmmod portcullis_test
echo 1 >"/sys/bus/pci/devices/$edu/remove" && echo 1 >/sys/bus/pci/rescan
registers=$(registers "$edu")
shut_when "after it was plugged in"

# It is opened by its owner alone: for once, or by taking it off the list.
hush
echo "$edu" >/sys/module/portcullis/parameters/open && said "$edu is opened without a driver" && is_open || fail "the owner cannot open it"
load portcullis_test && rmmod portcullis_test && shut_when "after its owner had opened it once, and it had a driver again"
echo >$PARAMETER && is_open || fail "a device that is not named any more stays shut out"
echo nonsense >/sys/module/portcullis/parameters/open && fail "nonsense is opened"

# Under `all`, what firmware had at work goes on until its first driver.
echo all >$PARAMETER && is_open || fail "a device that never had a driver is shut out under all"
load portcullis_test && is_protected "$edu" && rmmod portcullis_test && shut_when "after its driver was unbound, under all"
echo >$PARAMETER && is_open || fail "a device stays shut out when all is taken off"
# A driver that takes its device for one without an IOMMU is protected only by name.
hush
echo all >$PARAMETER && load portcullis_test name=i915 && none_protected && is_open || fail "a driver that would be misled is protected under all"
said "$edu is not protected: i915 would take it for a device without an IOMMU" || fail "the reason is not said"
rmmod portcullis_test && shut_when "after i915 was unbound, under all"
echo "$edu" >$PARAMETER && load portcullis_test name=i915 && is_protected "$edu" || fail "a named device with i915 is not protected"
rmmod portcullis_test && echo >$PARAMETER && is_open || fail "a device stays shut out when its name is taken off"

# An external device needs no name to be shut.
load portcullis_test external=1 && is_open && rmmod portcullis_test || fail "the attacker does not get its driver"
shut_when "although it is external, after its driver was unbound"
hush
load portcullis_test && said "$edu is external, and passes through while its driver is bound" && is_open || fail "an external device with its driver is shut out"
rmmod portcullis_test && shut_when "although it is external, after its driver was unbound again"

rmmod portcullis && load portcullis protect="$edu" || fail "the module is not loaded with a name"
shut_when "although the module was loaded with its name"
load portcullis_test && is_protected "$edu" && rmmod portcullis_test || fail "a device that was shut out is not protected"
rmmod portcullis || fail "the module is not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
