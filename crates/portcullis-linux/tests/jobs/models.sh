# Ten models of devices are protected, each with a different driver. Five network cards reach their networks, and five
# disks return the data that was written to them.
. /lib.sh
# The driver of these two is part of the kernel, and is bound already.
for device in 0000:00:15.0 0000:00:16.0; do unbind $device; done
load portcullis protect=all || fail "the module is not loaded"
for device in 0000:00:15.0 0000:00:16.0; do bind $device virtio-pci; done
for module in e1000e e1000 vmxnet3 8139cp virtio_net virtio_blk nvme xhci_pci usb_storage megaraid_sas sd_mod ahci; do
	load $module || fail "$module is not loaded"
done
address() { echo "0000:00:$1"; }
# is_protected SLOT DRIVER: checks that the device in SLOT has this driver and is protected.
is_protected() {
	until_true [ -e "/sys/bus/pci/devices/$(address "$1")/driver" ]
	[ "$(driver_of "$(address "$1")")" = "$2" ] || fail "$1 is not bound to $2"
	grep -q "^$(address "$1") design portcullis protection strict " $SEEN/devices || fail "$2 at $1 is not protected"
}
# The network interface of a device. Under virtio, it is below another device.
name_of() { ls "/sys/bus/pci/devices/$1/net" 2>/dev/null || ls /sys/bus/pci/devices/"$1"/virtio*/net; }
# disk_of SLOT: its disk, once there is one.
disk_of() {
	for disk in /sys/block/*; do
		case $(readlink -f "$disk") in *"/$(address "$1")/"*) echo "/dev/${disk##*/}" && return ;; esac
	done
	return 1
}

while read -r slot driver network; do
	is_protected "$slot" "$driver"
	reaches "$(address "$slot")" "$network" || fail "$driver: packets get lost"
	ping -c 50 -i 0.02 -s 1400 "10.0.$network.2" >/tmp/pings
	grep -q "50 packets received" /tmp/pings || fail "$driver: packets get lost"
	echo "works $driver maps $(count "$(address "$slot")" maps)"
done <<END
11.0 e1000e 11
12.0 e1000 12
13.0 vmxnet3 13
14.0 8139cp 14
15.0 virtio-pci 15
END

dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
right=$(md5sum </tmp/data)
while read -r slot driver; do
	is_protected "$slot" "$driver"
	until_true disk_of "$slot" && disk=$(disk_of "$slot") && until_true [ -b "$disk" ] || fail "$driver: no disk comes"
	dd if=/tmp/data of="$disk" bs=64k oflag=direct 2>/dev/null
	[ "$(dd if="$disk" bs=256k count=16 iflag=direct 2>/dev/null | md5sum)" = "$right" ] || fail "$driver: wrong bytes are read"
	echo "works $driver maps $(count "$(address "$slot")" maps)"
done <<END
16.0 virtio-pci
17.0 nvme
18.0 xhci_hcd
19.0 megaraid_sas
1f.2 ahci
END

for slot in 11.0 12.0 13.0 14.0 15.0 16.0 17.0 18.0 19.0 1f.2; do
	device=$(address $slot)
	[ "$(count "$device" maps)" -gt 0 ] || fail "$device does not use its domain"
	[ "$(count "$device" failed)" = 0 ] || fail "a map or an unmap of $device has failed"
done
# QEMU's model of megasas reads one page more than its driver maps, with Linux's own driver of the unit as well.
dmesg | grep "portcullis: fault:" | grep -v "fault: 0000:00:19.0 read" && fail "S5 rights: a device was refused what it needed"
true
