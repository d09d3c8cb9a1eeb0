# The hardware does not confirm a map, and the map is taken back. The device may have the memory, which its driver uses for
# something else now.
. /lib.sh
load portcullis && load portcullis_test || fail "a module is not loaded"
edu=$(pci_of 1234:11e8)
registers=$(registers "$edu")
protect "$edu" && hush || fail "the attacker is not protected"
! echo "buffer 1" 2>/dev/null >$TESTS/attack || fail "a map is not confirmed, and succeeds"
said "map: the invalidation that a map needed failed" && said "$edu is shut out: bind its driver again" || fail "S11 completion: the device is not cut off"
printf '\006' | dd of="/sys/bus/pci/devices/$edu/config" bs=1 seek=4 conv=notrunc 2>/dev/null
is_refused "$registers" 0x1000000 || fail "S11 completion: the device reads memory"
