# The module does not load, logs what to do about it, and has changed nothing.
. /lib.sh
[ -z "$TRACING" ] || echo "$TRACING" >/proc/sys/kernel/ftrace_enabled
if load portcullis 2>/dev/null; then fail "the module is loaded"; fi
dmesg | grep "portcullis: " | grep -q "$REASON" || fail "it is refused, and the reason is not: $REASON"
[ ! -e /sys/module/portcullis ] && [ ! -e $SEEN ] || fail "something is left of it"
