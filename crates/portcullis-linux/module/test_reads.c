// SPDX-License-Identifier: MIT OR GPL-2.0
/* What a read of 4 KiB takes, from a disk and past the page cache. */
#include <linux/bvec.h>
#include <linux/module.h>
#include <linux/uio.h>

#include "test.h"

#define READ_BYTES 4096
/* In the buffer before each read: where it is still there, nothing was read. */
#define POISON 0x5ca1ab1e0ddba11ull

static int read_one(struct file *disk, struct page *page, loff_t *at)
{
	/* A page may be read into past the cache in all kernels, an address of the kernel's own only in newer ones. */
	struct bio_vec piece = { .bv_page = page, .bv_len = READ_BYTES };
	u64 *last = page_address(page) + READ_BYTES - sizeof(u64);
	struct iov_iter to;
	ssize_t got;

	WRITE_ONCE(*last, POISON);
	iov_iter_bvec(&to, READ, &piece, 1, READ_BYTES);
	got = vfs_iter_read(disk, &to, at, 0);
	if (got == READ_BYTES && READ_ONCE(*last) != POISON)
		return 0;
	pr_err("a read before %lld gives %zd\n", *at, got);
	return -EIO;
}

static int measure(struct file *disk, struct page *page, unsigned int count)
{
	loff_t size = i_size_read(disk->f_mapping->host), at = 0;
	u64 begun_ns, end_ns;
	unsigned int done;
	int error;

	if (size < READ_BYTES)
		return -EIO;
	error = test_busy_ns(&begun_ns);
	for (done = 0; !error && done < count; done++) {
		if (at + READ_BYTES > size)
			at = 0;
		error = read_one(disk, page, &at);
	}
	error = error ?: test_busy_ns(&end_ns);
	if (!error)
		pr_info("reads %u bytes %u each_ns %llu\n", done, READ_BYTES, DIV_ROUND_CLOSEST_ULL(end_ns - begun_ns, done));
	return error;
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
