# The invalidation for an unmap is not confirmed, and the unit answers everything else. The device is cut off for good,
# whatever it and its driver do, and others are not. Only a bind of its driver gives it back.
. /lib.sh
load portcullis && load portcullis_test || fail "a module is not loaded"
set -- $(pci_of 1234:11e8)
edu=$1 other=$2
registers=$(registers "$edu")
protect "$edu" && hush && echo "buffer 1" >$TESTS/attack || fail "the attacker is not protected"
said "$edu: .* was not unmapped: error -5" || fail "the unmap is not known to have failed"
said "$edu is shut out: bind its driver again" || fail "S11 completion: the device is not cut off"
# A driver and a hostile device turn bus mastering on again.
master() { printf '\006' | dd of="/sys/bus/pci/devices/$1/config" bs=1 seek=4 conv=notrunc 2>/dev/null; }
master "$edu"
is_refused "$registers" 0x1000000 || fail "S11 completion: the device has bus mastering again, and reads memory"
# The hardware has cached this address, and was not told to drop it.
at=$(dmesg | sed -n "s/.*$edu: \(0x[0-9a-f]*\) was not unmapped.*/\1/p")
is_refused "$registers" "$at" writes || fail "S11 completion: the device writes to the buffer whose unmap has failed"
! echo "buffer 1" 2>/dev/null >$TESTS/attack || fail "a device that was cut off gets an address"
master "$other" && is_served "$(registers "$other")" 0x1000000 || fail "a device that did nothing is cut off too"

hush
unbind "$edu" && master "$edu" && is_refused "$registers" 0x1000000 || fail "S11 completion: the device reads memory after its driver was unbound"
until_true none_protected && bind "$edu" portcullis_edu && said "$edu is protected" || fail "a bind does not give the device back"
echo "buffer 1" 2>/dev/null >$TESTS/attack
dmesg | grep -q "attack: buffer, while mapped landed" || fail "the device does not work after a bind"

# Under deferred protection, an unmap that is not confirmed waits in a queue for good. It counts once: the domain stays
# for as long as other buffers are mapped.
unbind "$edu" && until_true none_protected && echo "$edu=portcullis/deferred" >$PARAMETER && bind "$edu" portcullis_edu || fail "the attacker is not protected again"
hush
echo "take 0" >$TESTS/late && echo "take 1" >$TESTS/late && echo "buffer 1" >$TESTS/attack && until_true said "a flush failed" || fail "no flush fails"
until_true said "$edu is shut out" && master "$edu" && is_refused "$registers" 0x1000000 || fail "S11 completion: a flush has failed, and the device is not cut off"
echo "give 1" >$TESTS/late || fail "the pages are not given back"
hush
unbind "$edu" && said "$edu: its driver has left 8 buffers mapped" && is_protected "$edu" || fail "S10 lifetime: a domain ends while buffers are mapped"
echo "give 0" >$TESTS/late && until_true none_protected || fail "a domain does not end when all buffers are unmapped or lost"
bind "$edu" portcullis_edu || fail "the driver does not come"

# A device that floods with faults hides no fault of another, and each has its own count.
faults_of() {
	sum=0
	while read -r name line; do
		value faults " $line "
		[ "$name" != "$1" ] || sum=$value
	done <$SEEN/faults
	echo "$sum"
}
unbind "$edu" && unbind "$other" && echo "$edu,$other" >$PARAMETER && master "$edu" && master "$other" || fail "the devices are not shut out"
before=$(faults_of "$edu")
hush
for turn in 1 2 3 4 5 6 7 8 9 10 11; do
	is_refused "$registers" 0x1000000 || fail "S1 reach: a device that is shut out reads memory"
done
dmesg | grep -c "fault: $edu" >/tmp/logged
[ "$(cat /tmp/logged)" -lt 11 ] || fail "the log has every fault of a device that floods"
is_refused "$(registers "$other")" 0x1000000 && said "fault: $other" || fail "a device that floods hides the fault of another"
[ "$(faults_of "$edu")" = $((before + 11)) ] && [ "$(faults_of "$other")" = 1 ] || fail "the faults of a device are not counted: $(cat $SEEN/faults)"
