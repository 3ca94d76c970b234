/* Products with sparse rows, and loops of them that torch would make of hundreds of small operations.

Each function does what the Python beside its caller does, in memory of the processor, without Python's lock, and shares
large work with other threads. `hatch_build.py` compiles this file where the package is installed and a C compiler is there;
`__init__.py` calls it. Sums may be reordered, which is what lets a compiler vectorise them; NaN and ∞ are what they are.

The second half is compiled twice, for float and double: the file includes itself. */

#ifndef REAL

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Code for three generations of processors, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && !defined(PLAIN)
#define FAST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
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

/* --- The edges among some nodes --- */

/* Of rows `crow`, `col` of `total` nodes those among `nodes`, in their order: `new_crow`, and for each edge its row and
   column there and its number here. `place` holds zeros for all nodes. */
typedef struct {
    const int32_t *crow, *col;
    const int64_t *nodes;
    int64_t total, count;
    int32_t *place, *new_crow, *row, *new_col;
    int64_t *edge;
} Part;

/* Fill `place` and `new_crow`; the number of edges, or −1 where a node is none or comes twice. */
int64_t count_part(Part *t)
{
    int64_t edges = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t node = t->nodes[i];
        if (node < 0 || node >= t->total || t->place[node]) return -1;
        t->place[node] = i + 1;
    }
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t node = t->nodes[i];
        t->new_crow[i] = edges;
        for (int32_t e = t->crow[node]; e < t->crow[node + 1]; e++) edges += t->place[t->col[e]] > 0;
    }
    t->new_crow[t->count] = edges;
    return edges;
}

static int ascending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Fill the edges, ascending by row, then by column. */
void fill_part(Part *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        const int32_t first = t->crow[t->nodes[i]], last = t->crow[t->nodes[i] + 1];
        int64_t *key = t->edge + t->new_crow[i], n = 0; /* the column, and in the lower half the place in the row */
        for (int32_t e = first; e < last; e++)
            if (t->place[t->col[e]]) key[n++] = (int64_t)(t->place[t->col[e]] - 1) << 32 | (e - first);
        if (n > 32)
            qsort(key, n, sizeof *key, ascending);
        else
            for (int64_t j = 1, at; j < n; j++) {
                const int64_t own = key[j];
                for (at = j; at > 0 && key[at - 1] > own; at--) key[at] = key[at - 1];
                key[at] = own;
            }
        for (int64_t j = 0; j < n; j++) {
            t->row[t->new_crow[i] + j] = i, t->new_col[t->new_crow[i] + j] = key[j] >> 32;
            key[j] = first + (key[j] & 0xffffffff);
        }
    }
}

/* Rows that are added up before their sum goes to that of all: a million of float would lose digits one by one. */
#define ROWS 1024
#define FEW_ROWS 128 /* of a block of some columns, which stay in the first cache */
/* Numbers that filters of columns of n nodes, each of so many bytes, write beside their answer. */
#define ROOM_OF_FILTER(n, bytes) (2 * (n) * (2 * 64 / (int64_t)(bytes) + 1))
#define STRETCH 512 /* numbers of vectors that stay in the cache for all products with them */

/* Edges whose numbers are added up in float, before they are in double. */
#define FEW 32

/* Queries whose distances are measured side by side. */
#define QUERIES 4

/* What rows do, see Task. */
enum { MATRIX, SYSTEM, PULL };

/* Of what this was compiled, for the caller to compare. */
#ifndef SOURCE
#define SOURCE ""
#endif
const char *source(void) { return SOURCE; }

#define JOIN_(name, type) name##_##type
#define JOIN(name, type) JOIN_(name, type)
#define NAME(name) JOIN(name, REAL)

typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));
#include "ritz.c"
#include "subspace.c"

#define REAL float
#include "kernels.c"
#undef REAL
#define REAL double
#include "kernels.c"
#undef REAL

#include "sparse.c"

/* --- Conjugate gradients outside eigenvectors, see `torch_lapeig.eigen.complement` and `cg` --- */

#define LANE 8 /* columns that are solved side by side */
#define V V64_double

typedef struct {
    int64_t n, k, u;                       /* nodes, wanted vectors, guards */
    const double *vectors, *known;         /* (n, k); (n, k + u): these and the guards */
    const double *values, *scales, *rest;  /* (k,); (k + u, k); 1: of the preconditioner rest + known scales knownᵀ */
    const double *split;                   /* (u, k): guards that a cluster has in common with V; NULL for none */
    const double *enough, *size;           /* (k,): residuals that are allowed; norms of the right-hand sides */
    const double *round_off;               /* 1: of an iterate of norm 1 */
    double noise;                          /* part of the right-hand sides that it may come to */
    int64_t limit, replaced, patience;
    Rows_double a;
    int64_t graphs;
    const double *target;
    double *z, *left, *work;               /* `work`: for each thread, see `solve` */
} Complement;

/* h = Qᵀ x of columns `from` to `to` of Q (n, width). */
INLINE void gram(int64_t n, int64_t width, int64_t from, int64_t to, const double *q, const V *x, V *h)
{
    int64_t a = from;
    for (; a + 4 <= to; a += 4) {
        V s = {0}, t = {0}, u = {0}, v = {0};
        for (int64_t i = 0; i < n; i++) {
            const double *row = q + i * width + a;
            s += row[0] * x[i], t += row[1] * x[i], u += row[2] * x[i], v += row[3] * x[i];
        }
        h[a - from] = s, h[a - from + 1] = t, h[a - from + 2] = u, h[a - from + 3] = v;
    }
    for (; a < to; a++) {
        V s = {0};
        for (int64_t i = 0; i < n; i++) s += q[i * width + a] * x[i];
        h[a - from] = s;
    }
}

/* y = scale x − Q h. */
INLINE void less(int64_t n, int64_t width, int64_t from, int64_t to, const double *q, const V *h, double scale,
                 const V *x, V *y)
{
    for (int64_t i = 0; i < n; i++) {
        V s = scale * x[i], t = {0};
        const double *row = q + i * width;
        int64_t a = from;
        for (; a + 2 <= to; a += 2) s -= row[a] * h[a - from], t += row[a + 1] * h[a - from + 1];
        if (a < to) s -= row[a] * h[a - from];
        y[i] = s - t;
    }
}

INLINE void norms(int64_t n, const V *x, V *size)
{
    V squares = {0};
    for (int64_t i = 0; i < n; i++) squares += x[i] * x[i];
    for (int64_t c = 0; c < LANE; c++) (*size)[c] = sqrt(squares[c]);
}

/* The part of x outside V, and outside the guards of a cluster that the cut splits. */
INLINE void project(const Complement *s, const V *split, V *x, V *h)
{
    const int64_t all = s->k + s->u;
    gram(s->n, s->k, 0, s->k, s->vectors, x, h);
    less(s->n, s->k, 0, s->k, s->vectors, h, 1, x, x);
    if (!split) return;
    gram(s->n, all, s->k, all, s->known, x, h);
    for (int64_t a = 0; a < s->u; a++) h[a] *= split[a];
    less(s->n, all, s->k, all, s->known, h, 1, x, x);
}

/* y = P (A − λ_c) x_c of each column. */
INLINE void image(const Complement *s, Rows_double a, int64_t first, V values, const V *split, const V *x, V *y, V *h)
{
    for (int64_t i = 0; i < s->n; i++) {
        const double diagonal = a.diagonal ? a.diagonal[first + i] : 1;
        V sum = (diagonal - values) * x[i], more = {0};
        int32_t e = a.crow[first + i];
        const int32_t end = a.crow[first + i + 1];
        for (; e + 2 <= end; e += 2)
            sum -= a.values[e] * x[a.col[e] - first], more += a.values[e + 1] * x[a.col[e + 1] - first];
        if (e < end) sum -= a.values[e] * x[a.col[e] - first];
        y[i] = sum - more;
    }
    project(s, split, y, h);
}

/* y = rest x + known scales knownᵀ x. */
INLINE void precondition(const Complement *s, const V *scales, const V *x, V *y, V *h)
{
    const int64_t all = s->k + s->u;
    gram(s->n, all, 0, all, s->known, x, h);
    for (int64_t a = 0; a < all; a++) h[a] *= -scales[a];
    less(s->n, all, 0, all, s->known, h, *s->rest, x, y);
}

/* The residuals at which columns of z are solved. */
INLINE void allowed(const Complement *s, V enough, V size, const V *z, V *out)
{
    norms(s->n, z, out);
    for (int64_t c = 0; c < LANE; c++) {
        const double noise = s->noise * size[c];
        double own = *s->round_off * (*out)[c];
        if (own > noise || isnan(noise)) own = noise;
        (*out)[c] = own > enough[c] || isnan(own) ? own : enough[c];
    }
}

/* Columns of an array (rows, k) from `first` on, as many as there are lanes; zeros beyond. */
INLINE void lanes(int64_t rows, int64_t k, int64_t first, const double *from, V *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < LANE; c++) to[i][c] = first + c < k ? from[i * k + first + c] : 0;
}

/* Columns of x where `where` is true become those of y. */
INLINE void choose(int64_t n, const int *where, const V *y, V *x)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < LANE; c++)
            if (where[c]) x[i][c] = y ? y[i][c] : 0;
}

/* r = goal − image(z). */
INLINE void residual(const Complement *s, Rows_double a, int64_t first, V values, const V *split, const V *goal,
                     const V *z, V *r, V *h)
{
    image(s, a, first, values, split, z, r, h);
    for (int64_t i = 0; i < s->n; i++) r[i] = goal[i] - r[i];
}

/* `torch_lapeig.eigen.cg.conjugate_gradients` of up to eight columns from `column` on. `work` has room for 7 n + 3 (k + u)
   rows of eight. */
INLINE void solve(const Complement *s, Rows_double a, int64_t first, int64_t column, const double *target, double *z_out,
                  double *left_out, V *work)
{
    const int64_t n = s->n, k = s->k, all = k + s->u;
    V *goal = work, *best = goal + n, *z = best + n, *r = z + n, *way = r + n, *push = way + n, *fresh_r = push + n;
    V *h = fresh_r + n, *scales = h + all, *split = scales + all;
    V values, enough, size, left, now, may;
    double energy[LANE];
    int going[LANE], moving[LANE], stale = 0;
    lanes(n, k, column, target, goal);
    lanes(all, k, column, s->scales, scales);
    lanes(1, k, column, s->values, &values);
    lanes(1, k, column, s->enough, &enough);
    lanes(1, k, column, s->size, &size);
    if (s->split)
        lanes(s->u, k, column, s->split, split);
    else
        split = 0;
    memset(best, 0, n * sizeof(V));
    memset(way, 0, n * sizeof(V));
    memcpy(r, goal, n * sizeof(V));
    norms(n, goal, &left);
    precondition(s, scales, goal, z, h);
    allowed(s, enough, size, best, &may);
    for (int64_t c = 0; c < LANE; c++) energy[c] = INFINITY, going[c] = left[c] > may[c], moving[c] = !(left[c] > 0);
    choose(n, moving, 0, z);
    for (int64_t step = 0; step <= s->limit; step++) {
        int any = 0;
        norms(n, r, &now);
        allowed(s, enough, size, z, &may);
        for (int64_t c = 0; c < LANE; c++) any |= moving[c] = going[c] && now[c] > 0.5 * may[c];
        if (step % s->replaced == 0 || step == s->limit || !any) {
            int better[LANE], lost[LANE], is_going = 0, is_lost = 0, has_gained = 0;
            residual(s, a, first, values, split, goal, z, r, h);
            norms(n, r, &now);
            for (int64_t c = 0; c < LANE; c++) {
                better[c] = now[c] < left[c];
                has_gained |= going[c] && now[c] < 0.9 * left[c];
                if (better[c]) left[c] = now[c];
            }
            choose(n, better, z, best);
            allowed(s, enough, size, best, &may);
            for (int64_t c = 0; c < LANE; c++) {
                is_going |= going[c] = left[c] > may[c];
                is_lost |= lost[c] = going[c] && !(now[c] <= 1e3 * left[c]);
            }
            stale = has_gained || step == 0 ? 0 : stale + 1;
            if (!is_going || stale > s->patience || step == s->limit) break;
            if (is_lost) {
                choose(n, lost, best, z);
                choose(n, lost, 0, way);
                residual(s, a, first, values, split, goal, z, r, h);
            }
            for (int64_t c = 0; c < LANE; c++) {
                if (!going[c] || lost[c]) energy[c] = INFINITY;
                moving[c] = going[c];
            }
        }
        V fresh = {0}, curve = {0}, turn, length;
        precondition(s, scales, r, fresh_r, h);
        for (int64_t i = 0; i < n; i++) fresh += r[i] * fresh_r[i];
        for (int64_t c = 0; c < LANE; c++) {
            turn[c] = isfinite(energy[c]) && energy[c] > 0 ? fresh[c] / energy[c] : 0;
            energy[c] = fresh[c];
        }
        for (int64_t i = 0; i < n; i++) way[i] = fresh_r[i] + turn * way[i];
        image(s, a, first, values, split, way, push, h);
        for (int64_t i = 0; i < n; i++) curve += way[i] * push[i];
        for (int64_t c = 0; c < LANE; c++) length[c] = moving[c] && curve[c] > 0 ? fresh[c] / curve[c] : 0;
        for (int64_t i = 0; i < n; i++) z[i] += length * way[i], r[i] -= length * push[i];
    }
    for (int64_t c = 0; c < LANE && column + c < k; c++) {
        left_out[column + c] = left[c];
        for (int64_t i = 0; i < n; i++) z_out[i * k + column + c] = best[i][c];
    }
}

/* All columns of all graphs of a batch, whose arrays follow each other. */
FAST static void complement_of(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Complement *batch = task;
    for (int64_t g = batch->graphs * part / parts; g < batch->graphs * (part + 1) / parts; g++) {
        Complement s = *batch;
        const int64_t n = s.n, k = s.k, u = s.u;
        s.vectors += g * n * k, s.known += g * n * (k + u), s.values += g * k, s.scales += g * (k + u) * k;
        s.rest += g, s.enough += g * k, s.size += g * k, s.round_off += g;
        if (s.split) s.split += g * u * k;
        V *work = (V *)s.work + thread * (7 * n + 3 * (k + u));
        for (int64_t column = 0; column < k; column += LANE)
            solve(&s, s.a, g * n, column, s.target + g * n * k, s.z + g * n * k, s.left + g * k, work);
    }
}

void complement(Complement *batch, int64_t parts, int64_t threads) { share(complement_of, batch, parts, threads); }

#include "dense.c"

#else

/* The rows of diag(c) − M: CSR, c is NULL where it is all ones. */
typedef struct {
    const int32_t *crow, *col;
    const REAL *values, *diagonal;
} NAME(Rows);

/* --- Products of rows with blocks of vectors, by columns --- */

#define ALIGNED(bytes) __attribute__((vector_size(bytes), aligned(sizeof(REAL)), may_alias))
typedef REAL NAME(V8) ALIGNED(8);
typedef REAL NAME(V16) ALIGNED(16);
typedef REAL NAME(V32) ALIGNED(32);
typedef REAL NAME(V64) ALIGNED(64);

/* out = times R y + plus other, for what rows R do: MATRIX: Σ m_ij y_j; SYSTEM: (c_i − centre) y_i − Σ m_ij y_j;
   PULL: Σ m_ij (y_j − y_i). The columns of R count from `base`. `other` may be NULL, and may be `out`. */
typedef struct {
    NAME(Rows) a;
    int64_t from, to, base, m, of_y, of_other, of_out; /* rows; columns; numbers from row to row */
    const REAL *y, *other;
    REAL *out;
    REAL times, plus, centre;
} NAME(Task);

/* Columns p on, as many as the vector has, and if `two` as many from q on, which may overlap. */
#define PASS(V)                                                                                                        \
    INLINE void NAME(pass##V)(const NAME(Task) * t, const int mode, const int64_t p, const int64_t q, const int two)   \
    {                                                                                                                  \
        for (int64_t i = t->from; i < t->to; i++) {                                                                    \
            NAME(V) a = {0}, b = {0}, c = {0}, d = {0}, mine = {0}, my = {0};                                          \
            int32_t e = t->a.crow[i];                                                                                  \
            const int32_t end = t->a.crow[i + 1];                                                                      \
            if (mode != MATRIX) {                                                                                      \
                mine = *(const NAME(V) *)(t->y + (i - t->base) * t->of_y + p);                                         \
                if (two) my = *(const NAME(V) *)(t->y + (i - t->base) * t->of_y + q);                                  \
            }                                                                                                          \
            for (; e + 2 <= end; e += 2) {                                                                             \
                const REAL *y = t->y + (t->a.col[e] - t->base) * t->of_y;                                              \
                const REAL *z = t->y + (t->a.col[e + 1] - t->base) * t->of_y;                                          \
                a += t->a.values[e] * (*(const NAME(V) *)(y + p) - (mode == PULL ? mine : (NAME(V)){0}));              \
                c += t->a.values[e + 1] * (*(const NAME(V) *)(z + p) - (mode == PULL ? mine : (NAME(V)){0}));          \
                if (two) {                                                                                             \
                    b += t->a.values[e] * (*(const NAME(V) *)(y + q) - (mode == PULL ? my : (NAME(V)){0}));            \
                    d += t->a.values[e + 1] * (*(const NAME(V) *)(z + q) - (mode == PULL ? my : (NAME(V)){0}));        \
                }                                                                                                      \
            }                                                                                                          \
            if (e < end) {                                                                                             \
                const REAL *y = t->y + (t->a.col[e] - t->base) * t->of_y;                                              \
                a += t->a.values[e] * (*(const NAME(V) *)(y + p) - (mode == PULL ? mine : (NAME(V)){0}));              \
                if (two) b += t->a.values[e] * (*(const NAME(V) *)(y + q) - (mode == PULL ? my : (NAME(V)){0}));       \
            }                                                                                                          \
            a += c, b += d;                                                                                            \
            if (mode == SYSTEM) {                                                                                      \
                const REAL diagonal = (t->a.diagonal ? t->a.diagonal[i] : 1) - t->centre;                              \
                a = diagonal * mine - a, b = diagonal * my - b;                                                        \
            }                                                                                                          \
            a *= t->times, b *= t->times;                                                                              \
            if (t->other) {                                                                                            \
                const REAL *other = t->other + (i - t->base) * t->of_other;                                            \
                a += t->plus * *(const NAME(V) *)(other + p);                                                          \
                if (two) b += t->plus * *(const NAME(V) *)(other + q);                                                 \
            }                                                                                                          \
            REAL *out = t->out + (i - t->base) * t->of_out;                                                            \
            *(NAME(V) *)(out + p) = a;                                                                                 \
            if (two) *(NAME(V) *)(out + q) = b;                                                                        \
        }                                                                                                              \
    }
PASS(V8)
PASS(V16)
PASS(V32)
PASS(V64)
#undef PASS

/* One column. */
INLINE void NAME(pass_one)(const NAME(Task) * t, const int mode, const int64_t p)
{
    for (int64_t i = t->from; i < t->to; i++) {
        const REAL mine = mode == MATRIX ? 0 : t->y[(i - t->base) * t->of_y + p];
        REAL sum = 0;
        for (int32_t e = t->a.crow[i]; e < t->a.crow[i + 1]; e++)
            sum += t->a.values[e] * (t->y[(t->a.col[e] - t->base) * t->of_y + p] - (mode == PULL ? mine : 0));
        if (mode == SYSTEM) sum = ((t->a.diagonal ? t->a.diagonal[i] : 1) - t->centre) * mine - sum;
        sum *= t->times;
        if (t->other) sum += t->plus * t->other[(i - t->base) * t->of_other + p];
        t->out[(i - t->base) * t->of_out + p] = sum;
    }
}

/* All columns: two vectors at a time, those of the last pass as long as overlaps allow. */
INLINE void NAME(passes)(const NAME(Task) * t, const int mode)
{
    const int64_t wide = 64 / sizeof(REAL);
    int64_t c = 0;
    for (; t->m - c >= 2 * wide; c += 2 * wide) NAME(passV64)(t, mode, c, c + wide, 1);
    const int64_t left = t->m - c, m = t->m;
    if (left > wide)
        NAME(passV64)(t, mode, c, m - wide, 1);
    else if (left == wide)
        NAME(passV64)(t, mode, c, c, 0);
    else if (left > wide / 2)
        NAME(passV32)(t, mode, c, m - wide / 2, 1);
    else if (left == wide / 2)
        NAME(passV32)(t, mode, c, c, 0);
    else if (left > wide / 4)
        NAME(passV16)(t, mode, c, m - wide / 4, 1);
    else if (left == wide / 4)
        NAME(passV16)(t, mode, c, c, 0);
    else if (left > wide / 8)
        NAME(passV8)(t, mode, c, m - wide / 8, 1);
    else if (left > 0 && sizeof(REAL) == 4 && left == wide / 8)
        NAME(passV8)(t, mode, c, c, 0);
    else if (left > 0)
        NAME(pass_one)(t, mode, c);
}

/* The same. Wide blocks take several passes: on few rows at a time, whose neighbours are in the cache then. */
INLINE void NAME(apply)(const NAME(Task) * t, const int mode)
{
    NAME(Task) few = *t;
    const int64_t rows = t->m <= 128 / (int64_t)sizeof(REAL) ? t->to - t->from : 16;
    for (int64_t i = t->from; i < t->to; i += rows) {
        few.from = i, few.to = i + rows < t->to ? i + rows : t->to;
        NAME(passes)(&few, mode);
    }
}

INLINE NAME(Task) NAME(part_of)(const NAME(Task) * t, int64_t part, int64_t parts)
{
    NAME(Task) own = *t;
    own.from = t->from + (t->to - t->from) * part / parts;
    own.to = t->from + (t->to - t->from) * (part + 1) / parts;
    return own;
}

FAST static void NAME(product_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    (void)thread;
    const NAME(Task) own = NAME(part_of)(task, part, parts);
    NAME(apply)(&own, MATRIX);
}

FAST static void NAME(pull_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    (void)thread;
    const NAME(Task) own = NAME(part_of)(task, part, parts);
    NAME(apply)(&own, PULL);
}

/* times M y + plus other for rows `from` to `to`. */
void NAME(product)(NAME(Task) * t, int64_t parts, int64_t threads) { share(NAME(product_of), t, parts, threads); }

/* times Σ m_ij (y_j − y_i) + plus other. */
void NAME(pull)(NAME(Task) * t, int64_t parts, int64_t threads) { share(NAME(pull_of), t, parts, threads); }

/* x_i · y_j of the edges of rows `from` to `to`, for each edge: ‖x_i − x_j‖² where `y` is NULL. */
typedef struct {
    const int32_t *crow, *col;
    int64_t from, to, m, of_x, of_y;
    const REAL *x, *y;
    REAL *out;
} NAME(Edges);

/* u · v of m numbers, or ‖u − v‖². */
INLINE REAL NAME(between)(const REAL *u, const REAL *v, int64_t m, const int is_length)
{
    const int64_t wide = 64 / sizeof(REAL);
    NAME(V64) sums = {0};
    NAME(V16) rest = {0};
    REAL sum = 0;
    int64_t c = 0;
    for (; c + wide <= m; c += wide) {
        const NAME(V64) a = *(const NAME(V64) *)(u + c), b = *(const NAME(V64) *)(v + c);
        sums += is_length ? (a - b) * (a - b) : a * b;
    }
    for (; c + wide / 4 <= m; c += wide / 4) {
        const NAME(V16) a = *(const NAME(V16) *)(u + c), b = *(const NAME(V16) *)(v + c);
        rest += is_length ? (a - b) * (a - b) : a * b;
    }
    for (; c < m; c++) sum += is_length ? (u[c] - v[c]) * (u[c] - v[c]) : u[c] * v[c];
    for (int64_t l = 0; l < wide; l++) sum += sums[l];
    for (int64_t l = 0; l < wide / 4; l++) sum += rest[l];
    return sum;
}

INLINE void NAME(of_edges)(const NAME(Edges) * t, int64_t part, int64_t parts, const int is_length)
{
    const int64_t rows = t->to - t->from;
    for (int64_t i = t->from + rows * part / parts; i < t->from + rows * (part + 1) / parts; i++)
        for (int32_t e = t->crow[i]; e < t->crow[i + 1]; e++) {
            const REAL *v = is_length ? t->x + t->col[e] * t->of_x : t->y + t->col[e] * t->of_y;
            t->out[e] = NAME(between)(t->x + i * t->of_x, v, t->m, is_length);
        }
}

FAST static void NAME(edges_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    (void)thread;
    const NAME(Edges) *t = task;
    if (t->y)
        NAME(of_edges)(t, part, parts, 0);
    else
        NAME(of_edges)(t, part, parts, 1);
}

void NAME(edges)(NAME(Edges) * t, int64_t parts, int64_t threads) { share(NAME(edges_of), t, parts, threads); }

/* ‖x_i − y_j‖² of pairs of rows; of all rows of x and the first of y where there are no numbers `i`. */
typedef struct {
    const int64_t *i, *j;
    int64_t count, m, of_x, of_y;
    const REAL *x, *y;
    REAL *out;
} NAME(Pairs);

FAST static void NAME(pairs_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    (void)thread;
    const NAME(Pairs) *t = task;
    for (int64_t e = t->count * part / parts; e < t->count * (part + 1) / parts; e++) {
        const REAL *u = t->x + (t->i ? t->i[e] : e) * t->of_x, *v = t->y + (t->i ? t->j[e] : 0) * t->of_y;
        t->out[e] = NAME(between)(u, v, t->m, 1);
    }
}

void NAME(pairs)(NAME(Pairs) * t, int64_t parts, int64_t threads) { share(NAME(pairs_of), t, parts, threads); }

/* x_i y x_j of each edge and its own value y. */
FAST static void NAME(scaled_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const NAME(Edges) *t = task;
    const int64_t rows = t->to - t->from;
    (void)thread;
    for (int64_t i = t->from + rows * part / parts; i < t->from + rows * (part + 1) / parts; i++)
        for (int32_t e = t->crow[i]; e < t->crow[i + 1]; e++) t->out[e] = t->x[i] * t->y[e] * t->x[t->col[e]];
}

void NAME(scaled)(NAME(Edges) * t, int64_t parts, int64_t threads) { share(NAME(scaled_of), t, parts, threads); }

/* Of each row Σ m_ij (y_j − y_i), in `out`, and Σ m_ij ‖y_j − y_i‖², in `energy`. */
typedef struct {
    const int32_t *crow, *col;
    int64_t rows, m, of_y;
    const REAL *values, *y;
    REAL *out, *energy;
} NAME(Tension);

/* Columns c on, as many as the vector has; the energy of the first `known` of them is counted elsewhere. */
#define TENSION(V)                                                                                                     \
    INLINE double NAME(tension##V)(const NAME(Tension) * t, int64_t i, int64_t c, int64_t known)                       \
    {                                                                                                                  \
        const NAME(V) own = *(const NAME(V) *)(t->y + i * t->of_y + c);                                                \
        const int64_t wide = sizeof(NAME(V)) / sizeof(REAL);                                                           \
        NAME(V) pull = {0};                                                                                            \
        double sum = 0;                                                                                                \
        for (int32_t e = t->crow[i], end = t->crow[i + 1]; e < end;) {                                                 \
            NAME(V) energy = {0};                                                                                      \
            for (const int32_t stop = end - e < FEW ? end : e + FEW; e < stop; e++) {                                  \
                const NAME(V) apart = *(const NAME(V) *)(t->y + t->col[e] * t->of_y + c) - own;                        \
                const NAME(V) part = t->values[e] * apart;                                                             \
                pull += part, energy += part * apart;                                                                  \
            }                                                                                                          \
            for (int64_t l = known; l < wide; l++) sum += energy[l];                                                   \
        }                                                                                                              \
        *(NAME(V) *)(t->out + i * t->m + c) = pull;                                                                    \
        return sum;                                                                                                    \
    }
TENSION(V64)
TENSION(V32)
TENSION(V16)
TENSION(V8)
#undef TENSION

/* A row in vectors that fit, of which the last may overlap with the one before. */
#define TENSION_OF_ROW(V)                                                                                              \
    {                                                                                                                  \
        const int64_t wide = sizeof(NAME(V)) / sizeof(REAL);                                                           \
        for (; c + wide <= t->m; c += wide) energy += NAME(tension##V)(t, i, c, 0);                                    \
        if (c < t->m) energy += NAME(tension##V)(t, i, t->m - wide, wide - (t->m - c));                                \
    }

FAST static void NAME(tension_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    (void)thread;
    const NAME(Tension) *t = task;
    const int64_t lanes = 8 / sizeof(REAL);
    for (int64_t i = t->rows * part / parts; i < t->rows * (part + 1) / parts; i++) {
        double energy = 0;
        int64_t c = 0;
        if (t->m >= 8 * lanes)
            TENSION_OF_ROW(V64)
        else if (t->m >= 4 * lanes)
            TENSION_OF_ROW(V32)
        else if (t->m >= 2 * lanes)
            TENSION_OF_ROW(V16)
        else if (t->m >= lanes)
            TENSION_OF_ROW(V8)
        else if (t->m) { /* one column of float */
            REAL pull = 0;
            for (int32_t e = t->crow[i]; e < t->crow[i + 1]; e++) {
                const REAL apart = t->y[t->col[e] * t->of_y] - t->y[i * t->of_y];
                pull += t->values[e] * apart, energy += t->values[e] * apart * apart;
            }
            t->out[i] = pull;
        }
        t->energy[i] = energy;
    }
}
#undef TENSION_OF_ROW

void NAME(tension)(NAME(Tension) * t, int64_t parts, int64_t threads) { share(NAME(tension_of), t, parts, threads); }

/* --- Blocks of vectors outside others --- */

/* The columns from p on, as many as the vector has, of x −= Qᵀ Q x: four rows of Q at a time, on nodes that stay in the
   cache for all. */
#define WITHOUT(V)                                                                                                     \
    INLINE void NAME(without##V)(int64_t n, int64_t m, int64_t ld, int64_t count, const REAL *rows, REAL *x, REAL *h)  \
    {                                                                                                                  \
        NAME(V) *const of_row = (NAME(V) *)h;                                                                          \
        memset(h, 0, count * sizeof *of_row);                                                                          \
        for (int64_t first = 0; first < n; first += STRETCH) {                                                         \
            const int64_t end = n - first < STRETCH ? n : first + STRETCH;                                             \
            for (int64_t r = 0; r < count; r += 4) {                                                                   \
                const int64_t some = count - r < 4 ? count - r : 4;                                                    \
                const REAL *q[4];                                                                                      \
                NAME(V) s = {0}, t = {0}, u = {0}, v = {0};                                                            \
                for (int64_t a = 0; a < 4; a++) q[a] = rows + (a < some ? r + a : r) * ld;                             \
                for (int64_t i = first; i < end; i++) {                                                                \
                    const NAME(V) own = *(const NAME(V) *)(x + i * m);                                                 \
                    s += q[0][i] * own, t += q[1][i] * own, u += q[2][i] * own, v += q[3][i] * own;                    \
                }                                                                                                      \
                const NAME(V) sums[4] = {s, t, u, v};                                                                  \
                for (int64_t a = 0; a < some; a++) of_row[r + a] += sums[a];                                           \
            }                                                                                                          \
        }                                                                                                              \
        for (int64_t first = 0; first < n; first += STRETCH) {                                                         \
            const int64_t end = n - first < STRETCH ? n : first + STRETCH;                                             \
            for (int64_t r = 0; r < count; r += 4) {                                                                   \
                const REAL *q[4];                                                                                      \
                NAME(V) c[4];                                                                                          \
                for (int64_t a = 0; a < 4; a++) {                                                                      \
                    const int is_there = r + a < count;                                                                \
                    q[a] = rows + (is_there ? r + a : r) * ld, c[a] = is_there ? of_row[r + a] : (NAME(V)){0};         \
                }                                                                                                      \
                for (int64_t i = first; i < end; i++)                                                                  \
                    *(NAME(V) *)(x + i * m) -= (q[0][i] * c[0] + q[1][i] * c[1]) + (q[2][i] * c[2] + q[3][i] * c[3]);  \
            }                                                                                                          \
        }                                                                                                              \
    }

WITHOUT(V8)
WITHOUT(V16)
WITHOUT(V32)
WITHOUT(V64)
#undef WITHOUT

/* x −= Qᵀ Q x for `count` orthonormal rows Q of n nodes, in m columns; h has room for `count` vectors of 64 bytes. */
INLINE void NAME(without)(int64_t n, int64_t m, int64_t ld, int64_t count, const REAL *rows, REAL *x, REAL *h)
{
    int64_t p = 0;
    for (; (m - p) * sizeof(REAL) >= 64; p += 64 / sizeof(REAL)) NAME(withoutV64)(n, m, ld, count, rows, x + p, h);
    for (; (m - p) * sizeof(REAL) >= 32; p += 32 / sizeof(REAL)) NAME(withoutV32)(n, m, ld, count, rows, x + p, h);
    for (; (m - p) * sizeof(REAL) >= 16; p += 16 / sizeof(REAL)) NAME(withoutV16)(n, m, ld, count, rows, x + p, h);
    for (; (m - p) * sizeof(REAL) >= 8; p += 8 / sizeof(REAL)) NAME(withoutV8)(n, m, ld, count, rows, x + p, h);
    for (; p < m; p++) /* the last column of float */
        for (int64_t r = 0; r < count; r++) {
            const REAL *q = rows + r * ld;
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += q[i] * x[i * m + p];
            for (int64_t i = 0; i < n; i++) x[i * m + p] -= q[i] * (REAL)sum;
        }
}

/* --- Filters --- */

/* T_degree(Ã) x of `graphs` graphs of n nodes, Ã = (A − centre) scale / 2, for the columns from `first` on; the others are
   copied. See `Operator.chebyshev`. `work` has ROOM_OF_FILTER for each thread. The columns of one graph may be in `groups`,
   each a part. */
typedef struct {
    NAME(Rows) a;
    int64_t graphs, n, m, first, groups;
    const int64_t *degree;
    const REAL *centre, *scale, *x;
    REAL *out, *work;
} NAME(Filter);

/* Copy `width` numbers of each of n rows. */
INLINE void NAME(copy_rows)(int64_t n, int64_t width, const REAL *x, int64_t of_x, REAL *out, int64_t of_out)
{
    for (int64_t i = 0; i < n; i++) memcpy(out + i * of_out, x + i * of_x, width * sizeof(REAL));
}

/* Some columns of one graph, in a block of their own: as many as are read in two lines of the cache. */
INLINE void NAME(filter_columns)(const NAME(Filter) * f, int64_t g, int64_t first, int64_t width, REAL *room)
{
    const int64_t n = f->n, begin = g * n * f->m + first;
    REAL *old = room, *new = room + n * width;
    NAME(Task) t = {.a = f->a, .from = g * n, .to = g * n + n, .base = g * n, .m = width};
    t.of_y = t.of_other = t.of_out = width;
    NAME(copy_rows)(n, width, f->x + begin, f->m, old, width);
    t.y = old, t.out = new, t.times = f->scale[g] / 2, t.centre = f->centre[g], t.other = 0;
    NAME(apply)(&t, SYSTEM);
    t.times = f->scale[g], t.plus = -1;
    for (int64_t step = 1; step < f->degree[g]; step++) {
        t.y = new, t.other = t.out = old;
        NAME(apply)(&t, SYSTEM);
        REAL *next = old;
        old = new, new = next;
    }
    NAME(copy_rows)(n, width, new, width, f->out + begin, f->m);
}

FAST static void NAME(filter_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const NAME(Filter) *f = task;
    const int64_t n = f->n, m = f->m - f->first, lanes = 64 / sizeof(REAL), all = f->graphs * f->groups;
    REAL *room = f->work + thread * ROOM_OF_FILTER(n, sizeof(REAL));
    for (int64_t u = all * part / parts; u < all * (part + 1) / parts; u++) {
        const int64_t g = u / f->groups, group = u % f->groups, whole = (m + lanes - 2) / lanes; /* no column alone */
        const int64_t next = whole * (group + 1) / f->groups * lanes, end = group + 1 < f->groups ? next : m;
        int64_t at = whole * group / f->groups * lanes;
        if (at == 0) NAME(copy_rows)(n, f->first, f->x + g * n * f->m, f->m, f->out + g * n * f->m, f->m);
        for (int64_t width; at < end; at += width) {
            width = end - at <= 2 * lanes + 1 ? end - at : 2 * lanes;
            NAME(filter_columns)(f, g, f->first + at, width, room);
        }
    }
}

void NAME(filter)(NAME(Filter) * f, int64_t parts, int64_t threads) { share(NAME(filter_of), f, parts, threads); }

#include "dense.c"
#include "ritz.c"
#include "subspace.c"
#include "weights.c"

#endif
