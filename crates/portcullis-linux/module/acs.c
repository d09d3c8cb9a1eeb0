// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Whether a port keeps the devices below it apart from others (ACS). Only what is read back counts, because firmware
 * may have locked the control register, some ports have it elsewhere, and a port without power answers nothing.
 */
#include <linux/pci_regs.h>

#include "acs.h"

#define INTEL 0x8086

/* Requests go to the other ports of a switch only by way of the IOMMU. */
#define UPSTREAM (PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_UF)
/*
 * With either of these, some requests go to other ports directly all the same: those with translated addresses, or
 * those to ports that a table names.
 */
#define SHORT_CUTS (PCI_ACS_DT | PCI_ACS_EC)

/*
 * Root ports of Intel's 100 and 200 series of chipsets, and of the mobile processors of their time, have an erratum:
 * each register of the capability takes four bytes, so that the control register is at 8 and not at 6.
 */
static bool has_wide_registers(const struct acs_port *port)
{
	static const struct {
		u16 first, last;
	} wide[] = {
		{ 0x9d10, 0x9d1b },	/* mobile, 6th to 8th generation */
		{ 0xa110, 0xa11f },	/* 100 series */
		{ 0xa167, 0xa16a },
		{ 0xa290, 0xa29f },	/* 200 series */
		{ 0xa2e7, 0xa2ee },
	};
	size_t i;

	if (port->vendor != INTEL || port->kind != ACS_ROOT_PORT)
		return false;
	for (i = 0; i < ARRAY_SIZE(wide); i++)
		if (port->device >= wide[i].first && port->device <= wide[i].last)
			return true;
	return false;
}

static u32 control_at(const struct acs_port *port)
{
	return port->at + (has_wide_registers(port) ? 8 : PCI_ACS_CTRL);
}

static u32 register_bytes(const struct acs_port *port)
{
	return has_wide_registers(port) ? 4 : 2;
}

/* Whether the port answers. The capability begins with its number, and no answer reads as all ones. */
static bool answers(const struct acs_port *port)
{
	return port->at && (u16)port->read(port->data, port->at, 2) == PCI_EXT_CAP_ID_ACS;
}

static u32 able_of(const struct acs_port *port)
{
	return port->read(port->data, port->at + PCI_ACS_CAP, register_bytes(port));
}

/*
 * Devices below a switch reach each other, unless its ports send all requests upstream. Devices below any port may use
 * the ids of others, unless the port checks ids. Requests with addresses that the device says are translated are
 * refused at the port, where it is able to do so; an IOMMU refuses them too.
 */
static u32 wanted_of(const struct acs_port *port)
{
	return PCI_ACS_SV | (port->kind == ACS_SWITCH_PORT ? UPSTREAM : 0) | (able_of(port) & PCI_ACS_TB);
}

bool acs_isolates(const struct acs_port *port)
{
	u32 wanted, control;

	if (port->kind == ACS_OTHER)
		return true;
	if (!port->at)
		return false;
	wanted = wanted_of(port);
	control = port->read(port->data, control_at(port), register_bytes(port));
	/* A port that has gone in the meantime reads as all ones from then on, so this is asked last. */
	return !(wanted & ~control) && !(control & SHORT_CUTS) && answers(port);
}

bool acs_isolate(const struct acs_port *port)
{
	u32 control;

	if (port->kind != ACS_OTHER && answers(port)) {
		control = port->read(port->data, control_at(port), register_bytes(port));
		control |= able_of(port) & (PCI_ACS_SV | PCI_ACS_TB | UPSTREAM);
		port->write(port->data, control_at(port), register_bytes(port), control & ~SHORT_CUTS);
	}
	return acs_isolates(port);
}

enum acs_found acs_keep(const struct acs_port *port)
{
	if (acs_isolates(port))
		return ACS_KEPT;
	return acs_isolate(port) ? ACS_SET_AGAIN : ACS_OPEN;
}
