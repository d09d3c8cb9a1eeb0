// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The ports above devices that are protected or shut out are looked at again, because a port loses its state when it
 * is reset, as it is after an error or when a card is plugged in.
 */
#include <linux/module.h>
#include <linux/workqueue.h>

#include "portcullis.h"

/* The longest time that a port is open before it is seen. */
#define LOOK_MS 100

/* Newer kernels have another name for it. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
#define system_unbound_wq system_dfl_wq
#endif

static void look(struct work_struct *work);
static DECLARE_DELAYED_WORK(looking, look);

static void look(struct work_struct *work)
{
	pc_keep_ports_of_protected();
	pc_keep_ports_of_shut();
	queue_delayed_work(system_unbound_wq, &looking, msecs_to_jiffies(LOOK_MS));
}

void pc_watch_start(void)
{
	queue_delayed_work(system_unbound_wq, &looking, msecs_to_jiffies(LOOK_MS));
}

void pc_watch_stop(void)
{
	cancel_delayed_work_sync(&looking);
}
