# The invalidation queue of the unit dies. A device whose unmap is not confirmed is cut off for good, whatever it and its
# driver do, and a driver that returns many buffers waits once for all of them.
. /lib.sh
load portcullis && load portcullis_test || fail "a module is not loaded"
edu=$(pci_of 1234:11e8)
registers=$(registers "$edu")
protect "$edu" && echo "take 0" >$TESTS/late || fail "the attacker is not protected"
# Turn the queue off behind the module's back. Translation stays on, and one-shot commands are not given again.
UNIT=0xfed90000
status=$(devmem $((UNIT + 0x1c)) 32)
devmem $((UNIT + 0x18)) 32 $((status & 0x96ffffff & ~(1 << 26)))
hush
begun=$(cut -d. -f1 /proc/uptime)
echo "give 0" >$TESTS/late
[ $(($(cut -d. -f1 /proc/uptime) - begun)) -le 3 ] || fail "S7 bounds: eight unmaps wait for longer than one does"
said "$edu: .* was not unmapped: error -5" || fail "the unmap is not known to have failed"
said "$edu is shut out, and all devices behind its unit with it" || fail "S11 completion: the device is not cut off"
[ $(($(devmem $((UNIT + 0x1c)) 32) >> 31)) = 1 ] || fail "S1 reach: translation is off"
# A driver and a hostile device turn bus mastering on again.
printf '\006' | dd of="/sys/bus/pci/devices/$edu/config" bs=1 seek=4 conv=notrunc 2>/dev/null
is_refused "$registers" 0x1000000 || fail "S11 completion: the device has bus mastering again, and reads memory"
[ "$(count "$edu" maps)" -ge 8 ] && ! echo "buffer 1" 2>/dev/null >$TESTS/attack || fail "a device that was cut off gets an address"
