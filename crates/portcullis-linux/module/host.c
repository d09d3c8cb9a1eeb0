// SPDX-License-Identifier: MIT OR GPL-2.0
/* What the Rust half needs from a host: memory, locks, per-CPU words, time, RCU, the log. */
#include <linux/cpufeature.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timekeeping.h>
#include <asm/cacheflush.h>

#include "portcullis.h"

#ifdef CONFIG_PREEMPT_RT
#error "with PREEMPT_RT, memory cannot be allocated where the library allocates it"
#endif

#ifndef CONFIG_SMP
#error "the Rust half reaches per-CPU memory through %gs, which has no offset for it without SMP"
#endif

/* The number of words that the library's Platform has for each CPU. */
#define CPU_WORDS 8

static atomic64_t pages_lent, allocations_lent;

s64 pc_pages_lent(void) { return atomic64_read(&pages_lent); }
s64 pc_allocations_lent(void) { return atomic64_read(&allocations_lent); }

/*
 * Tasks that may sleep for memory. Rust's allocator has no such argument, so the task is recorded here while the
 * library allows it. An interrupt runs with the same `current`, but is not in task context.
 */
static struct task_struct *sleepers[16];
static atomic_t sleeper_count;

int pcs_may_sleep(void)
{
	int slot;

	for (slot = 0; slot < ARRAY_SIZE(sleepers); slot++)
		if (!cmpxchg(&sleepers[slot], NULL, current)) {
			atomic_inc(&sleeper_count);
			return slot;
		}
	/* If there are more tasks at once, they allocate without sleep. */
	return -1;
}

void pcs_may_not_sleep(int slot)
{
	if (slot < 0)
		return;
	atomic_dec(&sleeper_count);
	smp_store_release(&sleepers[slot], NULL);
}

static bool may_sleep(void)
{
	int slot;

	/* Reclaim may write to a protected disk, through maps that must not sleep. */
	if (!atomic_read(&sleeper_count) || !in_task() || irqs_disabled() || current->flags & PF_MEMALLOC)
		return false;
	for (slot = 0; slot < ARRAY_SIZE(sleepers); slot++)
		if (READ_ONCE(sleepers[slot]) == current)
			return true;
	return false;
}

static gfp_t gfp_of(bool sleeps)
{
	return (sleeps ? GFP_KERNEL : GFP_ATOMIC) | __GFP_NOWARN;
}

void *pcs_alloc(size_t bytes, size_t align)
{
	void *at;

	/* kmalloc aligns a power of two to itself. */
	if (align > ARCH_KMALLOC_MINALIGN)
		bytes = roundup_pow_of_two(max(bytes, align));
	/* Not kvmalloc, because the memory may be freed in any context. */
	at = kmalloc(bytes, gfp_of(may_sleep()));
	if (at)
		atomic64_inc(&allocations_lent);
	return at;
}

void pcs_free(void *at)
{
	atomic64_dec(&allocations_lent);
	kfree(at);
}

u64 pcs_page_alloc(bool sleeps)
{
	unsigned long at = get_zeroed_page(gfp_of(sleeps));

	if (!at)
		return 0;
	atomic64_inc(&pages_lent);
	return virt_to_phys((void *)at);
}

void pcs_page_free(u64 phys)
{
	atomic64_dec(&pages_lent);
	free_page((unsigned long)phys_to_virt(phys));
}

#ifdef CONFIG_LOCKDEP
/* Indexed by the numbers of LockClass. */
static const char *const lock_names[] = {
	"portcullis central flush queue", "portcullis flush queue", "portcullis attachment", "portcullis invalidation queue",
	"portcullis domain", "portcullis magazine", "portcullis depot", "portcullis iova allocator", "portcullis table",
	"portcullis table reserve",
};
static struct lock_class_key lock_keys[ARRAY_SIZE(lock_names)];
#endif

void pcs_lock_init(void *lock, u32 class)
{
#ifdef CONFIG_LOCKDEP
	BUILD_BUG_ON(sizeof(raw_spinlock_t) > 128);
	__raw_spin_lock_init(lock, lock_names[class], &lock_keys[class], LD_WAIT_SPIN);
#else
	/* The size of a lock in the Rust half, unless it was built for large locks. */
	BUILD_BUG_ON(sizeof(raw_spinlock_t) > sizeof(u64));
	raw_spin_lock_init((raw_spinlock_t *)lock);
#endif
}

#if defined(CONFIG_DEBUG_SPINLOCK) || defined(CONFIG_DEBUG_LOCK_ALLOC)
pc_short unsigned long pcs_lock(void *lock)
{
	unsigned long flags;

	raw_spin_lock_irqsave((raw_spinlock_t *)lock, flags);
	return flags;
}

pc_short unsigned long pcs_try_lock(void *lock)
{
	unsigned long flags;

	return raw_spin_trylock_irqsave((raw_spinlock_t *)lock, flags) ? flags : PCS_HELD;
}

pc_short void pcs_unlock(void *lock, unsigned long flags) { raw_spin_unlock_irqrestore((raw_spinlock_t *)lock, flags); }
#else
/*
 * The same, with two calls fewer. Interrupts are off, so the task cannot be preempted, and preemption need not be
 * disabled.
 */
pc_short unsigned long pcs_lock(void *lock)
{
	unsigned long flags;

	local_irq_save(flags);
	arch_spin_lock(&((raw_spinlock_t *)lock)->raw_lock);
	return flags;
}

pc_short unsigned long pcs_try_lock(void *lock)
{
	unsigned long flags;

	local_irq_save(flags);
	if (arch_spin_trylock(&((raw_spinlock_t *)lock)->raw_lock))
		return flags;
	local_irq_restore(flags);
	return PCS_HELD;
}

pc_short void pcs_unlock(void *lock, unsigned long flags)
{
	arch_spin_unlock(&((raw_spinlock_t *)lock)->raw_lock);
	local_irq_restore(flags);
}
#endif

/* The number that raw_smp_processor_id() returns, in a variable whose name is the same in all kernels. */
DEFINE_PER_CPU(u32, pcs_cpu);

void pc_host_start(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		per_cpu(pcs_cpu, cpu) = cpu;
}

u32 pcs_cpus(void) { return nr_cpu_ids; }

u64 __percpu *pcs_words_alloc(void)
{
	return __alloc_percpu(CPU_WORDS * sizeof(u64), SMP_CACHE_BYTES);
}

void pcs_words_free(u64 __percpu *words) { free_percpu(words); }
u64 *pcs_words_of(u64 __percpu *words, u32 cpu) { return per_cpu_ptr(words, cpu); }

/*
 * The exchange is one instruction on a line that belongs to this CPU, so no interrupt splits it. Preemption is off so
 * that the CPU stays the same between the check and the exchange.
 */
bool pcs_exchange_at(u64 __percpu *words, u32 cpu, size_t word, u64 old, u64 new)
{
	bool done;

	preempt_disable();
	done = raw_smp_processor_id() == cpu && this_cpu_cmpxchg(words[word], old, new) == old;
	preempt_enable();
	return done;
}

/* Must not be called in NMI context. */
u64 pcs_now_ns(void) { return ktime_get_ns(); }

/*
 * Disables preemption for a few dozen instructions. This is cheaper than rcu_read_lock, and grace periods wait for it
 * too.
 */
pc_thin void pcs_rcu_lock(void) { rcu_read_lock_sched(); }
pc_thin void pcs_rcu_unlock(void) { rcu_read_unlock_sched(); }
void pc_wait_for_callers(void)
{
	synchronize_rcu();
	if (IS_ENABLED(CONFIG_PREEMPTION))
		synchronize_rcu_tasks();
}

u64 pcs_rcu_now(void) { return start_poll_synchronize_rcu(); }
bool pcs_rcu_is_over(u64 name) { return poll_state_synchronize_rcu(name); }

u8 pc_flush_instruction(void)
{
	return boot_cpu_has(X86_FEATURE_CLWB) ? 2 : boot_cpu_has(X86_FEATURE_CLFLUSHOPT) ? 1 : 0;
}

void pcs_panic(const char *text, size_t len)
{
	pr_emerg("%.*s\n", (int)len, text);
	BUG();
}

void pcs_print(const char *text, size_t len) { pr_warn_ratelimited("%.*s\n", (int)len, text); }
