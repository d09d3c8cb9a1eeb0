/* A bounded queue with one producer and one consumer, from the CPU that maps to the CPU that unmaps. Each end
 * publishes its place every 128 elements, like the hand-over of `portcullis bench`. */
#ifndef PEERS_QUEUE_H
#define PEERS_QUEUE_H
#include "meter.h"

#define QUEUE_LENGTH 1024UL
#define QUEUE_BURST 128UL

struct queue {
	unsigned long elements[QUEUE_LENGTH];
	unsigned long head __attribute__((aligned(64)));	/* published by the producer */
	unsigned long tail __attribute__((aligned(64)));	/* published by the consumer */
};

/* An end of a queue: its own place, and the last known place of the other end. */
struct queue_end {
	struct queue *queue;
	unsigned long own, other;
};

/* Waits until the other end has published a place beyond `at`. */
static __attribute__((noinline)) void queue_wait(struct queue_end *end, const unsigned long *other, unsigned long at)
{
	peers_wait_begin();
	while ((end->other = __atomic_load_n(other, __ATOMIC_ACQUIRE)) <= at)
		__builtin_ia32_pause();
	peers_wait_end();
}

static inline void queue_put(struct queue_end *end, unsigned long element, int flush)
{
	if (end->own >= end->other + QUEUE_LENGTH) {
		end->other = __atomic_load_n(&end->queue->tail, __ATOMIC_ACQUIRE);
		if (end->own >= end->other + QUEUE_LENGTH)
			queue_wait(end, &end->queue->tail, end->own - QUEUE_LENGTH);
	}
	end->queue->elements[end->own++ % QUEUE_LENGTH] = element;
	if (end->own % QUEUE_BURST == 0 || flush)
		__atomic_store_n(&end->queue->head, end->own, __ATOMIC_RELEASE);
}

static inline unsigned long queue_take(struct queue_end *end, int flush)
{
	if (end->own == end->other) {
		end->other = __atomic_load_n(&end->queue->head, __ATOMIC_ACQUIRE);
		if (end->own == end->other)
			queue_wait(end, &end->queue->head, end->own);
	}
	unsigned long element = end->queue->elements[end->own++ % QUEUE_LENGTH];

	if (end->own % QUEUE_BURST == 0 || flush)
		__atomic_store_n(&end->queue->tail, end->own, __ATOMIC_RELEASE);
	return element;
}

#endif
