/* The kernel's red-black tree. */
#include "memory.h"
#include "carved/rbtree.h"
#include "carved/rbtree.inc"
