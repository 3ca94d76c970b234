/* What all compiled loops share: the compiler's attributes, vectors, threads, and the tasks that Python fills.

   Local names: i, j and k are indices, n counts rows or nodes, m columns. Another single letter is a symbol of the
   comment above its function. */

#ifndef KERNELS_H
#define KERNELS_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A library that was compiled on a new Linux must load on old ones: ask for the oldest version of these functions. */
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver hypot, hypot@GLIBC_2.2.5");
#endif

/* FAST functions are compiled for three generations of processors; the loader chooses. Each copy takes time to
   compile, so loops that several functions need are FAST functions of their own, not inlined into each. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && !defined(PLAIN)
#define FAST __attribute__((noinline, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FAST
#endif
#define INLINE static inline __attribute__((always_inline))
#pragma GCC diagnostic ignored "-Wpsabi" /* it warns how vectors are passed, but inlined functions pass none */

/* UNFUSED functions round each product before they add it, as torch does. */
#if defined(__GNUC__) && !defined(__clang__)
#define UNFUSED __attribute__((optimize("fp-contract=off")))
#else
#define UNFUSED
#endif

/* --- Names and vectors of both precisions: REAL is float or double --- */

#define JOIN_(name, type) name##_##type
#define JOIN(name, type)  JOIN_(name, type)
#define NAME(name)        JOIN(name, REAL)

/* Bytes of the registers that loops are written for. A vector wider than the registers would be kept in memory. */
#ifdef __x86_64__
#define WIDTH 32
#else
#define WIDTH 16
#endif
typedef float Short_float __attribute__((vector_size(16), aligned(4), may_alias));
typedef double Short_double __attribute__((vector_size(16), aligned(8), may_alias));
typedef float Wide_float __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef double Wide_double __attribute__((vector_size(WIDTH), aligned(8), may_alias));
typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));

#define LANES            (WIDTH / 8) /* numbers of double in a vector */
#define LINE             8           /* numbers of double in a line of the cache */
#define BLOCK            4           /* maximum vectors of a block of a Krylov space */
#define ROWS_IN_CACHE    128         /* rows of a block of some columns that stay in the first cache */
#define NUMBERS_IN_CACHE 512         /* numbers of each of some vectors that stay in the first cache */

/* --- Threads --- */

/* `room`: memory of the thread, as large as `share` was asked for. */
typedef void Run(void *task, int64_t part, int64_t parts, double *room);

static int64_t share(Run *run, void *task, int64_t parts, int64_t threads, int64_t room);
static double *room_for(int64_t count);
#ifdef _WIN32
#define free_room _aligned_free
#else
#define free_room free
#endif

/* Results in place of a count. */
#define SINGULAR  -1 /* a pivot is zero or not finite */
#define NO_MEMORY -2

/* --- Tasks. `calls.py` reads the structures here and in `tasks.h`, and compares sizes with `size_of`; it reads whole
   numbers that are defined here, too. C allocates what a task works with --- */

#define REAL float
#include "tasks.h"
#undef REAL
#define REAL double
#include "tasks.h"
#undef REAL

/* The edges among `count` of `total` nodes, in their order: `new_crow`, and for each edge its row and column there and
   its number in the whole graph. `place` holds zeros for all nodes. */
typedef struct {
    const int32_t *crow, *col;
    const int64_t *nodes;
    int64_t total, count;
    int32_t *place, *new_crow, *row, *new_col;
    int64_t *edge;
} Subgraph;

/* The first `wanted` eigenvectors, as columns, and all eigenvalues, ascending, of matrices whose lower triangle is
   read. LAPACK must solve them if one has `failed`: it is not finite, or larger than 1e150, or smaller than 1e-150; or,
   if `is_whole`, its triangles differ. The first entry of nearly the largest size of each vector is positive, times
   `factor` ≥ 0 if that is given. */
typedef struct {
    int64_t matrices, size, wanted, is_whole, failed;
    const double *matrix, *factor;
    double *values, *vectors;
} Eigh;

/* T_degree(Ã) x for each graph, Ã = (A − centre) scale / 2, on the columns from `first` on; the columns before are
   copied. The columns of one graph may be split into `groups`, each a part for a thread. */
typedef struct {
    Rows_double rows;
    int64_t graphs, nodes, columns, first, groups;
    int64_t *degree;
    double *centre, *scale, *out;
    const double *x;
} Filter;

/* Ritz pairs of the span of the columns of `x`, ascending, and the norms of their residuals, for each graph. The null
   vectors that are in the span are given the value −bound, so that they do not mix with small values; where there are
   any, no returned value is below 0. */
typedef struct {
    Rows_double rows;
    int64_t graphs, nodes, columns, nulls, null_step;
    const double *x, *null, *bound;
    double *values, *vectors, *residuals;
    double least_pivot;
} Ritz;

/* The settings of filters, by their names in `torch_lapeig.eigen.solvers.chebyshev`. */
typedef struct {
    double beyond, highest, overflow, damping, clean, spare, close, settled, tolerance;
    int64_t shown, least_degree, iterations, degree, products;
} FilterSettings;

/* Subspace iteration. The block is `ritz->x`, which is `filter->out`; `ritz->vectors`, which is `filter->x`, `values`
   and `residuals` are the answer. `nullity` counts null vectors. `centre` is about the mean of each spectrum, or NULL.
   `state` is BEGINS at first, and at the end what became of the graph. A call returns after `most_work` multiplications,
   and the next call goes on. A filter is shared by threads in parts of at least `part_work`. */
#define BEGINS    0
#define GOES_ON   1
#define FINISHED  2
#define GIVES_UP  3
#define DEPENDENT 4 /* columns are dependent */
#define STOPPED   5 /* memory was not enough */
typedef struct {
    Ritz *ritz;
    Filter *filter;
    const FilterSettings *settings;
    int64_t wanted, threads, part_work, most_work, work_done;
    const int64_t *nullity;
    const double *bound, *round_off, *centre;
    int64_t *state, *iterations, *products;
} Subspace;

/* Conjugate gradients on the complement of V; see `torch_lapeig.eigen.gradient.complement`. The preconditioner is rest
   x + known scales knownᵀ x. `split`: guards of a cluster that the cut splits, or NULL. `enough`: residuals that are
   allowed. `size`: norms of the right-hand sides. `round_off`: of an iterate of norm 1. `noise`: the part of the
   right-hand sides up to which residuals may be round-off. */
typedef struct {
    int64_t nodes, wanted, guards;
    const double *vectors;       /* (nodes, wanted): V */
    const double *known;         /* (nodes, wanted + guards): V and the guards */
    const double *values;        /* (wanted) */
    const double *scales;        /* (wanted + guards, wanted) */
    const double *rest;          /* (1) */
    const double *split;         /* (guards, wanted) */
    const double *enough, *size; /* (wanted) */
    const double *round_off;     /* (1) */
    double noise;
    int64_t limit, replaced, patience;
    Rows_double rows;
    int64_t graphs;
    const double *target;
    double *solution, *residuals;
} Complement;

/* Maximum cost of factors: multiplications and entries. */
typedef struct {
    double work, entries;
} Limits;

/* The structure of factors L D Lᵀ. Columns of L that have the same rows below them are a supernode. Its front is the
   dense matrix of its columns and these rows. Positions are places in the order of elimination. */
typedef struct {
    int64_t nodes, supers;
    int32_t *node;         /* (nodes): the node at each position */
    int32_t *first;        /* (supers + 1): position of the first column of each supernode, children before parents */
    int32_t *parent;       /* (supers): the supernode of the first row below; `supers` where there is none */
    int64_t *row_start;    /* (supers + 1): where the rows below each supernode begin in `row` */
    int32_t *row;          /* positions, ascending within a supernode */
    int64_t *column_start; /* (supers + 1): where the columns of each supernode begin in L */
    int64_t widest;        /* rows of the largest front */
    int64_t waiting;       /* maximum numbers that wait for their parents at once */
    double work;           /* multiplications, without those of the zeros that supernodes hold */
} SymbolicFactor;

/* A block of `width` vectors to be made orthonormal, and orthogonal to orthonormal rows, of which the first `near` have
   hardly a part in it. Rounding is `unit` of the products: shorter vectors are none. The block is made where pivots are
   above `pivot`, and without repetition above `sound`. `mass` is M of the inner product, or has no rows. The loops
   allocate `work`: BLOCK products a row, after their sum over the parts the products of each part, then `weighted`, M
   times the block. With a dense M (nodes, nodes) and c, there are `steps` blocks, each the product diag(c) − M of the one
   before, which the last rows hold; they lie one after the other, and become rows. `small` (size, size) takes all their
   products with the rows after the `known` ones but the last. */
typedef struct {
    int64_t nodes, rows, near, width, steps, known, size;
    const double *matrix, *diagonal;
    double *small;
    const double *basis; /* (rows, nodes) */
    double *block;       /* (width, nodes) */
    double *products;    /* (rows, BLOCK): of the rows with the block before */
    double *factor;      /* F (BLOCK, BLOCK): the block before is F times the block after, beside the rows */
    double least, unit, least_left, pivot, sound;
    Rows_double mass;
    double *work, *weighted;
} Projection;

#endif
