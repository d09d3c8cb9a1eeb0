/* Types, arithmetic and diagnostics that the carved code expects. */
#ifndef PEERS_BASIC_H
#define PEERS_BASIC_H
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;
typedef int64_t s64;
typedef u64 phys_addr_t, dma_addr_t;
typedef unsigned gfp_t;

/* Compiler */
#define __percpu
#define __read_mostly
#define EXPORT_SYMBOL_GPL(name)
#define EXPORT_SYMBOL(name)
#define MODULE_AUTHOR(text)
#define MODULE_DESCRIPTION(text)
#define MODULE_LICENSE(text)
#define noinline __attribute__((noinline))
#define typeof __typeof__
#define likely(x) __builtin_expect((x) != 0, 1)
#define unlikely(x) __builtin_expect((x) != 0, 0)
#define container_of(member_pointer, type, member) ((type *)((uintptr_t)(member_pointer) - offsetof(type, member)))
#define struct_size(pointer, array, length) (sizeof(*(pointer)) + (length) * sizeof(*(pointer)->array))
#define static_assert _Static_assert
#define ERR_PTR(error) ((void *)(intptr_t)(error))
#define CONFIG_64BIT 1
#define IS_ENABLED(option) 0
#define IS_REACHABLE(option) 1

/* Diagnostics: the bench fails if there is any. */
extern unsigned long warnings;
static inline bool warn_if(bool condition)
{
	if (unlikely(condition))
		__atomic_fetch_add(&warnings, 1, __ATOMIC_RELAXED);
	return condition;
}
#define WARN_ON(condition) warn_if(condition)
#define WARN_ON_ONCE(condition) warn_if(condition)
#define WARN(condition, ...) warn_if(condition)
#define dev_WARN_ONCE(device, condition, ...) warn_if(condition)
#define BUG() __builtin_trap()
#define BUG_ON(condition) ((condition) ? __builtin_trap() : (void)0)
#define VM_BUG_ON(condition) ((void)0)
#define pr_err(...) ((void)warn_if(true))
#define pr_crit pr_err
#define pr_warn pr_err
#define pr_info(...) ((void)0)
#define pr_debug pr_info
#define pr_err_ratelimited pr_err
#define dev_err pr_err
#define dev_warn_once pr_err
#define dev_notice pr_info

/* Arithmetic */
#define BITS_PER_LONG 64
#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
#define PAGE_MASK (-PAGE_SIZE)
#define SZ_4K (1UL << 12)
#define SZ_2M (1UL << 21)
#define SZ_1G (1UL << 30)
/* The alignment is a power of two. */
#define ALIGN_DOWN(x, to) ((x) & -(typeof(x))(to))
#define ALIGN(x, to) ALIGN_DOWN((x) + (typeof(x))((to) - 1), to)
#define IS_ALIGNED(x, to) (((x) & (typeof(x))((to) - 1)) == 0)
#define round_down(x, to) ALIGN_DOWN(x, to)
#define DIV_ROUND_UP(x, by) (((x) - 1 + (by)) / (by))
#define PAGE_ALIGN(x) ALIGN(x, PAGE_SIZE)
#define BIT(n) (1UL << (n))
#define BIT_ULL(n) BIT(n)
#define BIT_MASK(n) BIT((n) % BITS_PER_LONG)
#define GENMASK(high, low) (BIT(high) - BIT(low) + BIT(high))
#define DMA_BIT_MASK(bits) (~0ULL >> (64 - (bits)))
#define bits_per(x) 64	/* every mask here has as many */
#define min(a, b) ({ typeof(a) first_ = (a); typeof(b) second_ = (b); second_ < first_ ? second_ : first_; })
#define max(a, b) ({ typeof(a) first_ = (a); typeof(b) second_ = (b); second_ > first_ ? second_ : first_; })
#define min_t(type, a, b) min((type)(a), (type)(b))
#define max_t(type, a, b) max((type)(a), (type)(b))
#define min_not_zero(a, b) ({ typeof(a) one_ = (a), other_ = (b); !one_ ? other_ : !other_ ? one_ : min(one_, other_); })
#define swap(a, b) do { typeof(a) kept_ = (a); (a) = (b); (b) = kept_; } while (0)
#define check_add_overflow(a, b, sum) __builtin_add_overflow(a, b, sum)
static inline int fls_long(unsigned long x) { return x ? 64 - __builtin_clzl(x) : 0; }
static inline int __fls(unsigned long x) { return __builtin_clzl(x) ^ 63; }
static inline int __ffs(unsigned long x) { return __builtin_ctzl(x); }
#define ilog2(x) __fls(x)
static inline bool is_power_of_2(unsigned long n) { return __builtin_popcountl(n) == 1; }
static inline int order_base_2(unsigned long n) { return n < 2 ? 0 : fls_long(n - 1); }
static inline unsigned long roundup_pow_of_two(unsigned long n) { return BIT(order_base_2(n)); }

#endif
