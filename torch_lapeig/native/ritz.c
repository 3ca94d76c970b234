/* Ritz pairs of blocks of columns. */

#include "kernels.h"

#define PADDED(m)          (((m) + LINE - 1) / LINE * LINE) /* columns, rounded up to whole lines */
#define ROOM_OF_RITZ(n, m) (3 * ((n) + (m)) * PADDED(m) + 2 * (m) * (m) + 2 * (m) + ROOM_OF_EIGENPAIRS(m))

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
    for (int64_t j = 0; j < m; j += 4) {
        const int64_t second = j + 1 < m, third = j + 2 < m ? 2 : second,
                      fourth = j + 3 < m ? 3 : third; /* the last column again */
        Wide_double sums[4] = {{0}}, others[4] = {{0}};
        for (int64_t i = 0; i < n; i++) {
            const Wide_double row = *(const Wide_double *)(y + i * wide),
                              more = *(const Wide_double *)(y + i * wide + other);
            const double *left = x + i * of_x + j;
            sums[0] += left[0] * row, sums[1] += left[second] * row, sums[2] += left[third] * row,
                sums[3] += left[fourth] * row;
            if (two)
                others[0] += left[0] * more, others[1] += left[second] * more, others[2] += left[third] * more,
                    others[3] += left[fourth] * more;
        }
        for (int64_t k = 0; k < 4 && j + k < m; k++) {
            *(Wide_double *)(h + (j + k) * wide) += sums[k];
            if (two) *(Wide_double *)(h + (j + k) * wide + lanes) += others[k];
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
        int64_t lane = 0;
        for (; lane + 2 * lanes <= wide; lane += 2 * lanes)
            gram_of_rows(rows, m, of_x, x + i * of_x, wide, y + i * wide + lane, h + lane, 1);
        if (lane < wide) gram_of_rows(rows, m, of_x, x + i * of_x, wide, y + i * wide + lane, h + lane, 0);
    }
}

/* Compute one or two vectors of four rows of X C; C has m rows, and all rows have `wide` numbers. */
INLINE void four_rows(const double *const x[4], int64_t m, int64_t wide, const double *c, Wide_double *left,
                      Wide_double *right, const int two)
{
    const int64_t lanes = WIDTH / sizeof(double);
    Wide_double sums[4] = {{0}}, others[4] = {{0}};
    for (int64_t j = 0; j < m; j++) {
        const Wide_double own = *(const Wide_double *)(c + j * wide);
        sums[0] += x[0][j] * own, sums[1] += x[1][j] * own, sums[2] += x[2][j] * own, sums[3] += x[3][j] * own;
        if (two) {
            const Wide_double more = *(const Wide_double *)(c + j * wide + lanes);
            others[0] += x[0][j] * more, others[1] += x[1][j] * more, others[2] += x[2][j] * more,
                others[3] += x[3][j] * more;
        }
    }
    for (int64_t k = 0; k < 4; k++) left[k] = sums[k], right[k] = others[k];
}

/* out = X C for C of m rows; all of `wide` numbers a row. */
FAST static void turn(int64_t n, int64_t m, int64_t wide, const double *x, const double *c, double *out)
{
    const int64_t lanes = WIDTH / sizeof(double);
    for (int64_t i = 0; i < n; i += 4) {
        const double *rows[4];
        for (int64_t k = 0; k < 4; k++) rows[k] = x + (i + k < n ? i + k : n - 1) * wide;
        for (int64_t lane = 0; lane < wide; lane += 2 * lanes) {
            Wide_double left[4], right[4];
            const int two = lane + lanes < wide;
            if (two)
                four_rows(rows, m, wide, c + lane, left, right, 1);
            else
                four_rows(rows, m, wide, c + lane, left, right, 0);
            for (int64_t k = 0; k < 4 && i + k < n; k++) {
                *(Wide_double *)(out + (i + k) * wide + lane) = left[k];
                if (two) *(Wide_double *)(out + (i + k) * wide + lane + lanes) = right[k];
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
    for (int64_t null = 0; null < nulls; null++) {
        for (int64_t j = 0; j < m; j++) {
            room[j] = 0;
            for (int64_t k = 0; k <= j; k++) room[j] += overlaps[null * wide + k] * c[k * wide + j];
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

/* Compute the Ritz pairs of one graph. Return 0 where columns are dependent. h is Xᵀ X, then Xᵀ A X; l and c: see
   `whitening`. */
FAST static int ritz_of_graph(const Ritz *task, int64_t graph, double *room)
{
    const int64_t n = task->nodes, m = task->columns, wide = PADDED(m), first = graph * n;
    const double bound = task->nulls ? task->bound[graph] : 0;
    double *block = room, *image = block + n * wide, *const other = image + n * wide;
    double *const h = other + n * wide, *const l = h + m * wide, *const c = l + m * wide;
    double *const small = c + m * wide, *const half = small + m * m, *const values = half + m * m;
    const double **const at = (const double **)(values + m);
    for (int64_t i = 0; i < n; i++) {
        memcpy(block + i * wide, task->x + (first + i) * m, m * sizeof(double));
        for (int64_t k = m; k < wide; k++) block[i * wide + k] = 0;
    }
    gram_of_blocks(n, m, wide, block, wide, block, h);
    const double least = whitening(m, wide, h, l, c);
    if (!(least >= task->least_pivot)) return 0;
    for (int64_t k = 0; k < m; k++)
        if (!(h[k * wide + k] > 1e-280)) return 0; /* squares have lost digits to underflow */
    if (!is_plain(m, wide, h, c, least)) {
        double *const given = block;
        turn(n, m, wide, block, c, image);
        block = image, image = given;
        gram_of_blocks(n, m, wide, block, wide, block, h);
        if (!(whitening(m, wide, h, l, c) > LEAST_PIVOT)) return 0;
    }
    Product_double product = {.rows = task->rows,
                              .is_system = 1,
                              .start = first,
                              .stop = first + n,
                              .base = first,
                              .columns = wide,
                              .y = block,
                              .out = image};
    product.y_step = product.out_step = wide, product.times = 1;
    product_of_double(&product, 0, 1, 0);
    gram_of_blocks(n, m, wide, block, wide, image, h);
    gram_of_blocks(n, task->nulls, task->null_step, task->null + first * task->null_step, wide, block, l);
    projected(m, wide, h, c, task->nulls, l, bound, small, half);
    if (!eigenpairs(m, small, values, at, (double *)(at + m))) return 0;
    memset(l, 0, m * wide * sizeof(double));
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < m; k++) {
            double sum = 0;
            for (int64_t j = i; j < m; j++) sum += c[i * wide + j] * at[k][j];
            l[i * wide + k] = sum;
        }
    turn(n, m, wide, block, l, other);
    turn(n, m, wide, image, l, block);
    double *const value = h, *const squares = h + wide; /* h and l are no longer needed */
    for (int64_t k = 0; k < wide; k++) {
        if (k < m) values[k] = task->nulls && values[k] < 0 ? 0 : values[k], half[k] = 0;
        value[k] = k < m ? values[k] : 0;
    }
    for (int64_t i = 0; i < n; i += ROWS_IN_CACHE) {
        const int64_t end = n - i < ROWS_IN_CACHE ? n : i + ROWS_IN_CACHE;
        for (int64_t k = 0; k < wide; k++) squares[k] = 0;
        for (int64_t j = i; j < end; j++)
            for (int64_t k = 0; k < wide; k++) {
                const double rest = block[j * wide + k] - value[k] * other[j * wide + k];
                squares[k] += rest * rest;
            }
        for (int64_t k = 0; k < m; k++) half[k] += squares[k];
    }
    for (int64_t i = 0; i < n; i++) memcpy(task->vectors + (first + i) * m, other + i * wide, m * sizeof(double));
    for (int64_t k = 0; k < m; k++)
        task->values[graph * m + k] = values[k], task->residuals[graph * m + k] = sqrt(half[k]);
    return 1;
}

static void ritz_of(void *data, int64_t part, int64_t parts, double *room)
{
    const Ritz *task = data;
    for (int64_t graph = task->graphs * part / parts; graph < task->graphs * (part + 1) / parts; graph++)
        task->is_sound[graph] = ritz_of_graph(task, graph, room);
}

int64_t ritz(Ritz *task, int64_t parts, int64_t threads)
{
    return share(ritz_of, task, parts, threads, ROOM_OF_RITZ(task->nodes, task->columns));
}
