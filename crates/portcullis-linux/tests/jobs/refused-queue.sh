# Firmware, or a former driver, has left the invalidation queue of the unit on. The module refuses it, and says which of
# its parts is in use.
. /lib.sh
GCMD=0xfed90018 GSTS=0xfed9001c
devmem $GCMD 32 0x04000000
[ "$(devmem $GSTS 32)" = 0x04000000 ] || fail "the queue is not on, so nothing is shown"
if load portcullis 2>/dev/null; then fail "the module is loaded"; fi
said "is in use (status 0x4000000): Linux, or firmware, has left its invalidation queue on; boot with" || fail "it is refused, and not because of the queue"
