/* Lower bounds for a map and an unmap on this machine: the stores alone, the walks alone, the locked instructions. */
#include "meter.h"
#include "queue.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LIVE 1024U
#define PRESENT 3UL
#define ENTRY_MASK 511UL
#define DESCRIPTOR 64U

static void *zeroed(size_t size)
{
	void *memory = aligned_alloc(4096, (size + 4095) & ~4095UL);

	if (!memory)
		abort();
	return memset(memory, 0, size);
}

static inline void set(uint64_t *entry, uint64_t value)
{
	__atomic_store_n(entry, value, __ATOMIC_RELAXED);
}

/* A free list, and two stores into a table. Pages are mapped and unmapped first in, first out. */
struct list {
	uint32_t top, at;
	uint32_t free[2 * LIVE], live[LIVE];
	uint64_t *entries;
};

static __attribute__((noinline)) void list_unmap(struct list *list, uint32_t page)
{
	set(&list->entries[page], 0);
	list->free[list->top++] = page;
}

static __attribute__((noinline)) uint32_t list_map(struct list *list, uint64_t address)
{
	uint32_t page = list->free[--list->top];

	set(&list->entries[page], address | PRESENT);
	return page;
}

static struct list *list_new(void)
{
	struct list *list = zeroed(sizeof(*list));

	list->entries = zeroed(2 * LIVE * sizeof(*list->entries));
	for (uint32_t page = 2 * LIVE; page > 0; page--)
		list->free[list->top++] = page - 1;
	for (uint32_t i = 0; i < LIVE; i++)
		list->live[i] = list_map(list, (uint64_t)i << 12);
	return list;
}

static void list_body(void *state, unsigned long pairs)
{
	struct list *list = state;

	while (pairs--) {
		list_unmap(list, list->live[list->at]);
		list->live[list->at] = list_map(list, pairs << 12);
		list->at = (list->at + 1) % LIVE;
	}
}

static void list_check(const struct list *list)
{
	uint32_t present = 0;

	for (uint32_t page = 0; page < 2 * LIVE; page++)
		present += (list->entries[page] & PRESENT) == PRESENT;
	for (uint32_t i = 0; i < LIVE; i++)
		if (!list->entries[list->live[i]])
			peers_wrong("live page %u has no entry", list->live[i]);
	if (present != LIVE)
		peers_wrong("%u entries for %u live pages", present, LIVE);
}

/* Two walks of four levels and a store at the end of each. */
struct tables {
	uint64_t *root;
	uint32_t at;
};

static __attribute__((noinline)) uint64_t *walk(uint64_t *table, uint64_t address)
{
	for (int shift = 39; shift > 12; shift -= 9) {
		uint64_t entry = __atomic_load_n(&table[address >> shift & ENTRY_MASK], __ATOMIC_RELAXED);

		if (!(entry & PRESENT))
			return NULL;
		table = (uint64_t *)(entry & ~4095UL);
	}
	return &table[address >> 12 & ENTRY_MASK];
}

#define WALKED (3UL << 30)	/* where the walks go */
#define WALKED_PAGES 4096U

static struct tables *tables_new(void)
{
	struct tables *tables = zeroed(sizeof(*tables));
	uint64_t *third = zeroed(4096), *second = zeroed(4096);

	tables->root = zeroed(4096);
	tables->root[0] = (uint64_t)third | PRESENT;
	third[WALKED >> 30] = (uint64_t)second | PRESENT;
	for (unsigned i = 0; i < WALKED_PAGES / 512; i++)
		second[i] = (uint64_t)zeroed(4096) | PRESENT;
	return tables;
}

static void walk_body(void *state, unsigned long pairs)
{
	struct tables *tables = state;

	while (pairs--) {
		uint64_t address = WALKED + ((uint64_t)tables->at << 12);

		set(walk(tables->root, address), 0);
		set(walk(tables->root, address), pairs << 12 | PRESENT);
		tables->at = (tables->at + 1) % WALKED_PAGES;
	}
}

static void walk_check(const struct tables *tables)
{
	for (unsigned i = 0; i < WALKED_PAGES; i++)
		if (!*walk(tables->root, WALKED + ((uint64_t)i << 12)))
			peers_wrong("page %u has no entry", i);
}

/* A descriptor: 64 entries are cleared and 64 are written. */
static void descriptor_body(void *state, unsigned long pairs)
{
	uint64_t *entries = state;

	while (pairs--) {
		uint64_t *first = entries + pairs % 64 * DESCRIPTOR, address = pairs << 12 | PRESENT;

		for (unsigned i = 0; i < DESCRIPTOR; i++)
			set(first + i, 0);
		__asm__ volatile("" ::: "memory");
		for (unsigned i = 0; i < DESCRIPTOR; i++, address += 4096)
			set(first + i, address);
		__asm__ volatile("" ::: "memory");
	}
}

static void descriptor_check(const uint64_t *entries)
{
	for (unsigned i = 0; i < 64 * DESCRIPTOR; i++)
		if (entries[i] != (i / DESCRIPTOR << 12 | PRESENT) + i % DESCRIPTOR * 4096UL)
			peers_wrong("entry %u is %lx", i, (unsigned long)entries[i]);
}

/* An address is handed from one CPU to another, and nothing else is done. */
static void put_body(void *state, unsigned long pairs)
{
	while (pairs--)
		queue_put(state, pairs, !pairs);
}

static void take_body(void *state, unsigned long pairs)
{
	while (pairs--)
		if (queue_take(state, !pairs) != pairs)
			peers_wrong("the queue lost an element");
}

/* Single instructions and locks. */
static void exchange_body(void *state, unsigned long pairs)
{
	uint64_t *word = state;

	while (pairs--) {
		uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

		__atomic_compare_exchange_n(word, &old, old + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	}
}

static void add_body(void *state, unsigned long pairs)
{
	while (pairs--)
		__atomic_fetch_add((uint64_t *)state, 1, __ATOMIC_RELAXED);
}

struct locked {
	unsigned lock;
	uint64_t count;
};

static void lock_body(void *state, unsigned long pairs)
{
	struct locked *locked = state;

	while (pairs--) {
		for (unsigned open = 0; !__atomic_compare_exchange_n(&locked->lock, &open, 1, 0, __ATOMIC_ACQUIRE,
								     __ATOMIC_RELAXED); open = 0)
			while (__atomic_load_n(&locked->lock, __ATOMIC_RELAXED))
				__builtin_ia32_pause();
		locked->count++;
		__atomic_store_n(&locked->lock, 0, __ATOMIC_RELEASE);
	}
}

/* A line that two CPUs write in turn: there and back. */
struct turn {
	volatile uint64_t *whose;
	uint64_t mine;
};

static void turn_body(void *state, unsigned long pairs)
{
	struct turn *turn = state;

	while (pairs--) {
		while (*turn->whose != turn->mine)
			;
		*turn->whose = !turn->mine;
	}
}

#define ROW(design, workload) (&(struct peers_row){ design, "none", workload })

static unsigned long one(const char *design, const char *workload, peers_body body, void *state, unsigned long pairs)
{
	return peers_measure(ROW(design, workload), &(struct peers_thread){ body, state }, 1, PEERS_EACH, pairs);
}

static unsigned long two(const char *design, const char *workload, peers_body first, void *first_state,
			 peers_body second, void *second_state, enum peers_share share, unsigned long pairs)
{
	struct peers_thread threads[2] = { { first, first_state }, { second, second_state } };

	return peers_measure(ROW(design, workload), threads, 2, share, pairs);
}

static void tables(void)
{
	struct list *list = list_new(), *other = list_new();
	struct tables *walked = tables_new(), *elsewhere = tables_new();
	uint64_t *entries = zeroed(64 * DESCRIPTOR * sizeof(*entries));

	one("floor-stores", "page-1", list_body, list, 2000000);
	two("floor-stores", "page-1", list_body, list, list_body, other, PEERS_EACH, 2000000);
	list_check(list);
	list_check(other);
	one("floor-walks", "page-1", walk_body, walked, 2000000);
	two("floor-walks", "page-1", walk_body, walked, walk_body, elsewhere, PEERS_EACH, 2000000);
	walk_check(walked);
	walk_check(elsewhere);
	one("floor-stores", "descriptor-64", descriptor_body, entries, 200000);
	descriptor_check(entries);
}

static void instructions(void)
{
	uint64_t *word = zeroed(64), done = 0;
	struct locked *locked = zeroed(sizeof(*locked));

	done += one("lock cmpxchg", "instruction", exchange_body, word, 1000000);
	done += one("lock xadd", "instruction", add_body, word, 1000000);
	if (*word != done)
		peers_wrong("%lu additions came to %lu", (unsigned long)done, (unsigned long)*word);
	done = one("lock and unlock", "instruction", lock_body, locked, 1000000);
	done += 2 * two("contended lock", "instruction", lock_body, locked, lock_body, locked, PEERS_EACH, 200000);
	if (locked->count != done)
		peers_wrong("%lu locked additions came to %lu", (unsigned long)done, (unsigned long)locked->count);
}

static void handovers(void)
{
	struct queue *queue = zeroed(sizeof(*queue));
	struct queue_end put = { queue, 0, 0 }, take = { queue, 0, 0 };
	volatile uint64_t *whose = zeroed(64);
	struct turn here = { whose, 0 }, there = { whose, 1 };

	two("floor-queue", "cross-cpu", put_body, &put, take_body, &take, PEERS_SUM, 1000000);
	two("a line there and back", "instruction", turn_body, &here, turn_body, &there, PEERS_EACH, 100000);
}

int main(void)
{
	peers_begin();
	tables();
	instructions();
	handovers();
	peers_end();
	return 0;
}
