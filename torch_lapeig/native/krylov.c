/* The next block of a Krylov space; see `Space` in `torch_lapeig.eigen.solvers.krylov`. Sweeps over rows read each row
   once for all vectors of the block, where BLAS, made for larger blocks, takes two to four times as long. */

#include "kernels.h"

/* Find which numbers of the vectors belong to a part. */
INLINE void span_of(const Projection *space, int64_t part, int64_t parts, int64_t *from, int64_t *to)
{
    const int64_t whole = (space->nodes + NUMBERS_IN_CACHE - 1) / NUMBERS_IN_CACHE;
    *from = whole * part / parts * NUMBERS_IN_CACHE, *to = whole * (part + 1) / parts * NUMBERS_IN_CACHE;
    if (*to > space->nodes) *to = space->nodes;
}

/* Compute M times the numbers of the block that belong to a part: in the inner product of M it stands for the block. */
FAST static void weigh_part(void *data, int64_t part, int64_t parts, double *room)
{
    const Projection *space = data;
    const Rows_double *const mass = &space->mass;
    int64_t from, to;
    (void)room;
    span_of(space, part, parts, &from, &to);
    for (int64_t j = 0; j < space->width; j++)
        for (int64_t i = from; i < to; i++) {
            double sum = 0;
            for (int32_t edge = mass->crow[i]; edge < mass->crow[i + 1]; edge++)
                sum += mass->values[edge] * space->block[j * space->nodes + mass->col[edge]];
            space->weighted[j * space->nodes + i] = sum;
        }
}

/* Count the products of a block with all rows. */
INLINE int64_t products_of(const Projection *space)
{
    return (space->rows + 1) * BLOCK; /* rows are multiplied in pairs */
}

/* Compute inner products of the weighted block with all rows, over the numbers of a part. u and v are two rows, w the
   block's; u0 is u · w0. */
FAST static void dot_part(void *data, int64_t part, int64_t parts, double *room)
{
    const Projection *space = data;
    const int64_t n = space->nodes, count = space->rows;
    double *const products = space->work + (part + 1) * products_of(space);
    const double *w[BLOCK];
    int64_t from, to;
    (void)room;
    for (int64_t j = 0; j < BLOCK; j++) w[j] = space->weighted + (j < space->width ? j : 0) * n;
    memset(products, 0, count * BLOCK * sizeof *products);
    for (span_of(space, part, parts, &from, &to); from < to; from += NUMBERS_IN_CACHE) {
        const int64_t end = from + NUMBERS_IN_CACHE < to ? from + NUMBERS_IN_CACHE : to;
        for (int64_t row = 0; row < count; row++) {
            const int is_pair = row + 1 < count;
            const double *const u = space->basis + row * n, *const v = is_pair ? u + n : u;
            double u0 = 0, u1 = 0, u2 = 0, u3 = 0, v0 = 0, v1 = 0, v2 = 0, v3 = 0;
            for (int64_t i = from; i < end; i++) {
                u0 += u[i] * w[0][i], u1 += u[i] * w[1][i], u2 += u[i] * w[2][i], u3 += u[i] * w[3][i];
                v0 += v[i] * w[0][i], v1 += v[i] * w[1][i], v2 += v[i] * w[2][i], v3 += v[i] * w[3][i];
            }
            double *const to_row = products + row * BLOCK;
            to_row[0] += u0, to_row[1] += u1, to_row[2] += u2, to_row[3] += u3;
            if (!is_pair) continue;
            to_row[4] += v0, to_row[5] += v1, to_row[6] += v2, to_row[7] += v3, row++;
        }
    }
}

/* Subtract from the block its projections on the rows: u are four rows, h their products with the block, w a vector of
   the block. */
FAST static void take_part(void *data, int64_t part, int64_t parts, double *room)
{
    const Projection *space = data;
    const int64_t n = space->nodes;
    int64_t from, to;
    (void)room;
    for (span_of(space, part, parts, &from, &to); from < to; from += NUMBERS_IN_CACHE) {
        const int64_t end = from + NUMBERS_IN_CACHE < to ? from + NUMBERS_IN_CACHE : to;
        for (int64_t row = 0, stop; row < space->rows; row = stop) {
            const double *u[4], *h[4];
            static const double none[BLOCK];
            stop = row + 4;
            for (int64_t k = 0; k < 4; k++) {
                const int is_there = row + k < space->rows;
                u[k] = space->basis + (is_there ? row + k : row) * n,
                h[k] = is_there ? space->work + (row + k) * BLOCK : none;
            }
            for (int64_t column = 0; column < space->width; column++) {
                double *const w = space->block + column * n;
                const double first = h[0][column], second = h[1][column], third = h[2][column], fourth = h[3][column];
                for (int64_t i = from; i < end; i++)
                    w[i] -= (u[0][i] * first + u[1][i] * second) + (u[2][i] * third + u[3][i] * fourth);
            }
        }
    }
}

/* Remove from the block its parts in the span of the rows from one on; return their products in `work`: BLOCK numbers a
   row. */
static const double *take_off(const Projection *space, int64_t first, int64_t parts, int64_t threads)
{
    Projection some = *space;
    some.basis += first * some.nodes, some.rows -= first;
    if (some.mass.crow) share(weigh_part, &some, parts, threads, 0);
    const int64_t all = products_of(&some), count = some.rows * BLOCK;
    share(dot_part, &some, parts, threads, 0);
    memcpy(some.work, some.work + all, count * sizeof *some.work);
    for (int64_t part = 1; part < parts; part++)
        for (int64_t i = 0; i < count; i++) some.work[i] += some.work[(part + 1) * all + i];
    share(take_part, &some, parts, threads, 0);
    return some.work;
}

/* Compute the Cholesky factor L of the block's Gram matrix G, and G's diagonal. Return the least pivot beside the length
   of its vector; 0 where vectors are dependent, not finite or at most as long as `least`. */
FAST static double cholesky(const Projection *space, double least, double l[BLOCK][BLOCK], double squares[BLOCK])
{
    const int64_t n = space->nodes, width = space->width;
    double pivot = 1;
    for (int64_t j = 0; j < width; j++)
        for (int64_t k = 0; k <= j; k++) {
            l[j][k] = 0; /* by parts: the rounding of one long sum has a sign where numbers repeat */
            for (int64_t from = 0; from < n; from += NUMBERS_IN_CACHE) {
                const int64_t end = from + NUMBERS_IN_CACHE < n ? from + NUMBERS_IN_CACHE : n;
                double sum = 0;
                for (int64_t i = from; i < end; i++) sum += space->block[j * n + i] * space->weighted[k * n + i];
                l[j][k] += sum;
            }
        }
    for (int64_t j = 0; j < width; j++) { /* row by row */
        squares[j] = l[j][j];
        for (int64_t k = 0; k < j; k++) {
            for (int64_t i = 0; i < k; i++) l[j][k] -= l[j][i] * l[k][i];
            l[j][k] /= l[k][k];
            l[j][j] -= l[j][k] * l[j][k];
        }
        if (!(l[j][j] > 0) || !(squares[j] > least * least) || !isfinite(squares[j])) return 0;
        pivot = fmin(pivot, l[j][j] / squares[j]);
        l[j][j] = sqrt(l[j][j]);
    }
    return sqrt(pivot);
}

/* Replace the block by L⁻¹ times it, and the factor F by F L. */
FAST static void divide(const Projection *space, double l[BLOCK][BLOCK])
{
    const int64_t n = space->nodes, width = space->width;
    double *const f = space->factor;
    for (int64_t j = 0; j < width; j++) {
        double *const own = space->block + j * n;
        for (int64_t k = 0; k < j; k++) {
            const double *const other = space->block + k * n, overlap = l[j][k];
            for (int64_t i = 0; i < n; i++) own[i] -= overlap * other[i];
        }
        const double inverse = 1 / l[j][j];
        for (int64_t i = 0; i < n; i++) own[i] *= inverse;
    }
    for (int64_t j = 0; j < width; j++)
        for (int64_t k = 0; k < width; k++) {
            double sum = 0;
            for (int64_t i = k; i < width; i++) sum += f[j * BLOCK + i] * l[i][k];
            f[j * BLOCK + k] = sum;
        }
}

/* Compute rows of diag(c) Y − M Y that belong to a part, for the vectors Y before the block: four rows a of M at a time, two
   vectors u and v. Each row is read once for all vectors. */
FAST static void multiply_part(void *data, int64_t part, int64_t parts, double *room)
{
    const Projection *space = data;
    const int64_t n = space->nodes, width = space->width, to = n * (part + 1) / parts;
    (void)room;
    for (int64_t i = n * part / parts; i < to; i += 4) {
        const double *a[4];
        for (int64_t k = 0; k < 4; k++) a[k] = space->matrix + (i + k < to ? i + k : to - 1) * n;
        for (int64_t column = 0; column < width; column += 2) {
            const int64_t other = column + 1 < width ? column + 1 : column;
            const double *const u = space->block + (column - width) * n, *const v = space->block + (other - width) * n;
            double of_u[4] = {0}, of_v[4] = {0};
            for (int64_t from = 0; from < n; from += NUMBERS_IN_CACHE) {
                const int64_t end = from + NUMBERS_IN_CACHE < n ? from + NUMBERS_IN_CACHE : n;
                double u0 = 0, u1 = 0, u2 = 0, u3 = 0, v0 = 0, v1 = 0, v2 = 0, v3 = 0;
                for (int64_t j = from; j < end; j++) {
                    u0 += a[0][j] * u[j], u1 += a[1][j] * u[j], u2 += a[2][j] * u[j], u3 += a[3][j] * u[j];
                    v0 += a[0][j] * v[j], v1 += a[1][j] * v[j], v2 += a[2][j] * v[j], v3 += a[3][j] * v[j];
                }
                of_u[0] += u0, of_u[1] += u1, of_u[2] += u2, of_u[3] += u3;
                of_v[0] += v0, of_v[1] += v1, of_v[2] += v2, of_v[3] += v3;
            }
            for (int64_t k = 0; k < 4 && i + k < to; k++) {
                space->block[column * n + i + k] = space->diagonal[i + k] * u[i + k] - of_u[k];
                space->block[other * n + i + k] = space->diagonal[i + k] * v[i + k] - of_v[k];
            }
        }
    }
}

/* Make the block the next one of a Krylov space, in the inner product of M if there is one:
   1. Remove the large parts, in the span of the last two blocks, then what is left in all rows: one pass would leave the
      round-off of the large parts.
   2. Make the block orthonormal by the Cholesky factor of its Gram matrix.
   3. Repeat both where a pivot is small, or more was removed than was left.
   ARPACK works on one vector at a time, and repeats for each. */
static int64_t make_block(Projection *space, int64_t parts, int64_t threads)
{
    const int64_t count = space->rows * BLOCK, width = space->width;
    double l[BLOCK][BLOCK], squares[BLOCK], removed[BLOCK], norm = 0;
    const int64_t in_work = (parts + 1) * products_of(space), of_block = space->mass.crow ? width * space->nodes : 0;
    if (!(space->work = room_for(in_work + of_block))) return NO_MEMORY;
    space->weighted = of_block ? space->work + in_work : space->block;
    const double *found = take_off(space, space->near, parts, threads);
    memset(space->products, 0, count * sizeof *space->products);
    memset(space->factor, 0, BLOCK * BLOCK * sizeof *space->factor);
    for (int64_t j = 0; j < width; j++) space->factor[j * BLOCK + j] = 1;
    for (int64_t i = space->near * BLOCK; i < count; i++) {
        space->products[i] = found[i - space->near * BLOCK];
        if (i % BLOCK < width) norm += space->products[i] * space->products[i];
    }
    space->least = fmax(space->least, space->unit * sqrt(norm));
    int64_t is_made = 0;
    for (int round = 0; round < 3 && !is_made; round++) {
        found = take_off(space, 0, parts, threads);
        memset(removed, 0, sizeof removed);
        for (int64_t i = 0; i < count; i++) {
            removed[i % BLOCK] += found[i] * found[i];
            if (round == 0) space->products[i] += found[i];
        }
        if (space->mass.crow) share(weigh_part, space, parts, threads, 0);
        const double pivot = cholesky(space, round ? space->least_left : space->least, l, squares);
        if (!(pivot >= space->pivot)) break;
        divide(space, l);
        is_made = pivot > space->sound;
        for (int64_t j = 0; j < width; j++) is_made = is_made && removed[j] <= squares[j];
    }
    free_room(space->work);
    return is_made;
}

/* Make `steps` blocks, or as many as are sound; with a matrix each is first the product with the vectors before it. Return
   whether the last one is made. */
int64_t next_block(Projection *space, int64_t parts, int64_t threads)
{
    const int64_t n = space->nodes, width = space->width;
    for (int64_t left = space->steps;; left--) {
        if (space->matrix) share(multiply_part, space, threads > 1 && n > 4 * BLOCK * threads ? threads : 1, threads, 0);
        const int64_t is_made = make_block(space, parts, threads), end = space->rows - space->known;
        if (is_made != 1 || left == 1) return is_made;
        for (int64_t k = 0; k < width; k++)
            for (int64_t i = 0; i < end; i++)
                space->small[(end - width + k) * space->size + i] = space->products[(space->known + i) * BLOCK + k];
        space->near = space->rows - width, space->rows += width, space->block += width * n;
    }
}
