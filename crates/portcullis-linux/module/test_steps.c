// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Linux's API of two steps: a driver allocates addresses for a whole request, and then links its buffers one by one. A
 * provider of the DMA API has no part in it, so it must refuse. Drivers then map each buffer by itself.
 */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/sizes.h>
#include <linux/version.h>

#include "test.h"

static ssize_t steps_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
	struct dma_iova_state state = {};
	struct device *dev;

	if (!test_edu_device)
		return -ENODEV;
	dev = &test_edu_device->dev;
	if (!dma_iova_try_alloc(dev, &state, 0, SZ_64K))
		return len;
	pr_err("addresses %pad were handed out beside the domain of the device\n", &state.addr);
	dma_iova_free(dev, &state);
	return -EIO;
#else
	return -EOPNOTSUPP;
#endif
}

const struct file_operations test_steps = { .owner = THIS_MODULE, .write = steps_write };
