# Traces all maps of two devices, from before their drivers are loaded until after they are unbound.
. /lib.sh
load portcullis protect=all || fail "the module is not loaded"
tracing=/sys/kernel/tracing
echo global >$tracing/trace_clock && echo 8192 >$tracing/buffer_size_kb && echo 1 >$tracing/events/portcullis/enable || fail "nothing is traced"
load e1000e && load nvme && card_up && disk_up || fail "a device does not work"
ping -c 20 -i 0.01 10.0.2.2 >/dev/null
dd if=/dev/urandom of=/dev/nvme0n1 bs=256k count=8 oflag=direct 2>/dev/null
[ -n "$(sum_of 0 2)" ] || fail "the disk does not work"
maps=$(($(count "$(card)" maps) + $(count "$(disk)" maps)))
unbind "$(disk)" && unbind "$(card)" || fail "a driver does not go"
echo 0 >$tracing/tracing_on
[ "$(grep -c ": portcullis_map: " $tracing/trace)" -ge "$maps" ] || fail "of $maps maps not all are in the trace"
# Keep messages of the kernel out of the trace.
dmesg -n 1
echo TRACE-BEGIN
cat $tracing/trace
echo TRACE-END
