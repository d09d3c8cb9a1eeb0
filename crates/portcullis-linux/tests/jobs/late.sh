# A driver is unbound, and pages that it has mapped are unmapped later: in the domain in which they were mapped, and in no
# other.
. /lib.sh
load portcullis && load portcullis_test || fail "a module is not loaded"
edu=$(pci_of 1234:11e8)
protect "$edu" || fail "the attacker is not protected"
live() { count "$edu" live_ranges; }
has_live() { [ "$(live)" = "$1" ]; }
# attacked AFTER: whether a write before the unmap of its buffer lands, and a write after the unmap has the result AFTER.
attacked() {
	hush
	echo "buffer 1" >$TESTS/attack || return
	dmesg | grep -q "attack: buffer, while mapped landed, after the unmap $1"
}

echo "take 0" >$TESTS/late && [ "$(live)" -ge 8 ] || fail "no pages are mapped"
hush
unbind "$edu" || fail "the driver does not go"
said "$edu: its driver has left [0-9]* buffers mapped; it stays protected until they are unmapped" || fail "nothing says that buffers are still mapped"
if rmmod portcullis 2>/dev/null; then fail "S10 lifetime: the module is unloaded while buffers are mapped"; fi

# The next driver gets the same domain. The late unmaps do not affect its buffers.
hush
bind "$edu" portcullis_edu && said "$edu is protected as before" || fail "the driver is not bound again"
echo "take 1" >$TESTS/late && both=$(live) && attacked refused || fail "the device does not work while buffers of its former driver are mapped"
echo "give 0" >$TESTS/late && until_true has_live $((both - 8)) || fail "what was left is not unmapped"
attacked refused && [ "$(count "$edu" failed)" = 0 ] || fail "S2 strict: a late unmap has hit a buffer of the next driver"

# The device keeps its domain even if it is not named any more.
unbind "$edu" && echo >$PARAMETER && bind "$edu" portcullis_edu && attacked refused || fail "S1 reach: a device whose former driver has buffers mapped passes through"
unbind "$edu" && echo "give 1" >$TESTS/late && until_true none_protected || fail "a device stays protected when all is unmapped"
said "$edu: all that its driver had left is unmapped" || fail "nothing says that the buffers were unmapped"
bind "$edu" portcullis_edu && attacked landed || fail "the device is not let through"

# The device is removed from the machine with buffers mapped, and is found again. The new device passes through, although
# buffers of the old one are still mapped.
protect "$edu" && echo "take 2" >$TESTS/late && echo >$PARAMETER || fail "the attacker is not protected again"
echo 1 >"/sys/bus/pci/devices/$edu/remove"
echo 1 >/sys/bus/pci/rescan
until_true [ -e "/sys/bus/pci/devices/$edu/driver" ] && attacked landed || fail "what is left of a device shuts out the one that comes in its place"
echo "give 2" >$TESTS/late && until_true none_protected && attacked landed || fail "what was left of a device takes the one in its place with it"

rmmod portcullis_test && rmmod portcullis || fail "the modules are not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
