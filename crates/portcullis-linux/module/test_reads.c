// SPDX-License-Identifier: MIT OR GPL-2.0
/* The cost of a direct read of 4 KiB from a disk, until its interrupt is served. */
#include <linux/bvec.h>
#include <linux/module.h>
#include <linux/uio.h>

#include "test.h"

#define READ_BYTES 4096
/* Written to the buffer before each read. If it is still there, nothing was read. */
#define POISON 0x5ca1ab1e0ddba11ull

#define TRIAL_TURNS 100000

struct reading {
	struct kiocb kiocb;
	bool is_done;
	long got;
	/* How many times reads were polled, in total. */
	u64 turns;
};

static void done(struct kiocb *kiocb, long got)
{
	struct reading *reading = container_of(kiocb, struct reading, kiocb);

	reading->got = got;
	WRITE_ONCE(reading->is_done, true);
}

/*
 * Waits for a read in a loop, without sleep. Under an instruction clock an idle CPU jumps from timer to timer until
 * QEMU has answered, so the count would depend on the load of the host. The turns of the loop depend on it too, but
 * they are counted.
 */
static noinline void spin(struct reading *reading, u64 turns_max)
{
	u64 turns;

	for (turns = 0; !READ_ONCE(reading->is_done) && turns < turns_max; turns++) {
		cpu_relax();
#ifdef TIF_NEED_RESCHED_LAZY
		/* In newer kernels a task ends the read. Without this it would run only at the next tick. */
		if (test_thread_flag(TIF_NEED_RESCHED_LAZY))
			schedule();
#endif
	}
	reading->turns += turns;
}

/* The time of `turns` turns. */
static u64 spun_ns(u64 turns)
{
	struct reading never = {};
	u64 begun_ns = ktime_get_ns();

	spin(&never, TRIAL_TURNS);
	return div_u64((ktime_get_ns() - begun_ns) * turns, TRIAL_TURNS);
}

static int read_one(struct reading *reading, struct page *page, loff_t at)
{
	/* All kernels read directly into a page; only newer ones read into a kernel address. */
	struct bio_vec piece = { .bv_page = page, .bv_len = READ_BYTES };
	u64 *last = page_address(page) + READ_BYTES - sizeof(u64);
	struct iov_iter to;
	ssize_t error;

	WRITE_ONCE(*last, POISON);
	iov_iter_bvec(&to, READ, &piece, 1, READ_BYTES);
	reading->kiocb.ki_pos = at;
	reading->is_done = false;
	error = vfs_iocb_iter_read(reading->kiocb.ki_filp, &reading->kiocb, &to);
	if (error == -EIOCBQUEUED)
		spin(reading, U64_MAX);
	if (error == -EIOCBQUEUED && reading->got == READ_BYTES && READ_ONCE(*last) != POISON)
		return 0;
	pr_err("a read at %lld ends with %zd and %ld\n", at, error, reading->got);
	return -EIO;
}

static int measure(struct file *disk, struct page *page, unsigned int count)
{
	loff_t size = i_size_read(disk->f_mapping->host), at = 0;
	struct reading reading = {};
	unsigned int index;
	u64 begun_ns, ns;

	if (size < READ_BYTES)
		return -EIO;
	init_sync_kiocb(&reading.kiocb, disk);
	reading.kiocb.ki_complete = done;
	begun_ns = ktime_get_ns();
	for (index = 0; index < count; index++, at += READ_BYTES) {
		if (at + READ_BYTES > size)
			at = 0;
		if (read_one(&reading, page, at))
			return -EIO;
	}
	ns = ktime_get_ns() - begun_ns;
	pr_info("reads %u bytes %u turns %llu each_ns %llu\n", count, READ_BYTES, reading.turns,
		DIV_ROUND_CLOSEST_ULL(ns - spun_ns(reading.turns), count));
	return 0;
}

static int reads(const char *path, unsigned int count)
{
	struct file *disk = filp_open(path, O_RDONLY | O_DIRECT | O_LARGEFILE, 0);
	struct page *page;
	int error = -ENOMEM;

	if (IS_ERR(disk))
		return PTR_ERR(disk);
	page = alloc_page(GFP_KERNEL);
	if (page) {
		error = measure(disk, page, count);
		__free_page(page);
	}
	filp_close(disk, NULL);
	return error;
}

static ssize_t reads_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	char text[64], path[32];
	unsigned int count;
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (sscanf(text, "%31s %u", path, &count) != 2 || !count)
		return -EINVAL;
	return reads(path, count) ?: len;
}

const struct file_operations test_reads = { .owner = THIS_MODULE, .write = reads_write };
