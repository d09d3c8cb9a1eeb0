# The module is refused, with a message that says what to do, and has changed nothing.
. /lib.sh
if load portcullis 2>/dev/null; then fail "the module is loaded"; fi
dmesg | grep "portcullis: " | grep -q "$REASON" || fail "it is refused, and the reason is not: $REASON"
[ ! -e /sys/module/portcullis ] && [ ! -e $SEEN ] || fail "something is left of it"
