# Memory runs out while a driver maps with interrupts off. Maps that need memory are refused, the others work, and nothing
# is lost.
. /lib.sh
load portcullis && load portcullis_test || fail "a module is not loaded"
edu=$(pci_of 1234:11e8)
protect "$edu=$POLICY" || fail "the device is not protected"
hush
for turn in 1 2 3; do echo "$edu" >$TESTS/exhaust || fail "maps with no memory left"; done
dmesg | grep "exhaust:"
[ "$(dmesg | grep -c 'exhaust: .* mapped, then none; all unmapped, mapped again')" = 3 ] || fail "S6 errors: a refused map has changed something"
[ "$(count "$edu" failed)" -ge 3 ] || fail "no map was refused, so nothing is shown"
unbind "$edu" && rmmod portcullis_test && rmmod portcullis || fail "the modules are not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
dmesg | grep "buffers mapped" && fail "mappings are left behind"
true
