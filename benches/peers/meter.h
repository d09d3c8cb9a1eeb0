/* Times a body of work on one pinned thread or on two, and prints what it
 * found as one row of a `portcullis.bench/1` document. All peers, those in
 * Rust too, are timed by this one meter. */
#ifndef PEERS_METER_H
#define PEERS_METER_H

/* Does `pairs` pairs of map and unmap. */
typedef void (*peers_body)(void *state, unsigned long pairs);

struct peers_row {
	const char *design, *protection, *workload;
};

struct peers_thread {
	peers_body body;
	void *state;
};

/* What a row of two threads says of a pair. */
enum peers_share {
	PEERS_EACH,	/* each thread does pairs of its own: their mean */
	PEERS_SUM,	/* the threads do the same pairs together: their sum */
};

/* Opens and closes the document. */
void peers_begin(void);
void peers_end(void);

/* Warms up, takes samples of `pairs` pairs and prints their medians. Rows of
 * two threads are left out, and said to be, where there is one CPU. Returns
 * the pairs that each body has done, 0 where the row was left out. */
unsigned long peers_measure(const struct peers_row *row, const struct peers_thread *threads, int count,
			    enum peers_share share, unsigned long pairs);

/* Around waiting for the other thread: it is no work, and is not counted. */
void peers_wait_begin(void);
void peers_wait_end(void);

/* Ends the program: it did not do the work that it timed. */
__attribute__((noreturn, format(printf, 1, 2))) void peers_wrong(const char *format, ...);

#endif
