/* What module/faults.c counts, and which faults it lets into the log. */
#include "check.h"
#include "faults.h"

static struct fault_table table;

static int logged(u16 id, int faults, u64 now_ms)
{
	int count = 0;

	while (faults--)
		count += faults_note(&table, id, now_ms);
	return count;
}

static u64 count_of(u16 id)
{
	u32 i;

	for (i = 0; i < table.used; i++)
		if (table.sources[i].id == id)
			return table.sources[i].count;
	return 0;
}

static void flood(void)
{
	CHECK(logged(0x0300, 100000, 1000) == FAULT_BURST);
	CHECK(logged(0x0400, 1, 1000) == 1);
	CHECK(logged(0x0301, 1, 1000) == 1);
	CHECK(count_of(0x0300) == 100000 && count_of(0x0400) == 1 && count_of(0x0301) == 1);
	CHECK(logged(0x0300, 1, 1000 + FAULT_BURST_MS - 1) == 0);
	CHECK(logged(0x0300, 100, 1000 + FAULT_BURST_MS) == FAULT_BURST);
}

/* A device uses every id of two buses, and then a device on another bus has a fault. */
static void many_ids(void)
{
	int id;

	for (id = 0x0300; id < 0x0500; id++)
		logged(id, 3, 0);
	CHECK(table.used == 2 * FAULT_IDS_OF_BUS && table.others == 3 * (0x200 - 2 * FAULT_IDS_OF_BUS));
	CHECK(logged(0x0500, 1, 0) == 1 && count_of(0x0500) == 1);
	/* What has no place is not left out of the log for good. */
	CHECK(logged(0x03ff, 100, FAULT_BURST_MS) == FAULT_BURST);
}

static void every_id(void)
{
	u64 sum = 0;
	int id;
	u32 i;

	for (id = 0; id < 0x10000; id++)
		logged(id, 2, 0);
	CHECK(table.used == FAULT_IDS);
	for (i = 0; i < table.used; i++)
		sum += table.sources[i].count;
	CHECK(sum + table.others == 2 * 0x10000);
}

int main(int words, char **word)
{
	static const struct check checks[] = {
		{ "flood", flood }, { "many-ids", many_ids }, { "every-id", every_id },
	};

	return run_check(checks, ARRAY_SIZE(checks), words, word);
}
