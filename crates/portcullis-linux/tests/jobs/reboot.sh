# The machine reboots while protected devices are busy. When the module has been shut down, the test module looks whether
# the unit still translates, and ends the job.
. /lib.sh
load portcullis_test && echo 0xfed90000 >$TESTS/end || fail "the tests are not loaded"
load e1000e && load nvme && load portcullis && card_up && disk_up || fail "a device does not work"
protect "$(card)" && protect "$(disk)" && card_up && disk_up || fail "a device is not protected"
(while sum_of 0 8 >/dev/null; do :; done) &
ping -i 0.01 10.0.2.2 >/dev/null &
usleep 500000
reboot -f
