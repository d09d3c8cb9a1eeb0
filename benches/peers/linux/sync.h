/* Memory order, CPUs, locks and deferred work. A thread stands for a CPU. */
#ifndef PEERS_SYNC_H
#define PEERS_SYNC_H
#include "basic.h"

#define barrier() __asm__ volatile("" : : : "memory")
#define READ_ONCE(place) (*(const volatile typeof(place) *)&(place))
#define WRITE_ONCE(place, value) ((void)(*(volatile typeof(place) *)&(place) = (value)))
#define smp_mb() __asm__ volatile("lock orl $0, -8(%%rsp)" : : : "memory", "cc")
#define rcu_assign_pointer(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)
#define rcu_dereference_raw(place) READ_ONCE(place)
struct rcu_head { void *words[2]; };

/* Exchanges 64 bits; on failure `*old` becomes what was there. */
#define try_cmpxchg64(place, old, new) \
	__atomic_compare_exchange_n(place, old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
/* No other CPU writes the place, so the lock prefix is not needed, as in the kernel. */
static inline bool exchange_local(u64 *place, u64 *old, u64 new)
{
	bool same;

	__asm__ volatile("cmpxchgq %3, %1" : "=@ccz"(same), "+m"(*place), "+a"(*old) : "r"(new) : "memory");
	return same;
}
#define try_cmpxchg64_local(place, old, new) exchange_local((u64 *)(place), (u64 *)(old), new)
#define cmpxchg64_local(place, old, new) ({ u64 seen_ = (old); exchange_local((u64 *)(place), &seen_, new); seen_; })

typedef struct { int value; } atomic_t;
typedef struct { s64 value; } atomic64_t;
static inline int atomic_read(const atomic_t *a) { return READ_ONCE(a->value); }
static inline void atomic_set(atomic_t *a, int value) { WRITE_ONCE(a->value, value); }
static inline int atomic_xchg(atomic_t *a, int value) { return __atomic_exchange_n(&a->value, value, __ATOMIC_SEQ_CST); }
static inline s64 atomic64_read(const atomic64_t *a) { return READ_ONCE(a->value); }
static inline void atomic64_set(atomic64_t *a, s64 value) { WRITE_ONCE(a->value, value); }
static inline void atomic64_inc(atomic64_t *a) { __atomic_fetch_add(&a->value, 1, __ATOMIC_SEQ_CST); }

/* CPUs. Their areas lie a fixed distance apart, so that an address takes one addition, as with a segment base. */
#define CPUS 2
#define CPU_AREA_SHIFT 16
#define cache_line_size() 64
extern __thread int this_cpu;
void *__alloc_percpu(size_t size, size_t align);
#define free_percpu(area) ((void)(area))
#define per_cpu_ptr(area, cpu) ((typeof(area))((char *)(area) + ((size_t)(cpu) << CPU_AREA_SHIFT)))
#define raw_cpu_ptr(area) per_cpu_ptr(area, this_cpu)
#define for_each_possible_cpu(cpu) for ((cpu) = 0; (cpu) < CPUS; (cpu)++)
#define for_each_online_cpu(cpu) for_each_possible_cpu(cpu)
#define num_online_cpus() CPUS

/* Locks are taken with a locked compare-exchange, and released with a plain store. They do not mask interrupts or
 * count preemption. */
typedef struct { unsigned held; } spinlock_t;
void spin_lock_slow(spinlock_t *lock);
static inline void spin_lock_init(spinlock_t *lock) { lock->held = 0; }
static inline bool spin_trylock(spinlock_t *lock)
{
	unsigned open = 0;

	return __atomic_compare_exchange_n(&lock->held, &open, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
static inline void spin_lock(spinlock_t *lock)
{
	if (unlikely(!spin_trylock(lock)))
		spin_lock_slow(lock);
}
static inline void spin_unlock(spinlock_t *lock) { __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE); }
#define spin_lock_irqsave(lock, flags) ((flags) = 0, spin_lock(lock))
#define spin_unlock_irqrestore(lock, flags) ((void)(flags), spin_unlock(lock))
#define assert_spin_locked(lock) ((void)(lock))
/* Only the setup takes these, in one thread. */
struct mutex { int unused; };
#define DEFINE_MUTEX(name) struct mutex name
#define mutex_lock(lock) ((void)(lock))
#define mutex_unlock(lock) ((void)(lock))

/* Timers, delayed work and CPU hotplug never occur. */
struct timer_list { int unused; };
struct work_struct { int unused; };
struct delayed_work { struct work_struct work; bool pending; };
#define jiffies 0UL
#define msecs_to_jiffies(milliseconds) (milliseconds)
#define mod_timer(timer, when) ((void)(timer))
#define INIT_DELAYED_WORK(delayed, function) ((void)(function), (delayed)->pending = false)
static inline void schedule_delayed_work(struct delayed_work *delayed, unsigned long wait)
{
	(void)wait;
	if (!delayed->pending)
		delayed->pending = true;
}
#define cancel_delayed_work_sync(delayed) ((void)(delayed))
#define CPUHP_IOMMU_IOVA_DEAD 0
#define cpuhp_setup_state_multi(state, name, startup, teardown) ((void)(teardown), 0)
#define cpuhp_remove_multi_state(state) ((void)0)
#define cpuhp_state_add_instance_nocalls(state, node) 0
#define cpuhp_state_remove_instance_nocalls(state, node) ((void)0)

#endif
