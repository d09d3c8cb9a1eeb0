/* Time is the CPU time of the thread, so other programs on the machine are not counted. Cycles and instructions of
 * user mode come from the performance counters. If there are none, a cycle is the time of one addition in a chain in
 * which each needs the result of the one before. The chain runs right before and right after each sample, because
 * clocks vary. */
#define _GNU_SOURCE
#include "meter.h"
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SAMPLES 5
#define THREADS 2
#define CHAIN 1000000UL

struct sample {
	double ns, cycles, instructions;
};

struct worker {
	struct peers_thread work;
	unsigned long pairs;
	int cpu;
	pthread_barrier_t *together;
	struct sample samples[SAMPLES];
};

static int counted;	/* whether there are performance counters */
static __thread int counter;	/* this thread's, of cycles and of instructions */
static __thread struct sample wait_begun, waited;
static int rows;
static int cpus[THREADS], cpu_count;

void peers_wrong(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("did not do what it timed: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

static int open_counter(uint64_t event, int group)
{
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_HARDWARE, .size = sizeof(attributes), .config = event,
		.exclude_kernel = 1, .exclude_hv = 1, .read_format = PERF_FORMAT_GROUP,
	};

	return (int)syscall(SYS_perf_event_open, &attributes, 0, -1, group, 0);
}

static double cpu_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

/* The resources that this thread has used until now. */
static struct sample used(void)
{
	struct {
		uint64_t events, cycles, instructions;
	} counts = { 0 };

	if (counted && read(counter, &counts, sizeof(counts)) != sizeof(counts)) {
		perror("performance counters");
		exit(1);
	}
	return (struct sample){ cpu_ns(), counts.cycles, counts.instructions };
}

static struct sample since(struct sample begun)
{
	struct sample now = used();

	return (struct sample){ now.ns - begun.ns, now.cycles - begun.cycles, now.instructions - begun.instructions };
}

void peers_wait_begin(void)
{
	wait_begun = used();
}

void peers_wait_end(void)
{
	struct sample wait = since(wait_begun);

	waited.ns += wait.ns;
	waited.cycles += wait.cycles;
	waited.instructions += wait.instructions;
}

/* Both operands are registers, because some cores fold additions of constants. */
static double ns_per_cycle(void)
{
	uint64_t sum = 1, one = 1;
	double begun = cpu_ns();

	for (unsigned long i = 0; i < CHAIN / 10; i++)
		__asm__ volatile(".rept 10\n\tadd %1, %0\n\t.endr" : "+r"(sum) : "r"(one) : "cc");
	return (cpu_ns() - begun) / CHAIN;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

/* If it is allowed, no other program gets the CPU during a sample. Otherwise, only the CPU time protects the
 * measurement. */
static void claim_cpu(int claim)
{
	struct sched_param parameters = { .sched_priority = claim ? 20 : 0 };

	sched_setscheduler(0, claim ? SCHED_FIFO : SCHED_OTHER, &parameters);
}

static struct sample take(const struct worker *worker)
{
	double cycle = counted ? 0 : ns_per_cycle();

	waited = (struct sample){ 0 };
	struct sample begun = used();
	worker->work.body(worker->work.state, worker->pairs);
	struct sample sample = since(begun);

	sample.ns -= waited.ns;
	sample.cycles -= waited.cycles;
	sample.instructions -= waited.instructions;
	if (!counted)
		sample.cycles = sample.ns / ((cycle + ns_per_cycle()) / 2);
	return sample;
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	int instructions = -1;

	if (counted) {
		counter = open_counter(PERF_COUNT_HW_CPU_CYCLES, -1);
		instructions = open_counter(PERF_COUNT_HW_INSTRUCTIONS, counter);
	}
	pin(worker->cpu);
	for (int i = -1; i < SAMPLES; i++) {
		pthread_barrier_wait(worker->together);
		claim_cpu(1);
		struct sample sample = take(worker);
		claim_cpu(0);
		if (i >= 0)	/* the first warms up */
			worker->samples[i] = sample;
		usleep(1000);
	}
	if (counted) {
		close(instructions);
		close(counter);
	}
	return NULL;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values)
{
	qsort(values, SAMPLES, sizeof(*values), ascending);
	return values[SAMPLES / 2];
}

static void print(const struct peers_row *row, int count, struct sample *samples)
{
	double ns[SAMPLES], cycles[SAMPLES], instructions[SAMPLES];

	for (int i = 0; i < SAMPLES; i++) {
		ns[i] = samples[i].ns;
		cycles[i] = samples[i].cycles;
		instructions[i] = samples[i].instructions;
	}
	printf("%s\n  {\"design\": \"%s\", \"protection\": \"%s\", \"threads\": %d, \"workload\": \"%s\", "
	       "\"ns_per_pair\": %.3f, \"cycles_per_pair\": %.2f, \"instructions_per_pair\": ",
	       rows++ ? "," : "", row->design, row->protection, count, row->workload, median(ns), median(cycles));
	if (counted)
		printf("%.1f}", median(instructions));
	else
		printf("null}");
	fflush(stdout);
}

void peers_begin(void)
{
	cpu_set_t allowed;
	int probe = open_counter(PERF_COUNT_HW_CPU_CYCLES, -1);

	counted = probe >= 0;
	if (counted)
		close(probe);
	sched_getaffinity(0, sizeof(allowed), &allowed);
	for (int cpu = 0; cpu < CPU_SETSIZE && cpu_count < THREADS; cpu++)
		if (CPU_ISSET(cpu, &allowed))
			cpus[cpu_count++] = cpu;
	printf("{\"schema\": \"portcullis.bench/1\", \"cycles_from\": \"%s\", \"results\": [",
	       counted ? "counter" : "calibrated");
}

void peers_end(void)
{
	printf("\n]}\n");
}

unsigned long peers_measure(const struct peers_row *row, const struct peers_thread *threads, int count,
			    enum peers_share share, unsigned long pairs)
{
	struct worker workers[THREADS];
	pthread_t handles[THREADS];
	pthread_barrier_t together;
	struct sample samples[SAMPLES] = { 0 };

	if (count > cpu_count) {
		fprintf(stderr, "%s with %d threads: left out, there is one CPU\n", row->workload, count);
		return 0;
	}
	pthread_barrier_init(&together, NULL, count);
	for (int i = 0; i < count; i++) {
		workers[i] = (struct worker){ .work = threads[i], .pairs = pairs, .cpu = cpus[i], .together = &together };
		if (pthread_create(&handles[i], NULL, work, &workers[i])) {
			perror("pthread_create");
			exit(1);
		}
	}
	for (int i = 0; i < count; i++) {
		pthread_join(handles[i], NULL);
		for (int k = 0; k < SAMPLES; k++) {
			double part = share == PEERS_EACH ? 1.0 / count / pairs : 1.0 / pairs;

			samples[k].ns += workers[i].samples[k].ns * part;
			samples[k].cycles += workers[i].samples[k].cycles * part;
			samples[k].instructions += workers[i].samples[k].instructions * part;
		}
	}
	pthread_barrier_destroy(&together);
	print(row, count, samples);
	return (SAMPLES + 1) * pairs;
}
