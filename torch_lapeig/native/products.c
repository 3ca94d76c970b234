/* Products of sparse rows with blocks of vectors, and numbers of edges. A part of `kernels.c`, for float
   and for double. */

#ifndef MATRIX
#define MATRIX 0
#define SYSTEM 1
#define FEW_EDGES 32 /* whose numbers are added up in float, before they are in double */
#endif

/* The rows of diag(c) − M: CSR, c is NULL where it is all ones. */
typedef struct {
    const int32_t *crow, *col;
    const REAL *values, *diagonal;
} NAME(Rows);

/* out = times R y + plus other, for what rows R do: MATRIX: Σ m_ij y_j; SYSTEM: (c_i − centre) y_i − Σ m_ij y_j.
   The columns of R count from `base`. `other` may be NULL, and may be `out`. */
typedef struct {
    NAME(Rows) a;
    int64_t mode, from, to, base, m, of_y, of_other, of_out; /* rows; columns; numbers from row to row */
    const REAL *y, *other;
    REAL *out;
    REAL times, plus, centre;
} NAME(Task);

/* Of each row Σ m_ij (y_j − y_i), in `out`, and Σ m_ij ‖y_j − y_i‖², in `energy`. */
typedef struct {
    const int32_t *crow, *col;
    int64_t rows, m, of_y;
    const REAL *values, *y;
    REAL *out, *energy;
} NAME(Tension);

#define V NAME(Wide)
#include "columns.c"
#undef V
#define V NAME(Short)
#include "columns.c"
#undef V

/* The columns from c on, which are fewer than a vector of 16 bytes has: three of float at most, one of double. */
INLINE void NAME(pass_rest)(const NAME(Task) * t, int64_t c)
{
    const int64_t first = c, second = c + 1 < t->m ? c + 1 : c, third = t->m - 1; /* which may be the same column */
    for (int64_t i = t->from; i < t->to; i++) {
        const REAL *const own = t->y + (i - t->base) * t->of_y;
        REAL sums[3] = {0}, mine[3] = {0};
        if (t->mode != MATRIX) mine[0] = own[first], mine[1] = own[second], mine[2] = own[third];
        for (int32_t e = t->a.crow[i]; e < t->a.crow[i + 1]; e++) {
            const REAL value = t->a.values[e], *const y = t->y + (t->a.col[e] - t->base) * t->of_y;
            sums[0] += value * y[first];
            if (sizeof(REAL) == 8) continue;
            sums[1] += value * y[second], sums[2] += value * y[third];
        }
        REAL *const out = t->out + (i - t->base) * t->of_out;
        const REAL diagonal = t->mode == SYSTEM ? (t->a.diagonal ? t->a.diagonal[i] : 1) - t->centre : 0;
        for (int64_t k = c; k < t->m; k++) {
            const int at = k == first ? 0 : k == third ? 2 : 1;
            REAL sum = t->mode == SYSTEM ? diagonal * mine[at] - sums[at] : sums[at];
            sum *= t->times;
            if (t->other) sum += t->plus * t->other[(i - t->base) * t->of_other + k];
            out[k] = sum;
        }
    }
}

/* A part of the rows. Wide blocks take several passes: on few rows at a time, whose neighbours are in the cache then. */
FAST static void NAME(product_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    NAME(Task) t = *(const NAME(Task) *)task;
    const int64_t all = t.to - t.from, first = t.from + all * part / parts, end = t.from + all * (part + 1) / parts;
    const int64_t rows = t.m <= 128 / (int64_t)sizeof(REAL) ? all : 16;
    (void)thread;
    for (t.from = first; t.from < end; t.from = t.to) {
        t.to = t.from + rows < end ? t.from + rows : end;
        int64_t c = 0;
        c = JOIN(passes, NAME(Wide))(&t, c);
        c = JOIN(passes, NAME(Short))(&t, c);
        if (c < t.m) NAME(pass_rest)(&t, c);
    }
}

/* times R y + plus other for rows `from` to `to`. */
void NAME(product)(NAME(Task) * t, int64_t parts, int64_t threads) { share(NAME(product_of), t, parts, threads); }

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
    const int64_t wide = WIDTH / sizeof(REAL);
    NAME(Wide) sums = {0};
    NAME(Short) rest = {0};
    REAL sum = 0;
    int64_t c = 0;
    for (; c + wide <= m; c += wide) {
        const NAME(Wide) a = *(const NAME(Wide) *)(u + c), b = *(const NAME(Wide) *)(v + c);
        sums += is_length ? (a - b) * (a - b) : a * b;
    }
    if (c + wide / 2 <= m) {
        const NAME(Short) a = *(const NAME(Short) *)(u + c), b = *(const NAME(Short) *)(v + c);
        rest = is_length ? (a - b) * (a - b) : a * b, c += wide / 2;
    }
    for (; c < m; c++) sum += is_length ? (u[c] - v[c]) * (u[c] - v[c]) : u[c] * v[c];
    for (int64_t l = 0; l < wide; l++) sum += sums[l];
    for (int64_t l = 0; l < wide / 2; l++) sum += rest[l];
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

FAST static void NAME(tension_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    (void)thread;
    const NAME(Tension) *t = task;
    for (int64_t i = t->rows * part / parts; i < t->rows * (part + 1) / parts; i++) {
        double energy = 0;
        if (t->m >= (int64_t)(WIDTH / sizeof(REAL)))
            energy = JOIN(tension, NAME(Wide))(t, i);
        else if (t->m >= (int64_t)(16 / sizeof(REAL)))
            energy = JOIN(tension, NAME(Short))(t, i);
        else
            for (int64_t c = 0; c < t->m; c++) {
                REAL pull = 0;
                for (int32_t e = t->crow[i]; e < t->crow[i + 1]; e++) {
                    const REAL apart = t->y[t->col[e] * t->of_y + c] - t->y[i * t->of_y + c];
                    pull += t->values[e] * apart, energy += t->values[e] * apart * apart;
                }
                t->out[i * t->m + c] = pull;
            }
        t->energy[i] = energy;
    }
}

void NAME(tension)(NAME(Tension) * t, int64_t parts, int64_t threads) { share(NAME(tension_of), t, parts, threads); }
