# Linux remaps interrupts, and its queue has something that the unit does not fetch. The module cannot take the queue,
# does not load, and leaves Linux and the unit as they were. Later it loads, and gives the queue back.
. /lib.sh
UNIT=0xfed90000
IQH=$((UNIT + 0x80)) IQT=$((UNIT + 0x88)) GSTS=$((UNIT + 0x1c)) FSTS=$((UNIT + 0x34))
tail=$(devmem $IQT 64)
state=$(devmem $GSTS 32)
# Behind the last command is nothing that the unit understands.
devmem $IQT 64 $(((tail + 16) % 4096))
[ $(($(devmem $IQH 64))) = $((tail)) ] || fail "the unit fetches what it cannot understand, so nothing is shown"
if load portcullis 2>/dev/null; then fail "the module is loaded"; fi
said "the queue of the driver that remaps interrupts could not be taken" && said "the unit at $UNIT could not be taken" || fail "nothing says why"
[ ! -e /sys/module/portcullis ] && [ "$(devmem $GSTS 32) $(($(devmem $IQH 64)))" = "$state $((tail))" ] || fail "something was changed"
# Take it back, and clear the unit's error.
devmem $IQT 64 "$tail"
devmem $FSTS 32 0x10
load e1000e && card_up || fail "interrupts cannot be changed any more"
storm 10
far=$(($(devmem $IQT 64)))
load portcullis && card_up && arrives 1 && arrives 0 && rmmod portcullis || fail "the module does not load afterwards"
# The unit begins at the first slot of Linux's queue again, and so must Linux.
arrives 1 && [ $(($(devmem $IQT 64))) -lt $far ] || fail "the unit executes what Linux had submitted before"
