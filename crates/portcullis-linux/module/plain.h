/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What files need that are also compiled outside of a kernel, where xtask's tests run them. Such a file includes this
 * header and its own.
 */
#ifndef PORTCULLIS_PLAIN_H
#define PORTCULLIS_PLAIN_H

#ifdef __KERNEL__
#include <asm/barrier.h>
#include <linux/kernel.h>
#include <linux/string.h>
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#define smp_store_release(to, value) __atomic_store_n(to, value, __ATOMIC_RELEASE)
#endif

#endif
