// SPDX-License-Identifier: MIT OR GPL-2.0
/* QEMU's edu device as an attacker: "edu" in QEMU's documentation of devices. */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/module.h>

#include "test.h"

#define EDU_BUFFER 0x40000
#define EDU_FROM 0x80
#define EDU_TO 0x88
#define EDU_COUNT 0x90
#define EDU_COMMAND 0x98
#define EDU_START 1
#define EDU_TO_MEMORY 2

static void __iomem *edu_registers;
struct pci_dev *test_edu_device;

/* Makes the device write to an address. It takes 100 ms, and does not report the result. */
static int edu_write(dma_addr_t at, bool sleeps)
{
	int turns;

	writeq(EDU_BUFFER, edu_registers + EDU_FROM);
	writeq(at, edu_registers + EDU_TO);
	writeq(16, edu_registers + EDU_COUNT);
	writeq(EDU_START | EDU_TO_MEMORY, edu_registers + EDU_COMMAND);
	for (turns = 0; turns < 1000; turns++) {
		if (!(readq(edu_registers + EDU_COMMAND) & EDU_START))
			return 0;
		if (sleeps)
			msleep(2);
		else
			mdelay(2);
	}
	pr_err("the device does not end its write\n");
	return -EIO;
}

/* The device's own buffer is all zero, so a remaining byte of 0xaa was not written. */
static int lands(u8 *memory, dma_addr_t at, bool *landed, bool sleeps)
{
	int error;

	memset(memory, 0xaa, PAGE_SIZE);
	error = edu_write(at, sleeps);
	*landed = !READ_ONCE(memory[0]);
	return error;
}

int test_edu_lands(u8 *memory, dma_addr_t at, bool *landed)
{
	return lands(memory, at, landed, true);
}

static const char *word(bool has_landed)
{
	return has_landed ? "landed" : "refused";
}

/* Attacks by the DMA address, whose translation is cached when it is unmapped, or by the address of the memory. */
static int attack(u8 *memory, bool by_memory)
{
	bool before, after;
	dma_addr_t at = dma_map_single(&test_edu_device->dev, memory, PAGE_SIZE, DMA_FROM_DEVICE), target;
	int error;

	if (dma_mapping_error(&test_edu_device->dev, at))
		return -ENOMEM;
	target = by_memory ? virt_to_phys(memory) : at;
	error = test_edu_lands(memory, target, &before);
	dma_unmap_single(&test_edu_device->dev, at, PAGE_SIZE, DMA_FROM_DEVICE);
	error = error ?: test_edu_lands(memory, target, &after);
	if (!error)
		pr_info("attack: %s, while mapped %s, after the unmap %s\n", by_memory ? "memory" : "buffer",
			word(before), word(after));
	return error;
}

/* Unmaps two pages as something else than they were mapped as, and attacks both by the addresses that they had. */
static int attack_lengths(void)
{
	static const struct {
		const char *name;
		size_t from, bytes;
	} wrong[] = { { "short", 0, PAGE_SIZE }, { "middle", PAGE_SIZE, PAGE_SIZE }, { "long", 0, 3 * PAGE_SIZE } };
	u8 *memory = (u8 *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, 1);
	int k, error = memory ? 0 : -ENOMEM;

	for (k = 0; !error && k < ARRAY_SIZE(wrong); k++) {
		dma_addr_t at = dma_map_single(&test_edu_device->dev, memory, 2 * PAGE_SIZE, DMA_FROM_DEVICE);
		bool before, first, second;

		if (dma_mapping_error(&test_edu_device->dev, at)) {
			error = -ENOMEM;
			break;
		}
		error = test_edu_lands(memory, at, &before);
		dma_unmap_single(&test_edu_device->dev, at + wrong[k].from, wrong[k].bytes, DMA_FROM_DEVICE);
		error = error ?: test_edu_lands(memory, at, &first);
		error = error ?: test_edu_lands(memory + PAGE_SIZE, at + PAGE_SIZE, &second);
		if (!error)
			pr_info("attack: %s unmap, while mapped %s, first page %s, second page %s\n", wrong[k].name,
				word(before), word(first), word(second));
	}
	free_pages((unsigned long)memory, 1);
	return error;
}

/*
 * The module takes its timer for late when jiffies has moved by two. This counts jiffies too: in a guest whose host is
 * busy, ticks come later than any fixed time.
 */
#define LATE_JIFFIES 3

/*
 * Under deferred protection, unmaps a buffer and writes to it while no softirq runs on this CPU, as under a flood of
 * packets: the timer that is to flush does not come. After LATE_JIFFIES, another buffer is unmapped.
 */
static int attack_late(void)
{
	u8 *memory = (u8 *)__get_free_pages(GFP_KERNEL, 1);
	struct device *dev = &test_edu_device->dev;
	dma_addr_t at[2] = { DMA_MAPPING_ERROR, DMA_MAPPING_ERROR };
	unsigned long unmapped;
	bool before, after;
	int error;

	if (!memory)
		return -ENOMEM;
	at[0] = dma_map_single(dev, memory, PAGE_SIZE, DMA_FROM_DEVICE);
	at[1] = dma_map_single(dev, memory + PAGE_SIZE, PAGE_SIZE, DMA_FROM_DEVICE);
	error = dma_mapping_error(dev, at[0]) ?: dma_mapping_error(dev, at[1]) ?: test_edu_lands(memory, at[0], &before);
	local_bh_disable();
	if (!error) {
		dma_unmap_single(dev, at[0], PAGE_SIZE, DMA_FROM_DEVICE);
		for (unmapped = jiffies; jiffies - unmapped < LATE_JIFFIES;)
			cpu_relax();
		/* A busy host may deliver several ticks at once. The flush is due half a millisecond after the unmap. */
		mdelay(1);
		dma_unmap_single(dev, at[1], PAGE_SIZE, DMA_FROM_DEVICE);
		error = lands(memory, at[0], &after, false);
	}
	local_bh_enable();
	if (!error)
		pr_info("attack: late, while mapped %s, after the next unmap %s\n", word(before), word(after));
	free_pages((unsigned long)memory, 1);
	return error;
}

static ssize_t attack_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	char text[32], by[8];
	unsigned int times;
	u8 *memory;
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (!test_edu_device)
		return -ENODEV;
	if (!strcmp(text, "lengths\n"))
		return attack_lengths() ?: len;
	if (!strcmp(text, "late\n"))
		return attack_late() ?: len;
	if (sscanf(text, "%7s %u", by, &times) != 2 || (strcmp(by, "memory") && strcmp(by, "buffer")))
		return -EINVAL;
	memory = (u8 *)get_zeroed_page(GFP_KERNEL);
	if (!memory)
		return -ENOMEM;
	while (!error && times--)
		error = attack(memory, !strcmp(by, "memory"));
	free_page((unsigned long)memory);
	return error ?: len;
}

const struct file_operations test_attack = { .owner = THIS_MODULE, .write = attack_write };

static bool fail_probe;
module_param(fail_probe, bool, 0444);
MODULE_PARM_DESC(fail_probe, "the attacker's driver allocates memory, and its probe then fails");

static bool external;
module_param(external, bool, 0444);
MODULE_PARM_DESC(external, "the kernel takes the attacker for an external device from now on");

static int edu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int error = pcim_enable_device(pdev) ?: dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	dma_addr_t unused;

	if (error)
		return error;
	if (fail_probe)
		return dmam_alloc_coherent(&pdev->dev, PAGE_SIZE, &unused, GFP_KERNEL) ? -EIO : -ENOMEM;
	edu_registers = pcim_iomap(pdev, 0, 0);
	if (!edu_registers)
		return -ENOMEM;
	pci_set_master(pdev);
	pdev->untrusted |= external;
	/* The device drives 28 address bits by default. The guest starts it with a dma_mask of all ones. */
	test_edu_device = pdev;
	return 0;
}

static void edu_remove(struct pci_dev *pdev)
{
	test_edu_device = NULL;
}

static char *name = "portcullis_edu";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "the name of the attacker's driver");

static const struct pci_device_id edu_ids[] = { { PCI_DEVICE(0x1234, 0x11e8) }, {} };
static struct pci_driver edu = {
	.id_table = edu_ids,
	.probe = edu_probe,
	.remove = edu_remove,
};

int test_edu_register(void)
{
	edu.name = name;
	return pci_register_driver(&edu);
}

void test_edu_unregister(void)
{
	pci_unregister_driver(&edu);
}
