# Firmware reserves memory for a device: it is not protected, for it may need that memory; or it is, and the memory is mapped for it.
. /lib.sh
cmp /kernel/firmware/acpi/dmar.aml /sys/firmware/acpi/tables/DMAR || fail "the kernel has not taken our table of firmware's"
load e1000e && load portcullis && load portcullis_test || fail "a module is not loaded"
edu=$(pci_of 1234:11e8)
reserved=0x1fff0000
card_up || fail "the card does not work"
card=$(card)

hush
if protect "$card"; then fail "$card is protected, and the memory that firmware reserves for it is out of its reach"; fi
said "$card is not protected: firmware reserves 1 regions of memory for it" || fail "$card is refused, and the reason is not what firmware reserves"
said "$card stays shut out until its driver is unbound" || fail "$card is not protected, and not shut out"
is_cut_off "$card" 2 && has_faults 1 || fail "S1 reach: packets of $card get through, and it should be shut out"
unbind "$card" && echo >$PARAMETER && bind "$card" e1000e && card_up || fail "$card does not work when it is let through again"

echo 1 >/sys/module/portcullis/parameters/map_reserved
protect "$card" && card_up || fail "$card does not work when it is protected and what firmware reserves is mapped"
protect "$edu" || fail "the attacker is not protected"

# reads ADDRESS: the attacker reads 16 bytes there.
registers=$(sed -n '1s/ .*//p' "/sys/bus/pci/devices/$edu/resource")
reads() {
	devmem $((registers + 0x80)) 64 "$1"
	devmem $((registers + 0x88)) 64 0x40000
	devmem $((registers + 0x90)) 64 16
	devmem $((registers + 0x98)) 64 1
	usleep 500000
}
faults=$(of_units faults)
reads $reserved
reads $((reserved + 0xfff0))
[ "$(of_units faults)" = "$faults" ] || fail "S5 rights: a device does not reach what firmware reserves for it"
reads $((reserved - 0x1000))
[ "$(of_units faults)" = $((faults + 1)) ] || fail "S1 reach: a device reaches more than what firmware reserves for it"

unbind "$card" && rmmod portcullis_test && rmmod portcullis || fail "the modules are not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
dmesg | grep "buffers mapped" && fail "what firmware reserves is taken for a buffer"
true
