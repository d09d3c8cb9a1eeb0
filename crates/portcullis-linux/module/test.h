/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What the files of portcullis_test.ko share. */
#ifndef PORTCULLIS_TEST_H
#define PORTCULLIS_TEST_H

#include <linux/fs.h>
#include <linux/pci.h>

#undef pr_fmt
#define pr_fmt(fmt) "portcullis_test: " fmt

/* Copies what was written to a file to `to`, as a string. */
int test_text(const char __user *from, size_t len, char *to, size_t room);

/* The busy time of the CPU since it started. Only differences are meaningful. */
int test_busy_ns(u64 *busy_ns);

extern const struct file_operations test_pairs;
extern const struct file_operations test_datagrams;
extern const struct file_operations test_reads;
extern const struct file_operations test_attack;
extern const struct file_operations test_exhaust;
extern const struct file_operations test_places;
extern const struct file_operations test_late;
extern const struct file_operations test_alias;
extern const struct file_operations test_slow;
extern const struct file_operations test_gone;
extern const struct file_operations test_quiet;
extern const struct file_operations test_end;
extern const struct file_operations test_steps;
void test_gone_stop(void);
void test_end_stop(void);
int test_slow_start(void);
void test_slow_stop(void);
int test_edu_register(void);
void test_edu_unregister(void);
/* The attacker, while it has its driver. */
extern struct pci_dev *test_edu_device;
/* Makes it write to an address, and says whether the write landed in a page of memory, which it overwrites. */
int test_edu_lands(u8 *memory, dma_addr_t at, bool *landed);

#endif
