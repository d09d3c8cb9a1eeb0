// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The faults of a unit, by the id that the refused request carried. Each id has its own count and its own limit for
 * what is logged, so that a device that floods with one id hides no other.
 *
 * The table has a fixed size. A hostile device can use all ids of its buses, so the ids of one bus have a share of the
 * places only. What finds no place is counted together.
 */
#include "faults.h"

static bool is_logged(struct fault_limit *limit, u64 now_ms)
{
	if (!limit->logged || now_ms - limit->since_ms >= FAULT_BURST_MS) {
		limit->since_ms = now_ms;
		limit->logged = 0;
	}
	if (limit->logged == FAULT_BURST)
		return false;
	limit->logged++;
	return true;
}

/* The place of an id, which is made if it has none. Null if there is no room for it. */
static struct fault_source *place_of(struct fault_table *table, u16 id)
{
	u32 i, of_bus = 0;

	for (i = 0; i < table->used; i++) {
		if (table->sources[i].id == id)
			return &table->sources[i];
		of_bus += table->sources[i].id >> 8 == id >> 8;
	}
	if (i == FAULT_IDS || of_bus == FAULT_IDS_OF_BUS)
		return NULL;
	table->sources[i].id = id;
	/* Pairs with what reads the table: who sees the number sees the id. */
	smp_store_release(&table->used, i + 1);
	return &table->sources[i];
}

bool faults_note(struct fault_table *table, u16 id, u64 now_ms)
{
	struct fault_source *source = place_of(table, id);

	if (!source) {
		table->others++;
		return is_logged(&table->others_limit, now_ms);
	}
	source->count++;
	return is_logged(&source->limit, now_ms);
}
