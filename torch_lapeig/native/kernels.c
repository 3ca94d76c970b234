/* Products with sparse rows, and loops of them that torch would make of hundreds of small operations.

Each function does what the Python beside its caller does, in memory of the processor, without Python's lock, and shares
large work with other threads. `hatch_build.py` compiles this file, which includes the others, where the package is installed
and a C compiler is there; `__init__.py` calls it. Sums may be reordered, which is what lets a compiler vectorise them; NaN
and ∞ are what they are. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A library that was compiled on a new Linux runs on old ones: newer versions of these differ in how they report errors. */
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver hypot, hypot@GLIBC_2.2.5");
#endif

/* Code for three generations of processors, chosen when the library is loaded. What is FAST is compiled once for each, and
   for each REAL: so loops that several functions need are FAST functions of their own, and not copied into these. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && !defined(PLAIN)
#define FAST __attribute__((noinline, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FAST
#endif
#define INLINE static inline __attribute__((always_inline))
#pragma GCC diagnostic ignored "-Wpsabi" /* how vectors are passed, which inlined functions do not */
/* Products are rounded before they are added. */
#if defined(__GNUC__) && !defined(__clang__)
#define UNFUSED __attribute__((optimize("fp-contract=off")))
#else
#define UNFUSED
#endif

/* Of what this was compiled, for the caller to compare. */
#ifndef SOURCE
#define SOURCE ""
#endif
const char *source(void) { return SOURCE; }

/* --- Threads --- */

/* `GOMP_parallel` of the OpenMP that torch computes with, put here when the library is loaded: its threads wait for work
   at full speed for a while, and would take the time of others. NULL: what is asked for is done by the caller alone. */
void (*parallel)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
    void (*run)(void *task, int64_t part, int64_t parts, int64_t thread);
    void *task;
    int64_t parts, next, joined;
} Team;

static void join_team(void *data)
{
    Team *t = data;
    const int64_t thread = __atomic_fetch_add(&t->joined, 1, __ATOMIC_RELAXED);
    for (int64_t part; (part = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED)) < t->parts;)
        t->run(t->task, part, t->parts, thread);
}

/* Have parts run by so many threads at most, each taking the next part when it is done with one. */
static void share(void (*run)(void *, int64_t, int64_t, int64_t), void *task, int64_t parts, int64_t threads)
{
    Team t = {run, task, parts, 0, 0};
    if (parallel && parts > 1 && threads > 1)
        parallel(join_team, &t, threads < parts ? threads : parts, 0);
    else
        join_team(&t);
}

/* --- Names and vectors of both precisions --- */

#define JOIN_(name, type) name##_##type
#define JOIN(name, type) JOIN_(name, type)
#define NAME(name) JOIN(name, REAL)

/* Bytes of the registers that loops are written for: a wider vector lives in memory where registers are narrower. */
#ifndef WIDTH
#ifdef __x86_64__
#define WIDTH 32
#else
#define WIDTH 16
#endif
#endif
typedef float Short_float __attribute__((vector_size(16), aligned(4), may_alias));
typedef double Short_double __attribute__((vector_size(16), aligned(8), may_alias));
typedef float Wide_float __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef double Wide_double __attribute__((vector_size(WIDTH), aligned(8), may_alias));
typedef double Four __attribute__((vector_size(32), aligned(8), may_alias)); /* the vectors of a block in `small.c` */

#define FEW_ROWS 128 /* of a block of some columns, which stay in the first cache */
#define STRETCH 512  /* numbers of vectors that stay in the cache for all products with them */

#include "subgraph.c"
#include "small.c"

#define REAL float
#include "products.c"
#include "nearest.c"
#undef REAL
#define REAL double
#include "products.c"
#include "nearest.c"
#undef REAL

#include "ritz.c"
#include "subspace.c"
#include "sparse.c"
#include "krylov.c"

#define V Wide_double
#define LANE (WIDTH / 8) /* columns that are solved side by side, or matrices */
#include "cg.c"
#include "eigh.c"
