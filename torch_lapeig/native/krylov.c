/* Block Krylov spaces of the inverse; see `torch_lapeig.eigen.solvers.block_krylov`. */

#include "kernels.h"

/* Find which numbers of the vectors belong to a part. */
INLINE void span_of(const Space *space, int64_t part, int64_t parts, int64_t *from, int64_t *to)
{
    const int64_t whole = (space->nodes + NUMBERS_IN_CACHE - 1) / NUMBERS_IN_CACHE;
    *from = whole * part / parts * NUMBERS_IN_CACHE, *to = whole * (part + 1) / parts * NUMBERS_IN_CACHE;
    if (*to > space->nodes) *to = space->nodes;
}

/* Count the products of a block with all vectors. */
INLINE int64_t products_of(const Space *space)
{
    return (space->known + space->size + space->width) * BLOCK;
}

/* Compute inner products of the block with the known vectors and those from `begin` on, over the numbers of a part. u and
   v are two of these vectors, w the block's; u0 is u · w0. */
FAST static void dot_part(void *data, int64_t part, int64_t parts, double *room)
{
    const Space *space = data;
    const int64_t n = space->nodes, count = space->rows;
    double *const products = space->work + (part + 1) * products_of(space);
    const double *w[BLOCK];
    int64_t from, to;
    (void)room;
    for (int64_t j = 0; j < BLOCK; j++) w[j] = space->block + (j < space->width ? j : 0) * n;
    memset(products, 0, count * BLOCK * sizeof *products);
    for (span_of(space, part, parts, &from, &to); from < to; from += NUMBERS_IN_CACHE) {
        const int64_t end = from + NUMBERS_IN_CACHE < to ? from + NUMBERS_IN_CACHE : to;
        for (int64_t row = 0; row < count; row++) {
            if (row == space->known && space->begin > row) row = space->begin;
            const int is_pair = row + 1 < count && row + 1 != space->known;
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

/* Subtract from the block its projections on these vectors: u are four of them, h their products with the block, w a
   vector of the block. */
FAST static void take_part(void *data, int64_t part, int64_t parts, double *room)
{
    const Space *space = data;
    const int64_t n = space->nodes;
    int64_t from, to;
    (void)room;
    for (span_of(space, part, parts, &from, &to); from < to; from += NUMBERS_IN_CACHE) {
        const int64_t end = from + NUMBERS_IN_CACHE < to ? from + NUMBERS_IN_CACHE : to;
        for (int64_t row = 0, stop; row < space->rows; row = stop) {
            const double *u[4], *h[4];
            static const double none[BLOCK];
            if (row == space->known && space->begin > row) row = space->begin;
            stop = row < space->known && row + 4 > space->known ? space->known : row + 4;
            for (int64_t k = 0; k < 4; k++) {
                const int is_there = row + k < stop && row + k < space->rows;
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

/* Compute inner products of the block with vectors of the basis, in `work`: BLOCK numbers a vector. */
static void dots(Space *space, double *block, int64_t begin, int64_t count, int64_t parts, int64_t threads)
{
    const int64_t all = products_of(space);
    space->block = block, space->begin = begin, space->rows = count;
    share(dot_part, space, parts, threads, 0);
    memcpy(space->work, space->work + all, count * BLOCK * sizeof *space->work);
    for (int64_t part = 1; part < parts; part++)
        for (int64_t i = 0; i < count * BLOCK; i++) space->work[i] += space->work[(part + 1) * all + i];
}

/* Make the block orthonormal by Cholesky of its Gram matrix. Return the least pivot beside the length of its vector; 0
   where vectors are dependent or not finite. */
FAST static double orthonormal(const Space *space, double *block)
{
    const int64_t n = space->nodes, width = space->width;
    double gram[BLOCK][BLOCK], least = 1;
    for (int64_t j = 0; j < width; j++)
        for (int64_t k = 0; k <= j; k++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += block[j * n + i] * block[k * n + i];
            gram[j][k] = sum;
        }
    for (int64_t j = 0; j < width; j++) { /* L Lᵀ, row by row */
        const double size = gram[j][j];
        for (int64_t k = 0; k < j; k++) {
            for (int64_t i = 0; i < k; i++) gram[j][k] -= gram[j][i] * gram[k][i];
            gram[j][k] /= gram[k][k];
            gram[j][j] -= gram[j][k] * gram[j][k];
        }
        if (!(gram[j][j] > 0) || !(size >= 1e-280) || !isfinite(size)) return 0;
        least = fmin(least, gram[j][j] / size);
        gram[j][j] = sqrt(gram[j][j]);
        double *const own = block + j * n;
        for (int64_t k = 0; k < j; k++) {
            const double *const other = block + k * n, overlap = gram[j][k];
            for (int64_t i = 0; i < n; i++) own[i] -= overlap * other[i];
        }
        const double inverse = 1 / gram[j][j];
        for (int64_t i = 0; i < n; i++) own[i] *= inverse;
    }
    return sqrt(least);
}

/* Make the block after the space: orthonormal, and orthogonal to the space. Return 0 where that takes more care. */
static int64_t follow(Space *space, const double *given, int64_t parts, int64_t threads)
{
    double *const block = space->basis + (space->known + space->filled) * space->nodes;
    memcpy(block, given, space->width * space->nodes * sizeof *block);
    if (!(orthonormal(space, block) > space->dependent)) return 0;
    for (int round = 0; round < 2; round++) {
        double left = 1;
        dots(space, block, space->known, space->known + space->filled, parts, threads);
        share(take_part, space, parts, threads, 0);
        for (int64_t j = 0; j < space->width; j++) {
            double size = 0;
            for (int64_t i = 0; i < space->nodes; i++)
                size += block[j * space->nodes + i] * block[j * space->nodes + i];
            left = fmin(left, sqrt(size));
        }
        if (!(left > space->least) || !(orthonormal(space, block) > space->least)) return 0;
        if (left > space->enough) break;
    }
    return 1;
}

int64_t next_block(Space *space, const double *given, int64_t parts, int64_t threads)
{
    if (!(space->work = room_for((parts + 1) * products_of(space)))) return 0;
    const int64_t is_sound = follow(space, given, parts, threads);
    free(space->work);
    return is_sound;
}

/* Take in the block that follows the space and its products, then further blocks until there are `upto` vectors or no
   room is left. Return whether the last block that was needed could be made; NO_MEMORY where there is not enough. */
int64_t extend_space(Space *space, int64_t upto, int64_t parts, int64_t threads)
{
    int64_t is_sound = 1;
    double *const room = room_for(room_of_solve(space->symbolic));
    space->work = room_for((parts + 1) * products_of(space));
    if (!room || !space->work) is_sound = NO_MEMORY;
    for (int64_t from = 0; is_sound > 0; from = space->filled - space->width) {
        const int64_t old = space->filled, now = old + space->width, width = space->width;
        solve_in(space->symbolic, space->factors, space->basis + (space->known + old) * space->nodes, space->rest,
                 width, 1, space->nodes, room);
        /* A block made of the last products has no products with older vectors: the matrix is symmetric. */
        dots(space, space->rest, space->known + from, space->known + now, parts, threads);
        share(take_part, space, parts, threads, 0);
        const double *const products = space->work + space->known * BLOCK;
        for (int64_t row = from; row < now; row++)
            for (int64_t column = 0; column < width; column++) {
                const double own =
                    row < old ? products[row * BLOCK + column]
                              : (products[row * BLOCK + column] + products[(old + column) * BLOCK + row - old]) / 2;
                space->projected[row * space->size + old + column] =
                    space->projected[(old + column) * space->size + row] = own;
            }
        for (int64_t j = 0; j < width; j++)
            for (int64_t k = 0; k <= j; k++) {
                double sum = 0;
                for (int64_t i = 0; i < space->nodes; i++)
                    sum += space->rest[j * space->nodes + i] * space->rest[k * space->nodes + i];
                space->gram[j * width + k] = space->gram[k * width + j] = sum;
            }
        space->filled = now, space->blocks++;
        if (now >= upto || now + width > space->size) break;
        is_sound = follow(space, space->rest, parts, threads);
    }
    free(room), free(space->work);
    return is_sound;
}
