// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Beside Linux's interrupt remapping. A unit has one invalidation queue. Linux's driver that remaps interrupts uses it
 * whenever an interrupt changes, and this module needs it for every unmap, so it takes the queue over. Until the queue
 * goes back, Linux's function that submits commands, qi_submit_sync, is redirected to this file, by ftrace, as live
 * patches do it.
 *
 * The queue changes hands while the machine is stopped. A submission has interrupts off from its look at who has the
 * queue until it is done, so the machine does not stop in between, and no CPU ever waits for a queue that changes
 * hands.
 *
 * Linux does not export most of what is used here. A kprobe tells where a function is, and a static call jumps to it. A
 * call through a pointer would trap on CPUs that check for valid targets (IBT).
 */
#include <linux/bpf.h>
#include <linux/btf.h>
#include <linux/dmar.h>
#include <linux/ftrace.h>
#include <linux/io.h>
#include <linux/kprobes.h>
#include <linux/rcupdate.h>
#include <linux/static_call.h>
#include <linux/string.h>

#include "portcullis.h"

#if defined(CONFIG_IRQ_REMAP) && defined(CONFIG_KPROBES) && defined(CONFIG_DYNAMIC_FTRACE_WITH_ARGS) && \
	defined(CONFIG_BPF_SYSCALL) && defined(CONFIG_DEBUG_INFO_BTF)

/* Linux's functions. They are declared for their types only. */
struct qi_desc {
	u64 words[4];
};
int qi_submit_sync(struct intel_iommu *remapper, struct qi_desc *list, unsigned int count, unsigned long options);
int dmar_reenable_qi(struct intel_iommu *remapper);
struct dmar_drhd_unit *dmar_find_matched_drhd_unit(struct pci_dev *pdev);

DEFINE_STATIC_CALL_RET0(pc_qi_submit_sync, qi_submit_sync);
DEFINE_STATIC_CALL_RET0(pc_dmar_reenable_qi, dmar_reenable_qi);
DEFINE_STATIC_CALL_RET0(pc_dmar_find_matched_drhd_unit, dmar_find_matched_drhd_unit);
DEFINE_STATIC_CALL_RET0(pc_bpf_get_btf_vmlinux, bpf_get_btf_vmlinux);
DEFINE_STATIC_CALL_RET0(pc_btf_find_by_name_kind, btf_find_by_name_kind);
DEFINE_STATIC_CALL_RET0(pc_btf_name_by_offset, btf_name_by_offset);

static void *address_of(const char *name)
{
	/* It is never armed. */
	struct kprobe probe = { .symbol_name = name, .flags = KPROBE_FLAG_DISABLED };
	int error = register_kprobe(&probe);
	void *at = probe.addr;

	if (error) {
		pr_err("this kernel does not say where its function %s is: error %d\n", name, error);
		return NULL;
	}
	unregister_kprobe(&probe);
#ifdef CONFIG_X86_KERNEL_IBT
	/* A kprobe lies behind the mark of a target, or behind what has replaced the mark. The function begins with it. */
	if (((u32 *)at)[-1] == gen_endbr() || ((u32 *)at)[-1] == gen_endbr_poison())
		at -= sizeof(u32);
#endif
	return at;
}

#define resolve(name)                                           \
	({                                                      \
		typeof(&name) at = address_of(#name);           \
								\
		if (at)                                         \
			static_call_update(pc_##name, at);      \
		at != NULL;                                     \
	})

/*
 * The offset in struct intel_iommu of Linux's copy of the command register, as the kernel's own description of its
 * types tells.
 */
static u32 copy_at;

static int find_copy(void)
{
	struct btf *types = static_call(pc_bpf_get_btf_vmlinux)();
	const struct btf_member *member;
	const struct btf_type *record;
	s32 id;
	u32 i;

	id = -ENOENT;
	if (!IS_ERR_OR_NULL(types))
		id = static_call(pc_btf_find_by_name_kind)(types, "intel_iommu", BTF_KIND_STRUCT);
	if (id >= 0) {
		record = btf_type_by_id(types, id);
		for_each_member(i, record, member) {
			if (strcmp(static_call(pc_btf_name_by_offset)(types, member->name_off), "gcmd"))
				continue;
			copy_at = __btf_member_bit_offset(record, member) / BITS_PER_BYTE;
			return 0;
		}
	}
	pr_err("this kernel does not say where it has its copy of a unit's command register (struct intel_iommu)\n");
	return -ENOENT;
}

/* Linux writes this copy to the register whenever it changes a bit of it. */
static u32 *copy_of(struct pc_unit *unit)
{
	return (void *)unit->remapper + copy_at;
}

/* ---- the redirection ---- */

/* Whether this CPU is in Linux's function because this file has called it. Interrupts are off then. */
static DEFINE_PER_CPU(bool, is_passed_on);

static struct pc_unit *unit_of(struct intel_iommu *remapper)
{
	int index;

	for (index = 0; index < PC_UNITS_MAX; index++)
		if (pc_units[index].remapper == remapper && READ_ONCE(pc_units[index].has_queue))
			return &pc_units[index];
	return NULL;
}

/* In place of qi_submit_sync. */
static int submit(struct intel_iommu *remapper, struct qi_desc *list, unsigned int count, unsigned long options)
{
	struct pc_unit *unit;
	unsigned long flags;
	int error;

	local_irq_save(flags);
	unit = unit_of(remapper);
	if (unit) {
		error = pcr_submit(unit->rust, list->words, count);
		atomic64_add(count, &unit->forwarded);
	} else {
		__this_cpu_write(is_passed_on, true);
		error = static_call(pc_qi_submit_sync)(remapper, list, count, options);
		__this_cpu_write(is_passed_on, false);
	}
	local_irq_restore(flags);
	return error;
}

static void notrace redirect(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
			     struct ftrace_regs *registers)
{
	/*
	 * If it is true, interrupts are off and this CPU is in submit(), so this is the call from there. It is read by one
	 * instruction, so a task that moves to another CPU cannot mix two of them.
	 */
	if (raw_cpu_read(is_passed_on))
		return;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	ftrace_regs_set_instruction_pointer(registers, (unsigned long)submit);
#else
	ftrace_instruction_pointer_set(registers, (unsigned long)submit);
#endif
}

/* It stays when an administrator turns tracing off (kernel.ftrace_enabled), which then fails. */
static struct ftrace_ops hook = {
	.func = redirect,
	.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT,
};

static bool is_redirected;

static int start(void)
{
	static char name[] = "qi_submit_sync";
	int error;

	if (!resolve(qi_submit_sync) || !resolve(dmar_reenable_qi) || !resolve(dmar_find_matched_drhd_unit) ||
	    !resolve(bpf_get_btf_vmlinux) || !resolve(btf_find_by_name_kind) || !resolve(btf_name_by_offset))
		return -ENOENT;
	error = find_copy();
	if (error)
		return error;
	error = ftrace_set_filter(&hook, name, strlen(name), 1) ?: register_ftrace_function(&hook);
	if (error) {
		pr_err("this kernel does not redirect its function %s (ftrace): error %d\n", name, error);
		ftrace_free_filter(&hook);
		return error;
	}
	is_redirected = true;
	/* They have entered Linux's function before it was redirected. */
	pc_wait_for_callers();
	return 0;
}

void pc_remap_stop(void)
{
	if (!is_redirected)
		return;
	if (unregister_ftrace_function(&hook))
		pr_emerg("the kernel still redirects a function to this module: reboot\n");
	ftrace_free_filter(&hook);
	pc_wait_for_callers();
	is_redirected = false;
}

/* ---- units ---- */

/*
 * Linux's record of the unit at `base`. Any device leads to a unit, and that to the others, also to one without
 * devices. The head of their list lies in the kernel's image, and the units do not.
 */
static struct intel_iommu *record_of(u64 base)
{
	struct dmar_drhd_unit *any = NULL, *unit;
	struct intel_iommu *record = NULL;
	struct pci_dev *pdev = NULL;

	for_each_pci_dev(pdev) {
		any = static_call(pc_dmar_find_matched_drhd_unit)(pdev);
		if (any)
			break;
	}
	pci_dev_put(pdev);
	rcu_read_lock();
	unit = any;
	while (unit && !record) {
		if ((unsigned long)unit < __START_KERNEL_map && unit->reg_base_addr == base)
			record = unit->iommu;
		unit = list_entry_rcu(unit->list.next, struct dmar_drhd_unit, list);
		if (unit == any)
			break;
	}
	rcu_read_unlock();
	return record;
}

int pc_remap_find(struct pc_unit *unit)
{
	const u32 used = PC_QUEUES | PC_REMAPS;
	int error = is_redirected ? 0 : start();

	if (error)
		return error;
	unit->remapper = record_of(unit->place.base);
	if (!unit->remapper) {
		pr_err("the kernel has no record of this unit\n");
		return -ENODEV;
	}
	if ((*copy_of(unit) & (used | PC_TRANSLATES)) == used)
		return 0;
	pr_err("the kernel's copy of its command register (%#x) is not what the unit shows\n", *copy_of(unit));
	unit->remapper = NULL;
	return -EINVAL;
}

static void update_copy(struct pc_unit *unit)
{
	u32 translates = readl(unit->registers + PC_STATUS) & PC_TRANSLATES;

	*copy_of(unit) = (*copy_of(unit) & ~PC_TRANSLATES) | translates;
}

/* Both are called while the machine is stopped. */
void pc_remap_taken(struct pc_unit *unit)
{
	if (!unit->remapper)
		return;
	update_copy(unit);
	WRITE_ONCE(unit->has_queue, true);
}

void pc_remap_left(struct pc_unit *unit)
{
	if (!unit->remapper)
		return;
	update_copy(unit);
	WRITE_ONCE(unit->has_queue, false);
	/* Linux goes on where it was in its queue, and the hardware begins at the first slot. */
	static_call(pc_dmar_reenable_qi)(unit->remapper);
}

#else

int pc_remap_find(struct pc_unit *unit)
{
	pr_err("this kernel cannot redirect its functions, or describe its types (ftrace, kprobes, BTF)\n");
	return -EOPNOTSUPP;
}

void pc_remap_stop(void) {}
void pc_remap_taken(struct pc_unit *unit) {}
void pc_remap_left(struct pc_unit *unit) {}

#endif
