/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What the files of the C half share, and the functions between the two halves: pcr_ is in Rust, pcs_ is in C. */
#ifndef PORTCULLIS_H
#define PORTCULLIS_H

#include <linux/dma-map-ops.h>
#include <linux/hrtimer.h>
#include <linux/jiffies.h>
#include <linux/list.h>
#include <linux/pci.h>
#include <linux/percpu.h>
#include <linux/types.h>
#include <linux/version.h>
#include <asm/ibt.h>

#undef pr_fmt
#define pr_fmt(fmt) "portcullis: " fmt

/* ---- What Rust offers. The structures are those of firmware.rs, unit.rs and space.rs. ---- */

struct pcr_unit;
struct pcr_space;

struct pcr_place {
	u64 base, bytes;
	u32 segment, physical_bits;
};

struct pcr_unit_use {
	u64 capability, extended_capability, commits, waits;
	u32 address_bits, pass_through;
};

struct pcr_window {
	u64 start, bytes;
};

struct pcr_opening {
	const char *design;
	size_t design_len;
	const struct pcr_window *windows;
	size_t window_count;
	u16 segment, source;
	u8 address_bits;
	bool is_deferred, maps_reserved;
};

struct pcr_wish {
	u64 limit, alignment, boundary, piece_boundary;
	bool is_lasting, is_quiet;
};

struct pcr_space_use {
	u64 live_ranges, queued_unmaps, table_pages, record_bytes, window_us_max;
};

/*
 * What the maps return on failure, besides DMA_MAPPING_ERROR: the hardware has not confirmed that the device has lost
 * the memory again.
 */
#define PCR_LOST (~1ULL)

/* What the unmaps return if pcr_unmap_whole is to be called. */
#define PCR_REFUSED 1

size_t pcr_lock_bytes(void);
int pcr_table(const void *table, size_t len, u64 direct_map, u8 flush_instruction);
int pcr_place(u32 index, struct pcr_place *out);
int pcr_unit_of(u16 segment, u16 source);
int pcr_master(u32 unit, u32 index);
void pcr_note_function(u16 vendor, u16 device, bool is_display);
bool pcr_stays_off(u32 index);
bool pcr_must_pass(u16 vendor, u16 device, bool is_display, u32 isochronous_control);
u32 pcr_register_bytes(void __iomem *registers);
int pcr_prepare(void __iomem *registers, u32 bytes, u8 physical_bits, u8 merge, bool is_shared, const u16 *sources,
		size_t count, struct pcr_unit **out);
int pcr_switch_all(struct pcr_unit **units, size_t count, size_t *failed);
int pcr_hand_back(struct pcr_unit *unit);
int pcr_foreign_queue(const struct pcr_unit *unit);
void pcr_drop(struct pcr_unit *unit);
int pcr_submit(struct pcr_unit *unit, const u64 *commands, size_t count);
int pcr_halt(struct pcr_unit *unit);
int pcr_open_gate(struct pcr_unit *unit);
int pcr_pass_through(struct pcr_unit *unit, u16 source, bool on);
int pcr_shut_out_all(struct pcr_unit *unit);
void pcr_unit_use(struct pcr_unit *unit, struct pcr_unit_use *out);
int pcr_faults(struct pcr_unit *unit, void *context);

int pcr_has_design(const char *name, size_t len);
u32 pcr_reserved(const struct pcr_opening *opening);
int pcr_open(struct pcr_unit *unit, const struct pcr_opening *opening, struct pcr_space **out);
void pcr_close(struct pcr_space *space);
int pcr_attach(struct pcr_space *space, u16 source);
int pcr_detach(struct pcr_space *space, u16 source);
u64 pcr_map(struct pcr_space *space, u64 phys, u64 len, u32 direction);
u64 pcr_map_with(struct pcr_space *space, u64 phys, u64 len, u32 direction, const struct pcr_wish *wish);
u64 pcr_map_list(struct pcr_space *space, void *list, u32 count, u32 direction, const struct pcr_wish *wish);
int pcr_unmap(struct pcr_space *space, u64 iova, u64 len);
int pcr_unmap_list(struct pcr_space *space, u64 iova);
/* The number of mappings that were unmapped, or a negative error. */
int pcr_unmap_whole(struct pcr_space *space, u64 iova, u64 len);
s64 pcr_tick(struct pcr_space *space);
void pcr_space_use(struct pcr_space *space, struct pcr_space_use *out);

/* ---- What C offers: host.c, units.c and dma.c; kernel.rs says what each does. ---- */

/*
 * Functions that Rust calls where C code would have inline functions. A thin function saves every register that it
 * uses, so that its caller can keep values in any register.
 */
#define pc_short notrace __noendbr
#define pc_thin pc_short __attribute__((no_caller_saved_registers))

void *pcs_alloc(size_t bytes, size_t align);
void pcs_free(void *at);
int pcs_may_sleep(void);
void pcs_may_not_sleep(int slot);
u64 pcs_page_alloc(bool may_sleep);
void pcs_page_free(u64 phys);
void pcs_lock_init(void *lock, u32 class);
pc_short unsigned long pcs_lock(void *lock);
/* What pcs_try_lock returns if the lock is held. */
#define PCS_HELD (~0UL)
pc_short unsigned long pcs_try_lock(void *lock);
pc_short void pcs_unlock(void *lock, unsigned long flags);
DECLARE_PER_CPU(u32, pcs_cpu);
u32 pcs_cpus(void);
u64 __percpu *pcs_words_alloc(void);
void pcs_words_free(u64 __percpu *words);
u64 *pcs_words_of(u64 __percpu *words, u32 cpu);
bool pcs_exchange_at(u64 __percpu *words, u32 cpu, size_t word, u64 old, u64 new);
u64 pcs_now_ns(void);
pc_thin void pcs_rcu_lock(void);
pc_thin void pcs_rcu_unlock(void);
u64 pcs_rcu_now(void);
bool pcs_rcu_is_over(u64 name);
void pcs_panic(const char *text, size_t len) __noreturn;
void pcs_print(const char *text, size_t len);
u32 pcs_buses(u16 segment, u16 bridge);
int pcs_is_display(u16 segment, u16 source);
u64 pcs_next_piece(void **list, u64 *len);
void pcs_fault(void *context, u16 source, u64 page, bool is_write, u32 reason, int interrupt);

/* ---- host.c ---- */

/* Memory in use by the Rust half: zero after everything is closed. */
s64 pc_pages_lent(void);
s64 pc_allocations_lent(void);
/*
 * Waits until no CPU and no task is in a function that it had entered before. In an interrupt a function runs with
 * preemption off. In a task it may not, and a kernel that is built to be preemptible then takes any tick for the end of
 * a grace period, whatever `preempt=` says. Such a task has left the function when it sleeps.
 */
void pc_wait_for_callers(void);
/* Must be called before any function in Rust. */
void pc_host_start(void);
/* The instruction that writes cache lines back, as numbered in flush.rs. */
u8 pc_flush_instruction(void);

/* ---- units.c ---- */

#define PC_UNITS_MAX 16

/* A unit's status register, and bits of it and of the command register. */
#define PC_STATUS 0x1c
#define PC_TRANSLATES BIT(31)
#define PC_QUEUES BIT(26)
#define PC_REMAPS BIT(25)

struct fault_table;
struct intel_iommu;

struct pc_unit {
	struct pcr_unit *rust;
	void __iomem *registers;
	struct pcr_place place;
	u32 index;			/* in the DMAR table */
	size_t passed;			/* the ids that passed through when it came */
	bool is_gone;			/* its registers read all ones; written by the fault timer */
	atomic64_t faults, faults_lost;
	struct fault_table *faults_by;
	struct intel_iommu *remapper;	/* Linux's record of it, if Linux remaps interrupts with it */
	bool has_queue;			/* whether this module has the queue then; changes while the machine is stopped */
	atomic64_t forwarded;		/* Linux's commands that it has submitted */
};

extern struct pc_unit pc_units[PC_UNITS_MAX];
extern int pc_unit_count;

int pc_units_up(void);
void pc_units_down(void);
void pc_units_halt(bool opens_gate);
/* The unit that serves a device; null if there is none, or if it stays off. */
struct pc_unit *pc_unit_of(struct pci_dev *pdev);
/* Whether a device of this chipset must pass through. */
bool pc_is_broken_by_translation(struct pci_dev *pdev);

/* ---- remap.c ---- */

/* Finds Linux's record of a unit with which Linux remaps interrupts. Says why if the unit cannot be shared. */
int pc_remap_find(struct pc_unit *unit);
void pc_remap_stop(void);
/* The unit has changed hands. If it has left this module, Linux's queue must be empty. The machine is stopped. */
void pc_remap_taken(struct pc_unit *unit);
void pc_remap_left(struct pc_unit *unit);

/* ---- ids.c ---- */

u16 pc_own_id(struct pci_dev *pdev);
/* Every id that requests of a device may carry, its own first. */
int pc_for_each_id(struct pci_dev *pdev, int (*found)(u16 id, void *data), void *data);
bool pc_uses_id(struct pci_dev *pdev, int segment, u16 id);
/* Whether requests of a device carry an id of another device, or an id that another device uses too. Says so. */
bool pc_shares_id(struct pci_dev *pdev);

/* ---- ports.c ---- */

/*
 * The ids that a device can use, because no port keeps it from that: those from `first` to `last`. Besides, the ids
 * that it uses.
 */
struct pc_reach {
	int segment;
	u16 first, last;
	u16 used[4];
	u8 used_count;
};

/* The first port above a device that does not isolate it; null if all do. Turns on what isolates it in all of them. */
struct pci_dev *pc_open_port(struct pci_dev *pdev);
/* The same, but writes only to a port that does not isolate it any more. Says so. */
struct pci_dev *pc_keep_ports(struct pci_dev *pdev);
/* Keeps the ports above a device from sleeping, until the other is called. */
void pc_wake_ports(struct pci_dev *pdev);
void pc_let_ports_sleep(struct pci_dev *pdev);
/* `unisolated` */
bool pc_accepts_open_ports(void);
/* Whether other devices can reach a device without passing the IOMMU. Says so. */
bool pc_is_exposed(struct pci_dev *pdev);
struct pc_reach pc_reach_of(struct pci_dev *pdev);
/* Whether an id of a device, or that of its physical function, is within reach. */
bool pc_is_within(const struct pc_reach *reach, struct pci_dev *other);
/* Always false with `unisolated`. */
bool pc_can_use_id_of(struct pci_dev *pdev, struct pci_dev *other);

/* ---- passing.c ---- */

/*
 * Returns whether the device passes through now. What has no unit always does; the next two return -ENODEV for it, and
 * for a device that was removed.
 */
bool pc_open(struct pci_dev *pdev, bool is_at_work);
int pc_shut(struct pci_dev *pdev);
/* If it `has_choice`, it closes no device that would cut off one that is at work. It says so and returns -EBUSY. */
int pc_close(struct pci_dev *pdev, bool has_choice);
bool pc_is_closed(struct pci_dev *pdev);
/* Whether a device that is closed would cut off another one that is at work. Says so. */
bool pc_has_open_neighbor(struct pci_dev *pdev);
bool pc_is_known(struct pci_dev *pdev);
/* Looks at the ports above all devices that are not open. */
void pc_keep_ports_of_shut(void);
/*
 * A device was removed. Its ids do not pass through, unless another device uses them. Devices that were removed while
 * they were closed count no more when nothing is left within their reach, unless they are named.
 */
void pc_forget(struct pci_dev *pdev, bool (*is_named)(int segment, u16 id));
/* Such devices count only if they are listed. */
void pc_forget_removed(bool (*is_listed)(int segment, u16 id));
void pc_passing_stop(void);

/* ---- protect.c ---- */

#define PC_NAME_BYTES 16

struct pc_policy {
	char design[PC_NAME_BYTES];
	bool is_deferred;
};

/* A list is one map, and so is a buffer whose unmap was not confirmed just after its map. */
struct pc_counts {
	u64 maps, unmaps, bytes, failed;
};

/* A protected device. It exists from before its driver is bound until its driver is unbound and nothing is mapped. */
struct pc_device {
	struct dma_map_ops ops;		/* a copy per device, to get from the device to this structure */
	struct pcr_space *space;
	u64 last;			/* the highest address that its domain hands out */
	bool maps_reserved;		/* whether regions reserved by firmware are mapped */
	bool is_ticking;
	/*
	 * Under deferred protection: the jiffies after which the timer is late. Zero if an unmap has to look: the timer does
	 * not run, or may not.
	 */
	unsigned long tick_by;
	bool has_driver;		/* under the device's lock; if not, buffers of a former one are mapped */
	bool is_there;			/* likewise, and under pc_devices_lock; if not, it was removed from the machine */
	struct hrtimer timer;
	bool is_looked_after;		/* likewise; `look` is queued, or waits for the lock */
	struct delayed_work look;
	struct pc_counts __percpu *counts;
	struct pc_unit *unit;
	struct pci_dev *pdev;
	struct device_link *link;
	struct pc_policy policy;
	atomic64_t lasting;
	atomic64_t lost;		/* buffers whose unmap the hardware has not confirmed: nothing unmaps them later */
	bool is_cut_off;		/* since the first of them */
	struct list_head list;		/* under pc_devices_lock */
};

/* Is shut down after all protected devices. */
extern struct platform_device *pc_platform;
extern struct list_head pc_devices;
extern struct mutex pc_devices_lock;

int pc_protect_start(void);
void pc_protect_stop(void);
/* Looks at the ports above all protected devices. A device that they do not isolate any more is shut out. */
void pc_keep_ports_of_protected(void);
bool pc_is_protected(struct pci_dev *pdev);
/* Whether firmware reserves memory for a device that is not mapped for it (RMRR). */
bool pc_has_reserved(struct pci_dev *pdev);
/* `has_choice` is that of pc_close. */
int pc_protect(struct pci_dev *pdev, const struct pc_policy *policy, bool has_choice);
void pc_unprotect(struct pci_dev *pdev);
void pc_leave(struct pci_dev *pdev);
/*
 * Opens another domain, of `bits` bits, while nothing is mapped. If it cannot be opened, the device keeps its domain.
 * After an error the device must not be driven: it may be shut out.
 */
int pc_reopen(struct pc_device *device, u8 bits);
void pc_start_ticking(struct pc_device *device);
/* The sums over all CPUs. */
struct pc_counts pc_counts_of(struct pc_device *device);

static inline struct pc_device *pc_device_of(struct device *dev)
{
	return container_of(dev->dma_ops, struct pc_device, ops);
}

/* Starts the timer if it does not run, and does its work if it is late. */
void pc_tick_late(struct pc_device *device);
/* How late deferred protection can be, in microseconds, when a driver unmaps again. */
u64 pc_late_us_max(struct pc_device *device);

/* The timer runs while anything waits for a tick. An unmap starts it. */
static inline void pc_has_unmapped(struct pc_device *device)
{
	if (unlikely(!READ_ONCE(device->is_ticking)))
		pc_start_ticking(device);
}

/*
 * The same under deferred protection. The timer is a softirq, which comes milliseconds late when a device floods its
 * CPU with packets. Then the next unmap flushes.
 */
static inline void pc_has_deferred(struct pc_device *device)
{
	if (unlikely(jiffies > READ_ONCE(device->tick_by)))
		pc_tick_late(device);
}

static __always_inline void pc_after_unmap(struct pc_device *device, bool is_deferred)
{
	if (is_deferred)
		pc_has_deferred(device);
	else
		pc_has_unmapped(device);
}

/* A map has returned this. Whether it has failed; what the device may still have then is taken from it. */
bool pc_was_not_mapped(struct pc_device *device, u64 at);

/*
 * An unmap did not do what its driver asked for. Returns whether the device still has the buffer. The DMA API cannot
 * report that, so the driver gets its buffer back in any case. `size` is what the driver has named; 1 for a list, which
 * is known by its first page alone.
 */
bool pc_was_not_unmapped(struct pc_device *device, dma_addr_t at, size_t size, int error);

/* ---- policy.c ---- */

int pc_policy_start(void);
void pc_policy_stop(void);
/* A device has no driver, or none any more: it is shut out or opened, as its policy says. */
void pc_let(struct pci_dev *pdev);
/* Whether a device, as far as can be told without its driver, will be let through although `all` is listed. */
bool pc_must_pass(struct pci_dev *pdev);

/* ---- dma.c, coherent.c ---- */

extern const struct dma_map_ops pc_ops;

/* Changes a copy of these for deferred protection. Strict protection pays nothing for it. */
void pc_defer(struct dma_map_ops *ops);

void *pc_alloc(struct device *dev, size_t size, dma_addr_t *at, gfp_t gfp, unsigned long attrs);
void pc_free(struct device *dev, size_t size, void *memory, dma_addr_t at, unsigned long attrs);
struct page *pc_alloc_pages(struct device *dev, size_t size, dma_addr_t *at, enum dma_data_direction dir, gfp_t gfp);
void pc_free_pages(struct device *dev, size_t size, struct page *page, dma_addr_t at, enum dma_data_direction dir);
int pc_mmap(struct device *dev, struct vm_area_struct *vma, void *memory, dma_addr_t at, size_t size,
	    unsigned long attrs);
int pc_get_sgtable(struct device *dev, struct sg_table *sgt, void *memory, dma_addr_t at, size_t size,
		   unsigned long attrs);

/* ---- watch.c ---- */

void pc_watch_start(void);
void pc_watch_stop(void);

/* ---- report.c ---- */

void pc_report_start(void);
void pc_report_stop(void);

#endif
