/* Block Krylov spaces of the inverse; see `torch_lapeig.eigen.solvers.block_krylov`. */

#include "kernels.h"

#define BLOCK 4 /* maximum vectors of a block */

/* Find which numbers of the vectors belong to a part. */
INLINE void span_of(const Space *s, int64_t part, int64_t parts, int64_t *from, int64_t *to)
{
    const int64_t whole = (s->nodes + NUMBERS_IN_CACHE - 1) / NUMBERS_IN_CACHE;
    *from = whole * part / parts * NUMBERS_IN_CACHE, *to = whole * (part + 1) / parts * NUMBERS_IN_CACHE;
    if (*to > s->nodes) *to = s->nodes;
}

/* Compute inner products of the block with the known vectors and those from `begin` on, over the numbers of a part. */
FAST static void dot_part(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Space *s = task;
    const int64_t n = s->nodes, count = s->rows;
    double *const h = s->work + (part + 1) * (s->known + s->size + s->width) * BLOCK;
    const double *w[BLOCK];
    int64_t from, to;
    (void)thread;
    for (int64_t c = 0; c < BLOCK; c++) w[c] = s->block + (c < s->width ? c : 0) * n;
    memset(h, 0, count * BLOCK * sizeof *h);
    for (span_of(s, part, parts, &from, &to); from < to; from += NUMBERS_IN_CACHE) {
        const int64_t end = from + NUMBERS_IN_CACHE < to ? from + NUMBERS_IN_CACHE : to;
        for (int64_t r = 0; r < count; r++) {
            if (r == s->known && s->begin > r) r = s->begin;
            const int is_pair = r + 1 < count && r + 1 != s->known;
            const double *const u = s->basis + r * n, *const v = is_pair ? u + n : u;
            double a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, k = 0;
            for (int64_t i = from; i < end; i++) {
                a += u[i] * w[0][i], b += u[i] * w[1][i], c += u[i] * w[2][i], d += u[i] * w[3][i];
                e += v[i] * w[0][i], f += v[i] * w[1][i], g += v[i] * w[2][i], k += v[i] * w[3][i];
            }
            double *const to_row = h + r * BLOCK;
            to_row[0] += a, to_row[1] += b, to_row[2] += c, to_row[3] += d;
            if (!is_pair) continue;
            to_row[4] += e, to_row[5] += f, to_row[6] += g, to_row[7] += k, r++;
        }
    }
}

/* Subtract from the block its projections on these vectors. */
FAST static void take_part(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Space *s = task;
    const int64_t n = s->nodes;
    int64_t from, to;
    (void)thread;
    for (span_of(s, part, parts, &from, &to); from < to; from += NUMBERS_IN_CACHE) {
        const int64_t end = from + NUMBERS_IN_CACHE < to ? from + NUMBERS_IN_CACHE : to;
        for (int64_t r = 0, stop; r < s->rows; r = stop) {
            const double *u[4], *h[4];
            static const double none[BLOCK];
            if (r == s->known && s->begin > r) r = s->begin;
            stop = r < s->known && r + 4 > s->known ? s->known : r + 4;
            for (int64_t a = 0; a < 4; a++) {
                const int is_there = r + a < stop && r + a < s->rows;
                u[a] = s->basis + (is_there ? r + a : r) * n, h[a] = is_there ? s->work + (r + a) * BLOCK : none;
            }
            for (int64_t c = 0; c < s->width; c++) {
                double *const w = s->block + c * n;
                const double p = h[0][c], q = h[1][c], x = h[2][c], y = h[3][c];
                for (int64_t i = from; i < end; i++) w[i] -= (u[0][i] * p + u[1][i] * q) + (u[2][i] * x + u[3][i] * y);
            }
        }
    }
}

/* Compute inner products of the block with vectors of the basis, in `work`: BLOCK numbers a vector. */
static void dots(Space *s, double *block, int64_t begin, int64_t count, int64_t parts, int64_t threads)
{
    const int64_t all = (s->known + s->size + s->width) * BLOCK;
    s->block = block, s->begin = begin, s->rows = count;
    share(dot_part, s, parts, threads);
    memcpy(s->work, s->work + all, count * BLOCK * sizeof *s->work);
    for (int64_t part = 1; part < parts; part++)
        for (int64_t i = 0; i < count * BLOCK; i++) s->work[i] += s->work[(part + 1) * all + i];
}

/* Make the block orthonormal by Cholesky of its Gram matrix. Return the least pivot beside the length of its vector; 0
   where vectors are dependent or not finite. */
FAST static double orthonormal(const Space *s, double *block)
{
    const int64_t n = s->nodes, p = s->width;
    double gram[BLOCK][BLOCK], least = 1;
    for (int64_t a = 0; a < p; a++)
        for (int64_t b = 0; b <= a; b++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += block[a * n + i] * block[b * n + i];
            gram[a][b] = sum;
        }
    for (int64_t a = 0; a < p; a++) { /* L Lᵀ, row by row */
        const double size = gram[a][a];
        for (int64_t b = 0; b < a; b++) {
            for (int64_t c = 0; c < b; c++) gram[a][b] -= gram[a][c] * gram[b][c];
            gram[a][b] /= gram[b][b];
            gram[a][a] -= gram[a][b] * gram[a][b];
        }
        if (!(gram[a][a] > 0) || !(size >= 1e-280) || !isfinite(size)) return 0;
        least = fmin(least, gram[a][a] / size);
        gram[a][a] = sqrt(gram[a][a]);
        double *const own = block + a * n;
        for (int64_t b = 0; b < a; b++) {
            const double *const other = block + b * n, c = gram[a][b];
            for (int64_t i = 0; i < n; i++) own[i] -= c * other[i];
        }
        const double inverse = 1 / gram[a][a];
        for (int64_t i = 0; i < n; i++) own[i] *= inverse;
    }
    return sqrt(least);
}

/* Make the block after the space: orthonormal, and orthogonal to the space. Return 0 where that takes more care. */
int64_t next_block(Space *s, const double *given, int64_t parts, int64_t threads)
{
    double *const block = s->basis + (s->known + s->filled) * s->nodes;
    memcpy(block, given, s->width * s->nodes * sizeof *block);
    if (!(orthonormal(s, block) > s->dependent)) return 0;
    for (int round = 0; round < 2; round++) {
        double left = 1;
        dots(s, block, s->known, s->known + s->filled, parts, threads);
        share(take_part, s, parts, threads);
        for (int64_t c = 0; c < s->width; c++) {
            double size = 0;
            for (int64_t i = 0; i < s->nodes; i++) size += block[c * s->nodes + i] * block[c * s->nodes + i];
            left = fmin(left, sqrt(size));
        }
        if (!(left > s->least) || !(orthonormal(s, block) > s->least)) return 0;
        if (left > s->enough) break;
    }
    return 1;
}

/* Take in the block that follows the space and its products, then further blocks until there are `upto` vectors or no
   room is left. Return whether the last block that was needed could be made. */
int64_t extend_space(Space *s, int64_t upto, int64_t parts, int64_t threads)
{
    for (int64_t from = 0;; from = s->filled - s->width) {
        const int64_t old = s->filled, now = old + s->width, p = s->width;
        solve_in(s->shape, s->factors, s->basis + (s->known + old) * s->nodes, s->rest, p, 1, s->nodes, s->room);
        /* A block made of the last products has no products with older vectors: the matrix is symmetric. */
        dots(s, s->rest, s->known + from, s->known + now, parts, threads);
        share(take_part, s, parts, threads);
        const double *const h = s->work + s->known * BLOCK;
        for (int64_t r = from; r < now; r++)
            for (int64_t c = 0; c < p; c++) {
                const double own = r < old ? h[r * BLOCK + c] : (h[r * BLOCK + c] + h[(old + c) * BLOCK + r - old]) / 2;
                s->projected[r * s->size + old + c] = s->projected[(old + c) * s->size + r] = own;
            }
        for (int64_t a = 0; a < p; a++)
            for (int64_t b = 0; b <= a; b++) {
                double sum = 0;
                for (int64_t i = 0; i < s->nodes; i++) sum += s->rest[a * s->nodes + i] * s->rest[b * s->nodes + i];
                s->gram[a * p + b] = s->gram[b * p + a] = sum;
            }
        s->filled = now, s->blocks++;
        if (now >= upto || now + p > s->size) return 1;
        if (!next_block(s, s->rest, parts, threads)) return 0;
    }
}
