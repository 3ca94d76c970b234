/* Sparse-row kernels that would otherwise take hundreds of small torch calls.

   Each function computes what the Python beside its caller computes. It holds no lock of Python and shares large work
   with other threads. `hatch_build.py` compiles this file, which includes the others, where the package is installed
   and a C compiler is found; `calls.py` calls it. Sums may be reordered, so that compilers can vectorise them; NaN and
   ∞ keep their meaning. */

#include "kernels.h"

/* The digest of the sources, which the caller compares. */
#ifndef SOURCE
#define SOURCE ""
#endif
const char *source(void)
{
    return SOURCE;
}

/* Return what the headers declare, and the caller compares: structures with their bytes and fields, numbers with their
   values. `hatch_build.py` lists them; a row without a name ends the table. */
typedef struct {
    const char *name;
    int64_t value;
    const char *fields;
} Declared;

const Declared *declared(void)
{
    static const Declared table[] = {DECLARED, {0}};
    return table;
}

/* --- Threads --- */

/* The OpenMP that torch has loaded. Threads of another OpenMP would compete with torch's, which spin for some
   milliseconds after each operation. A weak symbol is NULL where torch uses something else: then the caller computes
   alone. */
#ifdef __ELF__
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
#else
static void (*const GOMP_parallel)(void (*)(void *), void *, unsigned, unsigned) = NULL;
#endif

typedef struct {
    Run *run;
    void *task;
    int64_t parts, next, joined, room;
    double *rooms;
} Team;

static void join_team(void *data)
{
    Team *team = data;
    const int64_t thread = __atomic_fetch_add(&team->joined, 1, __ATOMIC_RELAXED);
    for (int64_t part; (part = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED)) < team->parts;)
        team->run(team->task, part, team->parts, team->rooms + thread * team->room);
}

/* Return memory for so many numbers, from the beginning of a line of the cache, which `free_room` frees; NULL where it
   is not enough. */
static double *room_for(int64_t count)
{
    const size_t line = LINE * sizeof(double), size = (count / LINE + 1) * line;
#ifdef _WIN32
    return _aligned_malloc(size, line);
#else
    return aligned_alloc(line, size);
#endif
}

/* Run the parts of a task on at most so many threads, each with room for so many numbers; a thread takes the next part
   when it is done with one. Return 0 where memory is not enough. */
static int64_t share(Run *run, void *task, int64_t parts, int64_t threads, int64_t room)
{
    const int64_t most = threads < parts ? threads : parts, members = GOMP_parallel && most > 1 ? most : 1;
    const int64_t own = (room + LINE - 1) / LINE * LINE;
    Team team = {run, task, parts, 0, 0, own, own ? room_for(members * own) : NULL};
    if (own && !team.rooms) return 0;
    if (members > 1)
        GOMP_parallel(join_team, &team, members, 0);
    else
        join_team(&team);
    free_room(team.rooms);
    return 1;
}

#define EDGES_IN_FLOAT 32 /* edges whose numbers are added in float before they are added in double */
#define QUERIES        4  /* queries whose distances are measured side by side */

#define REAL float
#include "products.c"
#include "edges.c"
#include "nearest.c"
#undef REAL
#define REAL double
#include "products.c"
#include "edges.c"
#include "nearest.c"
#undef REAL

#include "subgraph.c"
#include "eigh.c"
#include "ritz.c"
#include "filter.c"
#include "subspace.c"
#include "order.c"
#include "structure.c"
#include "factors.c"
#include "krylov.c"
#include "cg.c"
