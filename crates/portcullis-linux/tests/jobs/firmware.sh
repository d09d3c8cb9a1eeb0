# Firmware names a device that is not on PCI: the device passes through. Firmware reserves memory for a device: either the
# device is not protected, because it may need that memory, or it is protected and the memory is mapped for it. No buffer
# is ever placed there, nor where devices have their own memory. Mistakes of firmware that do not matter are said.
. /lib.sh
cmp /kernel/firmware/acpi/dmar.aml /sys/firmware/acpi/tables/DMAR || fail "the kernel has not taken our table of firmware's"

# QEMU has no device that is not on PCI. So two attackers are removed from the kernel, but still work. The table names one
# of them.
master=$(hidden 0000:00:11.0)
other=$(hidden 0000:00:12.0)

load e1000e && load portcullis && load portcullis_test || fail "a module is not loaded"
[ "$(dmesg | grep -c "portcullis: firmware has a mistake that does not matter: DMAR byte .*: \(a reserved region\|registers at 0x0\)")" = 2 ] || fail "not each mistake of firmware is said once"
edu=$(pci_of 1234:11e8)
reserved=0x1fff0000
is_served "$master" 0x1000000 || fail "S1 reach: a device that is not on PCI is shut out, and firmware has named it"
is_refused "$other" 0x1000000 || fail "a device that neither the kernel nor firmware knows of gets through, so nothing is shown"
card_up || fail "the card does not work"
card=$(card)

hush
if protect "$card"; then fail "$card is protected, and the memory that firmware reserves for it is out of its reach"; fi
said "$card is not protected: firmware reserves 1 regions of memory for it" || fail "$card is refused, and the reason is not what firmware reserves"
said "$card stays shut out" || fail "$card is not protected, and not shut out"
is_cut_off "$card" 2 && has_faults 1 || fail "S1 reach: packets of $card get through, and it should be shut out"
unbind "$card" && echo >$PARAMETER && bind "$card" e1000e && card_up || fail "$card does not work when it is let through again"

echo 1 >/sys/module/portcullis/parameters/map_reserved
protect "$card" && card_up || fail "$card does not work when it is protected and what firmware reserves is mapped"
protect "$edu" || fail "the attacker is not protected"

attacker=$(registers "$edu")
is_served "$attacker" $reserved && is_served "$attacker" $((reserved + 0xfff0)) || fail "S5 rights: a device does not reach what firmware reserves for it"
is_served "$attacker" $((reserved + 0x8000)) writes || fail "S5 rights: a device cannot write to what firmware reserves for it"
is_refused "$attacker" $((reserved - 0x1000)) || fail "S1 reach: a device reaches more than what firmware reserves for it"

echo "$reserved 0x20000000" >$TESTS/places || fail "S9 placement: a buffer is where others are, or across a boundary that its device cannot cross"
dmesg | grep "places:"

unbind "$card" && rmmod portcullis_test && rmmod portcullis || fail "the modules are not unloaded"
dmesg | grep -q "gone, and nothing is left behind" || fail "memory is left behind"
dmesg | grep "buffers mapped" && fail "what firmware reserves is taken for a buffer"
true
