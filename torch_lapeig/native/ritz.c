/* Ritz pairs of blocks of columns, by the procedure of Rayleigh and Ritz (Parlett 1998, section 11.3):
     1. Make the columns orthonormal by Cholesky of their Gram matrix, a second time where once is not enough
        (CholeskyQR2: Yamamoto, Nakatsukasa, Yanagisawa & Fukaya 2015). SciPy's `lobpcg` does it once.
     2. Project the matrix, with null vectors moved below the spectrum.
     3. Solve the small problem, and turn the block and its image by the eigenvectors.
     4. Measure residuals by the turned image. */

#include "kernels.h"

#define PADDED(m)          (((m) + LINE - 1) / LINE * LINE) /* columns, rounded up to whole lines */
#define ROOM_OF_RITZ(n, m) (3 * ((n) + (m)) * PADDED(m) + 2 * (m) * (m) + 2 * (m) + ROOM_OF_EIGENPAIRS(m))

/* One Cholesky factor makes columns of length 1 orthonormal to round-off where its least pivot and the largest entry
   of its inverse keep these limits. */
#define LEAST_PIVOT     0.5
#define LARGEST_INVERSE 2.0

/* --- Blocks of rows of `wide` numbers, one or two vectors of them at once --- */

/* Add Xᵀ Y to h for m columns of X and some `vectors` of Y. */
INLINE void gram_of_rows(int64_t n, int64_t m, int64_t x_step, const double *x, int64_t wide, const double *y,
                         double *h, const int vectors)
{
    for (int64_t j = 0; j < m; j += 4) {
        const int64_t last = m - j < 4 ? m - j - 1 : 3, at[4] = {0, last < 1 ? last : 1, last < 2 ? last : 2, last};
        Wide_double sums[4][2] = {{{0}}};
        for (int64_t i = 0; i < n; i++)
            for (int k = 0; k < 4; k++)
                for (int side = 0; side < vectors; side++)
                    sums[k][side] += x[i * x_step + j + at[k]] * *(const Wide_double *)(y + i * wide + side * LANES);
        for (int64_t k = 0; k <= last; k++)
            for (int side = 0; side < vectors; side++)
                *(Wide_double *)(h + (j + k) * wide + side * LANES) += sums[k][side];
    }
}

/* Compute h = Xᵀ Y. */
FAST static void gram_of_blocks(int64_t n, int64_t m, int64_t x_step, const double *x, int64_t wide, const double *y,
                                double *h)
{
    memset(h, 0, m * wide * sizeof(double));
    for (int64_t i = 0; i < n; i += ROWS_IN_CACHE) {
        const int64_t rows = n - i < ROWS_IN_CACHE ? n - i : ROWS_IN_CACHE;
        int64_t lane = 0;
        for (; lane + 2 * LANES <= wide; lane += 2 * LANES)
            gram_of_rows(rows, m, x_step, x + i * x_step, wide, y + i * wide + lane, h + lane, 2);
        if (lane < wide) gram_of_rows(rows, m, x_step, x + i * x_step, wide, y + i * wide + lane, h + lane, 1);
    }
}

/* Compute some `vectors` of four rows of X C. */
INLINE void turn_rows(const double *const x[4], int64_t m, int64_t wide, const double *c, int64_t lane,
                      double *const out[4], const int vectors)
{
    Wide_double sums[4][2] = {{{0}}};
    for (int64_t j = 0; j < m; j++)
        for (int k = 0; k < 4; k++)
            for (int side = 0; side < vectors; side++)
                sums[k][side] += x[k][j] * *(const Wide_double *)(c + j * wide + lane + side * LANES);
    for (int k = 0; k < 4; k++)
        for (int side = 0; side < vectors; side++) *(Wide_double *)(out[k] + lane + side * LANES) = sums[k][side];
}

/* Compute X C for C of m rows. */
FAST static void turn(int64_t n, int64_t m, int64_t wide, const double *x, const double *c, double *out)
{
    for (int64_t i = 0; i < n; i += 4) {
        const double *from[4];
        double *to[4];
        for (int64_t k = 0; k < 4; k++) { /* the last row again where there are no four */
            const int64_t row = i + k < n ? i + k : n - 1;
            from[k] = x + row * wide, to[k] = out + row * wide;
        }
        int64_t lane = 0;
        for (; lane + 2 * LANES <= wide; lane += 2 * LANES) turn_rows(from, m, wide, c, lane, to, 2);
        if (lane < wide) turn_rows(from, m, wide, c, lane, to, 1);
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

/* Step 2. Compute the symmetric part of Cᵀ H C, less `bound` times the squares of the null vectors' overlaps (nulls, wide)
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
    for (int64_t null = 0; null < nulls; null++) {
        for (int64_t j = 0; j < m; j++) {
            room[j] = 0;
            for (int64_t k = 0; k <= j; k++) room[j] += overlaps[null * wide + k] * c[k * wide + j];
        }
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j <= i; j++) small[i * m + j] -= bound * room[i] * room[j];
    }
}

/* What the pairs of one graph are computed in: blocks, and matrices of m rows; of all but the last two rows have `wide`
   numbers. `whitener` makes the block orthonormal; `vectors` point to those of the small problem. */
typedef struct {
    int64_t n, m, wide;
    double *block, *image, *turned, *gram, *factor, *whitener, *small, *half, *values;
    const double **vectors;
} RitzRoom;

INLINE RitzRoom ritz_room(int64_t n, int64_t m, double *room)
{
    RitzRoom own = {.n = n, .m = m, .wide = PADDED(m), .block = room};
    own.image = own.block + n * own.wide, own.turned = own.image + n * own.wide;
    own.gram = own.turned + n * own.wide, own.factor = own.gram + m * own.wide,
    own.whitener = own.factor + m * own.wide;
    own.small = own.whitener + m * own.wide, own.half = own.small + m * m, own.values = own.half + m * m;
    own.vectors = (const double **)(own.values + m);
    return own;
}

/* Return whether one factor is enough; the whitener is its inverse over the lengths of the columns. */
INLINE int is_plain(const RitzRoom *own, double least)
{
    double spread = 0;
    for (int64_t j = 0; j < own->m; j++)
        for (int64_t i = j; i < own->m; i++)
            spread = fmax(spread, fabs(own->whitener[j * own->wide + i]) * sqrt(own->gram[j * own->wide + j]));
    return least > LEAST_PIVOT && spread <= LARGEST_INVERSE;
}

/* Step 1, of columns in `x`. Return 0 where columns are dependent. */
INLINE int make_orthonormal(RitzRoom *own, const double *x, double least_pivot)
{
    const int64_t n = own->n, m = own->m, wide = own->wide;
    for (int64_t i = 0; i < n; i++) {
        memcpy(own->block + i * wide, x + i * m, m * sizeof(double));
        for (int64_t k = m; k < wide; k++) own->block[i * wide + k] = 0;
    }
    gram_of_blocks(n, m, wide, own->block, wide, own->block, own->gram);
    const double least = whitening(m, wide, own->gram, own->factor, own->whitener);
    if (!(least >= least_pivot)) return 0;
    for (int64_t k = 0; k < m; k++)
        if (!(own->gram[k * wide + k] > 1e-280)) return 0; /* squares have lost digits to underflow */
    if (is_plain(own, least)) return 1;
    double *const given = own->block;
    turn(n, m, wide, given, own->whitener, own->image);
    own->block = own->image, own->image = given;
    gram_of_blocks(n, m, wide, own->block, wide, own->block, own->gram);
    return whitening(m, wide, own->gram, own->factor, own->whitener) > LEAST_PIVOT;
}

/* Step 3. The turned block is in `turned`, its image in `block`. Return 0 where the small problem has no answer. */
INLINE int turn_by_eigenvectors(RitzRoom *own)
{
    const int64_t n = own->n, m = own->m, wide = own->wide;
    if (!eigenpairs(m, own->small, own->values, own->vectors, (double *)(own->vectors + m))) return 0;
    double *const both = own->factor; /* whitener and eigenvectors in one */
    memset(both, 0, m * wide * sizeof(double));
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < m; k++) {
            double sum = 0;
            for (int64_t j = i; j < m; j++) sum += own->whitener[i * wide + j] * own->vectors[k][j];
            both[i * wide + k] = sum;
        }
    turn(n, m, wide, own->block, both, own->turned);
    turn(n, m, wide, own->image, both, own->block);
    return 1;
}

/* Step 4: squares of residual norms, in `half`. */
INLINE void measure_residuals(const RitzRoom *own)
{
    const int64_t m = own->m, wide = own->wide;
    double *const value = own->gram, *const squares = own->factor; /* which are no longer needed */
    for (int64_t k = 0; k < wide; k++) value[k] = k < m ? own->values[k] : 0;
    for (int64_t k = 0; k < m; k++) own->half[k] = 0;
    for (int64_t i = 0; i < own->n; i += ROWS_IN_CACHE) {
        const int64_t end = own->n - i < ROWS_IN_CACHE ? own->n : i + ROWS_IN_CACHE;
        for (int64_t k = 0; k < wide; k++) squares[k] = 0;
        for (int64_t j = i; j < end; j++)
            for (int64_t k = 0; k < wide; k++) {
                const double rest = own->block[j * wide + k] - value[k] * own->turned[j * wide + k];
                squares[k] += rest * rest;
            }
        for (int64_t k = 0; k < m; k++) own->half[k] += squares[k];
    }
}

/* Compute the Ritz pairs of one graph. Return 0 where columns are dependent. */
FAST static int ritz_of_graph(const Ritz *task, int64_t graph, double *room)
{
    const int64_t n = task->nodes, m = task->columns, first = graph * n;
    RitzRoom own = ritz_room(n, m, room);
    if (!make_orthonormal(&own, task->x + first * m, task->least_pivot)) return 0;
    Product_double product = {.rows = task->rows, .is_system = 1, .start = first, .stop = first + n, .base = first};
    product.columns = product.y_step = product.out_step = own.wide;
    product.y = own.block, product.out = own.image, product.times = 1;
    product_of_double(&product, 0, 1, 0);
    gram_of_blocks(n, m, own.wide, own.block, own.wide, own.image, own.gram);
    gram_of_blocks(n, task->nulls, task->null_step, task->null + first * task->null_step, own.wide, own.block,
                   own.factor);
    projected(m, own.wide, own.gram, own.whitener, task->nulls, own.factor, task->nulls ? task->bound[graph] : 0,
              own.small, own.half);
    if (!turn_by_eigenvectors(&own)) return 0;
    for (int64_t k = 0; k < m; k++)
        if (task->nulls && own.values[k] < 0) own.values[k] = 0;
    measure_residuals(&own);
    for (int64_t i = 0; i < n; i++)
        memcpy(task->vectors + (first + i) * m, own.turned + i * own.wide, m * sizeof(double));
    for (int64_t k = 0; k < m; k++)
        task->values[graph * m + k] = own.values[k], task->residuals[graph * m + k] = sqrt(own.half[k]);
    return 1;
}
