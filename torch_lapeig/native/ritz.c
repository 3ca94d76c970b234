/* Ritz pairs of blocks of columns. */

#include "kernels.h"

#define ROOM_OF_RITZ(m) (2 * (m) * (m) + 2 * (m) + ROOM_OF_EIGENPAIRS(m)) /* numbers that a thread works with */

/* One Cholesky factor makes columns of length 1 orthonormal to round-off where its least pivot and the largest entry
   of its inverse keep these limits. */
#define LEAST_PIVOT     0.5
#define LARGEST_INVERSE 2.0

/* --- Blocks of vectors, `wide` numbers a row --- */

/* Add Xᵀ Y to h for m columns of X and one or two vectors of Y; rows of Y and of h have `wide` numbers. */
INLINE void gram_of_rows(int64_t n, int64_t m, int64_t of_x, const double *x, int64_t wide, const double *y, double *h,
                         const int two)
{
    const int64_t lanes = WIDTH / sizeof(double), other = two ? lanes : 0;
    for (int64_t a = 0; a < m; a += 4) {
        const int64_t b = a + 1 < m, c = a + 2 < m ? 2 : b, d = a + 3 < m ? 3 : c; /* the last column again */
        Wide_double s[4] = {{0}}, t[4] = {{0}};
        for (int64_t i = 0; i < n; i++) {
            const Wide_double row = *(const Wide_double *)(y + i * wide),
                              more = *(const Wide_double *)(y + i * wide + other);
            const double *left = x + i * of_x + a;
            s[0] += left[0] * row, s[1] += left[b] * row, s[2] += left[c] * row, s[3] += left[d] * row;
            if (two) t[0] += left[0] * more, t[1] += left[b] * more, t[2] += left[c] * more, t[3] += left[d] * more;
        }
        for (int64_t k = 0; k < 4 && a + k < m; k++) {
            *(Wide_double *)(h + (a + k) * wide) += s[k];
            if (two) *(Wide_double *)(h + (a + k) * wide + lanes) += t[k];
        }
    }
}

/* h = Xᵀ Y. */
FAST static void gram_of_blocks(int64_t n, int64_t m, int64_t of_x, const double *x, int64_t wide, const double *y,
                                double *h)
{
    const int64_t lanes = WIDTH / sizeof(double);
    memset(h, 0, m * wide * sizeof(double));
    for (int64_t i = 0; i < n; i += ROWS_IN_CACHE) {
        const int64_t rows = n - i < ROWS_IN_CACHE ? n - i : ROWS_IN_CACHE;
        int64_t l = 0;
        for (; l + 2 * lanes <= wide; l += 2 * lanes)
            gram_of_rows(rows, m, of_x, x + i * of_x, wide, y + i * wide + l, h + l, 1);
        if (l < wide) gram_of_rows(rows, m, of_x, x + i * of_x, wide, y + i * wide + l, h + l, 0);
    }
}

/* Compute one or two vectors of four rows of X C; C has m rows, and all rows have `wide` numbers. */
INLINE void four_rows(const double *const x[4], int64_t m, int64_t wide, const double *c, Wide_double *left,
                      Wide_double *right, const int two)
{
    const int64_t lanes = WIDTH / sizeof(double);
    Wide_double s[4] = {{0}}, t[4] = {{0}};
    for (int64_t a = 0; a < m; a++) {
        const Wide_double own = *(const Wide_double *)(c + a * wide);
        s[0] += x[0][a] * own, s[1] += x[1][a] * own, s[2] += x[2][a] * own, s[3] += x[3][a] * own;
        if (two) {
            const Wide_double more = *(const Wide_double *)(c + a * wide + lanes);
            t[0] += x[0][a] * more, t[1] += x[1][a] * more, t[2] += x[2][a] * more, t[3] += x[3][a] * more;
        }
    }
    for (int64_t k = 0; k < 4; k++) left[k] = s[k], right[k] = t[k];
}

/* out = X C for C of m rows; all of `wide` numbers a row. */
FAST static void turn(int64_t n, int64_t m, int64_t wide, const double *x, const double *c, double *out)
{
    const int64_t lanes = WIDTH / sizeof(double);
    for (int64_t i = 0; i < n; i += 4) {
        const double *rows[4];
        for (int64_t k = 0; k < 4; k++) rows[k] = x + (i + k < n ? i + k : n - 1) * wide;
        for (int64_t l = 0; l < wide; l += 2 * lanes) {
            Wide_double left[4], right[4];
            const int two = l + lanes < wide;
            if (two)
                four_rows(rows, m, wide, c + l, left, right, 1);
            else
                four_rows(rows, m, wide, c + l, left, right, 0);
            for (int64_t k = 0; k < 4 && i + k < n; k++) {
                *(Wide_double *)(out + (i + k) * wide + l) = left[k];
                if (two) *(Wide_double *)(out + (i + k) * wide + l + lanes) = right[k];
            }
        }
    }
}

/* Compute C that makes X C orthonormal, from g = Xᵀ X, by Cholesky of g scaled to a unit diagonal. Return the least
   pivot, 0 where there is no factor. `c` and `l` have m rows of `wide` numbers. */
FAST static double whitening(int64_t m, int64_t wide, const double *g, double *l, double *c)
{
    double least = 1;
    for (int64_t i = 0; i < m * wide; i++) l[i] = c[i] = 0;
    for (int64_t i = 0; i < m; i++) {
        if (!(g[i * wide + i] > 0)) return 0;
        for (int64_t j = 0; j <= i; j++) {
            double sum = g[i * wide + j] / (sqrt(g[i * wide + i]) * sqrt(g[j * wide + j]));
            for (int64_t k = 0; k < j; k++) sum -= l[i * wide + k] * l[j * wide + k];
            if (j < i) {
                l[i * wide + j] = sum / l[j * wide + j];
            } else {
                if (!(sum > 0)) return 0;
                l[i * wide + i] = sqrt(sum);
                if (l[i * wide + i] < least) least = l[i * wide + i];
            }
        }
    }
    for (int64_t j = 0; j < m; j++) /* column j of L⁻¹, as row j of its transpose */
        for (int64_t i = j; i < m; i++) {
            double sum = i == j;
            for (int64_t k = j; k < i; k++) sum -= l[i * wide + k] * c[j * wide + k];
            c[j * wide + i] = sum / l[i * wide + i];
        }
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = j; i < m; i++) c[j * wide + i] /= sqrt(g[j * wide + j]);
    return least;
}

/* --- Rayleigh and Ritz --- */

/* Compute the symmetric part of Cᵀ H C, less `bound` times the squares of the null vectors' overlaps (nulls, wide)
   with X C. `room` has m rows. */
FAST static void projected(int64_t m, int64_t wide, const double *h, const double *c, int64_t nulls,
                           const double *overlaps, double bound, double *small, double *room)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < m; j++) {
            double sum = 0;
            for (int64_t k = 0; k <= j; k++) sum += (h[i * wide + k] + h[k * wide + i]) * c[k * wide + j];
            room[i * m + j] = sum / 2;
        }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t k = 0; k <= i; k++) sum += c[k * wide + i] * room[k * m + j];
            small[i * m + j] = sum;
        }
    for (int64_t a = 0; a < nulls; a++) {
        for (int64_t j = 0; j < m; j++) {
            room[j] = 0;
            for (int64_t k = 0; k <= j; k++) room[j] += overlaps[a * wide + k] * c[k * wide + j];
        }
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j <= i; j++) small[i * m + j] -= bound * room[i] * room[j];
    }
}

/* Return whether one factor is enough; `c` is its inverse over the lengths of the columns, whose squares `h` has. */
static int is_plain(int64_t m, int64_t wide, const double *h, const double *c, double least)
{
    double spread = 0;
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = j; i < m; i++) spread = fmax(spread, fabs(c[j * wide + i]) * sqrt(h[j * wide + j]));
    return least > LEAST_PIVOT && spread <= LARGEST_INVERSE;
}

FAST static int ritz_of_graph(const Ritz *r, int64_t g, double *work, double *room)
{
    const int64_t n = r->nodes, m = r->columns, wide = r->padded, first = g * n;
    const double bound = r->nulls ? r->bound[g] : 0;
    double *q = work, *image = q + n * wide, *const other = image + n * wide;
    double *const h = other + n * wide, *const l = h + m * wide, *const c = l + m * wide;
    double *const small = room, *const half = small + m * m, *const values = half + m * m;
    const double **const at = (const double **)(values + m);
    for (int64_t i = 0; i < n; i++) {
        memcpy(q + i * wide, r->x + (first + i) * m, m * sizeof(double));
        for (int64_t k = m; k < wide; k++) q[i * wide + k] = 0;
    }
    gram_of_blocks(n, m, wide, q, wide, q, h);
    const double least = whitening(m, wide, h, l, c);
    if (!(least >= r->least_pivot)) return 0;
    for (int64_t k = 0; k < m; k++)
        if (!(h[k * wide + k] > 1e-280)) return 0; /* squares have lost digits to underflow */
    if (!is_plain(m, wide, h, c, least)) {
        double *const given = q;
        turn(n, m, wide, q, c, image);
        q = image, image = given;
        gram_of_blocks(n, m, wide, q, wide, q, h);
        if (!(whitening(m, wide, h, l, c) > LEAST_PIVOT)) return 0;
    }
    Product_double t = {.rows = r->rows,
                        .is_system = 1,
                        .start = first,
                        .stop = first + n,
                        .base = first,
                        .columns = wide,
                        .y = q,
                        .out = image};
    t.y_step = t.out_step = wide, t.times = 1;
    product_of_double(&t, 0, 1, 0);
    gram_of_blocks(n, m, wide, q, wide, image, h);
    gram_of_blocks(n, r->nulls, r->null_step, r->null + first * r->null_step, wide, q, l);
    projected(m, wide, h, c, r->nulls, l, bound, small, half);
    if (!eigenpairs(m, small, values, at, (double *)(at + m))) return 0;
    memset(l, 0, m * wide * sizeof(double));
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < m; k++) {
            double sum = 0;
            for (int64_t j = i; j < m; j++) sum += c[i * wide + j] * at[k][j];
            l[i * wide + k] = sum;
        }
    turn(n, m, wide, q, l, other);
    turn(n, m, wide, image, l, q);
    double *const value = h, *const squares = h + wide; /* h and l are no longer needed */
    for (int64_t k = 0; k < wide; k++) {
        if (k < m) values[k] = r->nulls && values[k] < 0 ? 0 : values[k], half[k] = 0;
        value[k] = k < m ? values[k] : 0;
    }
    for (int64_t i = 0; i < n; i += ROWS_IN_CACHE) {
        const int64_t end = n - i < ROWS_IN_CACHE ? n : i + ROWS_IN_CACHE;
        for (int64_t k = 0; k < wide; k++) squares[k] = 0;
        for (int64_t j = i; j < end; j++)
            for (int64_t k = 0; k < wide; k++) {
                const double rest = q[j * wide + k] - value[k] * other[j * wide + k];
                squares[k] += rest * rest;
            }
        for (int64_t k = 0; k < m; k++) half[k] += squares[k];
    }
    for (int64_t i = 0; i < n; i++) memcpy(r->vectors + (first + i) * m, other + i * wide, m * sizeof(double));
    for (int64_t k = 0; k < m; k++) r->values[g * m + k] = values[k], r->residuals[g * m + k] = sqrt(half[k]);
    return 1;
}

static void ritz_of(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Ritz *r = task;
    double *const work = r->work + thread * 3 * (r->nodes + r->columns) * r->padded;
    double *const room = r->room + thread * ROOM_OF_RITZ(r->columns);
    for (int64_t g = r->graphs * part / parts; g < r->graphs * (part + 1) / parts; g++)
        r->is_sound[g] = ritz_of_graph(r, g, work, room);
}

void ritz(Ritz *r, int64_t parts, int64_t threads)
{
    share(ritz_of, r, parts, threads);
}
