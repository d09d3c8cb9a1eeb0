/* From the CPU that maps to the CPU that unmaps: a bounded queue with one
 * producer and one consumer. Each publishes its place every 32 elements, as
 * a driver rings a doorbell for a burst. */
#ifndef PEERS_QUEUE_H
#define PEERS_QUEUE_H

#define QUEUE_LENGTH 4096UL
#define QUEUE_BURST 32UL

struct queue {
	unsigned long elements[QUEUE_LENGTH];
	unsigned long head __attribute__((aligned(64)));	/* published by the producer */
	unsigned long tail __attribute__((aligned(64)));	/* published by the consumer */
};

/* An end of a queue: its own place, and the other end's as last seen. */
struct queue_end {
	struct queue *queue;
	unsigned long own, other;
};

static inline void queue_put(struct queue_end *end, unsigned long element, int flush)
{
	while (end->own - end->other >= QUEUE_LENGTH) {
		end->other = __atomic_load_n(&end->queue->tail, __ATOMIC_ACQUIRE);
		if (end->own - end->other >= QUEUE_LENGTH)
			__builtin_ia32_pause();
	}
	end->queue->elements[end->own++ % QUEUE_LENGTH] = element;
	if (end->own % QUEUE_BURST == 0 || flush)
		__atomic_store_n(&end->queue->head, end->own, __ATOMIC_RELEASE);
}

static inline unsigned long queue_take(struct queue_end *end, int flush)
{
	while (end->own == end->other) {
		end->other = __atomic_load_n(&end->queue->head, __ATOMIC_ACQUIRE);
		if (end->own == end->other)
			__builtin_ia32_pause();
	}
	unsigned long element = end->queue->elements[end->own++ % QUEUE_LENGTH];

	if (end->own % QUEUE_BURST == 0 || flush)
		__atomic_store_n(&end->queue->tail, end->own, __ATOMIC_RELEASE);
	return element;
}

#endif
