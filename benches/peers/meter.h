/* Times a body of work on one or two pinned threads, and prints the result as one row of a `portcullis.bench/1`
 * document. This meter times all peers, including those in Rust. */
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

/* How a row of two threads combines their times of a pair. */
enum peers_share {
	PEERS_EACH,	/* each thread does pairs of its own: their mean */
	PEERS_SUM,	/* the threads do the same pairs together: their sum */
};

/* Opens and closes the document. */
void peers_begin(void);
void peers_end(void);

/* Warms up, takes samples of `pairs` pairs, and prints their medians. If there is only one CPU, rows of two threads
 * are left out, with a message. Returns the pairs that each body has done, or 0 if the row was left out. */
unsigned long peers_measure(const struct peers_row *row, const struct peers_thread *threads, int count,
			    enum peers_share share, unsigned long pairs);

/* Called around a wait for the other thread, which is not work and is not counted. */
void peers_wait_begin(void);
void peers_wait_end(void);

/* Ends the program, because it did not do the work that it timed. */
__attribute__((noreturn, format(printf, 1, 2))) void peers_wrong(const char *format, ...);

#endif
