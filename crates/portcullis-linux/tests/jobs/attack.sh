# A device writes to a buffer after its unmap: the write lands while the device passes through, and is refused when it is protected.
. /lib.sh
load portcullis || fail "the module is not loaded"
load portcullis_test || fail "the tests are not loaded"
edu=$(pci_of 1234:11e8)

# attacked WORD WHILE AFTER: whether three attacks end with these results.
attacked() {
	hush
	echo "$1 3" >$TESTS/attack || fail "the attacker does not work"
	[ "$(dmesg | grep -c "attack: $1, while mapped $2, after the unmap $3")" = 3 ]
}

attacked buffer landed landed || fail "no write lands, so nothing is shown"
# Raise an interrupt that is not there. QEMU 7.2 does not report that it was refused. Newer ones do, without the device.
if [ "$REMAPS" = x2apic ]; then
	writes "$(registers "$edu")" 0xfee07ff0
	until_true said "fault: .* interrupt 1023 refused, reason 0x22" || fail "a refused interrupt is not reported"
fi
protect "$edu" || fail "the attacker is not protected"
before=$(of_units faults)
attacked buffer landed refused || fail "S2 strict: the device has written to a buffer after its unmap"
until_true has_faults $((before + 1)) || fail "S2 strict: the writes were refused, and no fault was recorded"
# Attack by the physical address, as a driver that ignores the IOMMU would do.
attacked memory refused refused || fail "S1 reach: the device has written to memory that was never mapped for it"
# Drivers of newer kernels map a whole request in two steps where Linux offers that. It must not for this device.
if [ "$REMAPS" = x2apic ]; then
	echo try >$TESTS/steps || fail "Linux gives a driver addresses that are not those of its domain"
fi
# A driver that unmaps a part of a buffer, or more than it, uses the whole buffer again.
hush
ranges=$(count "$edu" live_ranges)
echo lengths >$TESTS/attack || fail "the attacker does not work"
for wrong in short middle long; do
	dmesg | grep -q "attack: $wrong unmap, while mapped landed, first page refused, second page refused" || fail "S2 strict: the device keeps a buffer whose unmap was wrong ($wrong)"
done
said "$edu: its driver has unmapped .* as something else than it had mapped" || fail "nothing says that the driver is wrong"
[ "$(count "$edu" live_ranges) $(count "$edu" failed)" = "$ranges 3" ] || fail "a wrong unmap is not counted"
# A driver that wants no message about a failed map gets none.
hush
echo quiet >$TESTS/quiet || fail "a map that cannot succeed does"
! dmesg | grep portcullis || fail "the log has failures that a driver wanted quiet (DMA_ATTR_NO_WARN)"
echo loud >$TESTS/quiet && [ "$(dmesg | grep -c "portcullis: map: ")" = 3 ] || fail "the log lacks failures of maps"
[ "$(count "$edu" failed)" = 9 ] || fail "a quiet failure is not counted"

# Under deferred protection, the timer that is to flush may be late. Then the next unmap flushes. The timer stops a while
# after the last unmap, and the test has it start where it is kept from running.
again() { unbind "$edu" && echo "$1" >$PARAMETER && bind "$edu" portcullis_edu && is_protected "$edu"; }
again "$edu=portcullis/deferred" && [ "$(count "$edu" late_us_max)" -le 20000 ] || fail "the attacker is not protected by deferred unmaps"
usleep 500000
hush
echo late >$TESTS/attack || fail "the attacker does not work"
dmesg | grep -q "attack: late, while mapped landed, after the next unmap refused" || fail "S2 deferred: the device has a buffer for as long as it keeps softirqs late"
again "$edu" || fail "the attacker is not protected again"

# refuses REASON LIST: whether this list is refused with this reason.
refuses() {
	hush
	if echo "$2" >$PARAMETER; then fail "protect=$2 is taken"; fi
	said "$1" || fail "protect=$2 is refused, and the reason is not: $1"
}
before=$(cat $PARAMETER)
refuses "there is no design" "$edu=nonesuch"
refuses "neither strict nor deferred" "$edu=portcullis/lax"
hush
echo "0000:00:1e.7" >$PARAMETER && said "there is no device 0000:00:1e.7 yet" && echo "$before" >$PARAMETER || fail "a name that is not plugged in yet is refused"
refuses "is no device; one is" "edu"
unbind "$edu" && echo >$PARAMETER && bind "$edu" portcullis_edu || fail "the attacker is not let through again"
refuses "is bound to portcullis_edu. Unbind it first" "$edu"
[ -z "$(cat $PARAMETER)" ] || fail "a list that was refused has changed something"
attacked buffer landed landed || fail "the attacker is protected after it was let through"

# A driver fails after it has allocated memory. The memory is freed while the device is still protected, and nothing is
# left.
rmmod portcullis_test && echo "$edu" >$PARAMETER || fail "the attacker's driver does not go"
hush
load portcullis_test fail_probe=1 || fail "the tests are not loaded"
said "$edu is protected" && none_protected || fail "a driver that has failed has left something"
dmesg | grep "buffers mapped" && fail "memory of a driver that has failed stays mapped"

rmmod portcullis_test || fail "the tests are not unloaded"
rmmod portcullis || fail "the module is not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
