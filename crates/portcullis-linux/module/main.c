// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * portcullis.ko: devices reach only the memory that their drivers have mapped, and only for as long as it is mapped.
 *
 * Loading brings all remapping units up at once, with every device passed through. A device is protected from the
 * moment its driver is bound: see policy.c. While any device is protected, the module cannot be unloaded.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/reboot.h>
#include <linux/suspend.h>

#include "portcullis.h"

struct platform_device *pc_platform;

/* ---- the end of the running kernel ---- */

static bool is_kexec;

static int on_reboot(struct notifier_block *block, unsigned long event, void *command)
{
	/* This command is the only sign of a kexec. */
	is_kexec = event == SYS_RESTART && command && !strcmp(command, "kexec reboot");
	return NOTIFY_DONE;
}

static struct notifier_block reboot_notifier = { .notifier_call = on_reboot };

/*
 * Runs after the protected devices, which are linked to this one, were stopped by their drivers. Before a kexec the
 * kernel has also taken bus mastering from every device, so translation is turned off for the next kernel. Otherwise
 * translation stays on.
 */
static void shut_down(struct platform_device *device)
{
	/* A unit that is halted takes no command that would cut a device off. */
	pc_watch_stop();
	pc_units_halt(is_kexec);
}

static struct platform_driver driver = { .driver = { .name = "portcullis" }, .shutdown = shut_down };

/* A unit that loses power forgets its tables, and lets devices through until it is set up again. */
static int on_suspend(struct notifier_block *block, unsigned long event, void *data)
{
	if (event != PM_SUSPEND_PREPARE && event != PM_HIBERNATION_PREPARE && event != PM_RESTORE_PREPARE)
		return NOTIFY_DONE;
	pr_err("this machine does not sleep while portcullis is loaded; unload it first\n");
	return NOTIFY_BAD;
}

static struct notifier_block suspend_notifier = { .notifier_call = on_suspend };

static int start_platform(void)
{
	int error = platform_driver_register(&driver);

	if (error)
		return error;
	pc_platform = platform_device_register_simple("portcullis", PLATFORM_DEVID_NONE, NULL, 0);
	if (!IS_ERR(pc_platform))
		return 0;
	platform_driver_unregister(&driver);
	return PTR_ERR(pc_platform);
}

static void stop_platform(void)
{
	platform_device_unregister(pc_platform);
	platform_driver_unregister(&driver);
}

/* ---- coming and going ---- */

static int start(void)
{
	int error;

	/*
	 * No device can appear between the listing for the unit and the registration of the notifier, and no parameter is
	 * written.
	 */
	kernel_param_lock(THIS_MODULE);
	pci_lock_rescan_remove();
	error = pc_units_up();
	if (!error) {
		error = pc_policy_start();
		if (error) {
			pc_units_down();
			pc_passing_stop();
		}
	}
	pci_unlock_rescan_remove();
	kernel_param_unlock(THIS_MODULE);
	return error;
}

static int __init portcullis_init(void)
{
	int error;

	if (pcr_lock_bytes() < sizeof(raw_spinlock_t)) {
		pr_err("this kernel checks its locks, and the Rust half was built for one that does not\n");
		return -ENOEXEC;
	}
	error = pc_protect_start();
	if (error)
		return error;
	pc_host_start();
	error = start_platform();
	if (!error) {
		error = start();
		if (error)
			stop_platform();
	}
	if (error) {
		pc_protect_stop();
		return error;
	}
	register_reboot_notifier(&reboot_notifier);
	register_pm_notifier(&suspend_notifier);
	pc_watch_start();
	pc_report_start();
	return 0;
}

static void __exit portcullis_exit(void)
{
	/* Each protected device holds a reference to the module, so there is no protected device. */
	pc_watch_stop();
	pc_protect_stop();
	pc_report_stop();
	unregister_pm_notifier(&suspend_notifier);
	unregister_reboot_notifier(&reboot_notifier);
	kernel_param_lock(THIS_MODULE);
	pci_lock_rescan_remove();
	pc_policy_stop();
	pc_units_down();
	pc_passing_stop();
	pci_unlock_rescan_remove();
	kernel_param_unlock(THIS_MODULE);
	stop_platform();
	if (pc_pages_lent() || pc_allocations_lent())
		pr_err("gone, and %lld pages and %lld allocations are left behind\n", pc_pages_lent(), pc_allocations_lent());
	else
		pr_info("gone, and nothing is left behind\n");
}

module_init(portcullis_init);
module_exit(portcullis_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Strict protection of memory from DMA");
MODULE_VERSION("0.1.0");
