# The unmap of the last buffer is not confirmed, which counts at once, and it takes 5 s to return. Protection ends only
# after that: until then the unmap uses what the module has for the device, and the module's text.
. /lib.sh
load portcullis && load portcullis_test || fail "a module is not loaded"
edu=$(pci_of 1234:11e8)
users() { cat /sys/module/portcullis/refcnt; }
has_users() { [ "$(users)" = "$1" ]; }
protect "$edu" && echo "take 0" >$TESTS/late || fail "the attacker is not protected"
unbind "$edu" && [ "$(count "$edu" live_ranges)" -ge 8 ] || fail "no pages are left mapped"
before=$(users)
echo "give 0" >$TESTS/late &
giver=$!
# It is noticed within 1 s that all is unmapped.
until_true none_protected || fail "the end of protection does not begin"
usleep 1000000
kill -0 $giver 2>/dev/null || fail "the unmap has returned, so nothing is shown"
has_users "$before" || fail "S10 lifetime: protection ends before the last unmap has returned"
wait $giver && said "$edu is shut out: bind its driver again" && until_true has_users $((before - 1)) || fail "protection does not end"
rmmod portcullis_test && rmmod portcullis || fail "the modules are not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
