/* Projections of a block off orthonormal rows; see `Space` in `torch_lapeig.eigen.solvers.krylov`. Both sweeps read each row
   once for all vectors of the block, where BLAS, made for larger blocks, takes two to four times as long. */

#include "kernels.h"

/* Find which numbers of the vectors belong to a part. */
INLINE void span_of(const Projection *space, int64_t part, int64_t parts, int64_t *from, int64_t *to)
{
    const int64_t whole = (space->nodes + NUMBERS_IN_CACHE - 1) / NUMBERS_IN_CACHE;
    *from = whole * part / parts * NUMBERS_IN_CACHE, *to = whole * (part + 1) / parts * NUMBERS_IN_CACHE;
    if (*to > space->nodes) *to = space->nodes;
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

/* Compute inner products of the weighted block with all rows, in `work`: BLOCK numbers a row. */
static void dots(Projection *space, int64_t parts, int64_t threads)
{
    const int64_t all = products_of(space);
    share(dot_part, space, parts, threads, 0);
    memcpy(space->work, space->work + all, space->rows * BLOCK * sizeof *space->work);
    for (int64_t part = 1; part < parts; part++)
        for (int64_t i = 0; i < space->rows * BLOCK; i++) space->work[i] += space->work[(part + 1) * all + i];
}

/* Remove the parts of the block in the span of the rows; `products` are those of rows and the weighted block. */
int64_t remove_rows(Projection *space, int64_t parts, int64_t threads)
{
    if (!(space->work = room_for((parts + 1) * products_of(space)))) return 0;
    dots(space, parts, threads);
    share(take_part, space, parts, threads, 0);
    memcpy(space->products, space->work, space->rows * BLOCK * sizeof *space->work);
    free(space->work);
    return 1;
}
