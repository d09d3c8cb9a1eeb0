/* The kernel's IOVA allocator. */
#include "memory.h"
#include "carved/rbtree.h"
#include "carved/iova.h"
#include "carved/iova.inc"
