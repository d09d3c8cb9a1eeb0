/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Whether a port keeps the devices below it apart from others (ACS). */
#ifndef PORTCULLIS_ACS_H
#define PORTCULLIS_ACS_H

#include "plain.h"

enum acs_kind {
	ACS_OTHER,		/* nothing is asked of it */
	ACS_ROOT_PORT,
	ACS_SWITCH_PORT,	/* a port of a switch that leads down */
};

/* A port, and how its configuration is read and written, by 2 or 4 bytes. What cannot be read reads as all ones. */
struct acs_port {
	enum acs_kind kind;
	u16 vendor, device;
	u16 at;			/* the place of its ACS capability; 0 if it has none */
	u32 (*read)(void *data, u32 at, u32 bytes);
	void (*write)(void *data, u32 at, u32 bytes, u32 value);
	void *data;
};

enum acs_found {
	ACS_KEPT,		/* it keeps them apart */
	ACS_SET_AGAIN,		/* it did not, and was made to */
	ACS_OPEN,		/* it does not, and cannot be made to */
};

/* Looks, and writes nothing. */
bool acs_isolates(const struct acs_port *port);
/* Makes the port keep them apart, as far as it can. Returns what acs_isolates finds then. */
bool acs_isolate(const struct acs_port *port);
/* Looks, and writes only to a port that does not keep them apart. */
enum acs_found acs_keep(const struct acs_port *port);

#endif
