/* What the programs here share. Each runs the case that its argument names, and fails at the first check that does. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

struct check {
	const char *name;
	void (*run)(void);
};

static inline int run_check(const struct check *checks, size_t count, int words, char **word)
{
	for (size_t i = 0; i < count; i++)
		if (words == 2 && !strcmp(word[1], checks[i].name)) {
			checks[i].run();
			return 0;
		}
	fprintf(stderr, "there is no such case\n");
	return 2;
}

#endif
