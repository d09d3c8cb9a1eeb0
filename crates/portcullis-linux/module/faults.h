/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The faults of a unit, by the id that the refused request carried. */
#ifndef PORTCULLIS_FAULTS_H
#define PORTCULLIS_FAULTS_H

#include "plain.h"

/* The ids that have a place, and those of one bus among them. */
#define FAULT_IDS 256
#define FAULT_IDS_OF_BUS 32
/* The faults of an id that are logged in a row, and the time after which as many are logged again. */
#define FAULT_BURST 5
#define FAULT_BURST_MS 5000

struct fault_limit {
	u64 since_ms;
	u32 logged;
};

struct fault_source {
	u16 id;
	u64 count;
	struct fault_limit limit;
};

struct fault_table {
	u32 used;
	struct fault_source sources[FAULT_IDS];
	/* The faults of all ids without a place. */
	u64 others;
	struct fault_limit others_limit;
};

/* Counts a fault. Returns whether it is to be logged. Only one caller at a time. */
bool faults_note(struct fault_table *table, u16 id, u64 now_ms);

#endif
