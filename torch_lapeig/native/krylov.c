/* Block Krylov spaces of the inverse, see `torch_lapeig.eigen.solvers.block_krylov`. A part of `kernels.c`. */

#define BLOCK 4 /* vectors of a block, at most */

typedef struct {
    const Shape *shape;
    const double *l;
    int64_t n, first, size, width, filled, blocks; /* known vectors before the space; vectors of a block */
    double *rows, *projected, *rest, *gram;        /* (first + size + width, n); (size, size); (width, n); (width, width) */
    double dependent, least, enough;               /* pivots of a block; what is left of it, see `orthonormal` */
    double *work;                                  /* of parts: (first + size + width) · BLOCK numbers each, and once more */
    int64_t count, begin;                          /* rows that are multiplied with `block`: known ones, those from `begin` */
    double *block, *room;
} Space;

/* Numbers of the vectors of a part. */
INLINE void span_of(const Space *s, int64_t part, int64_t parts, int64_t *from, int64_t *to)
{
    const int64_t whole = (s->n + STRETCH - 1) / STRETCH;
    *from = whole * part / parts * STRETCH, *to = whole * (part + 1) / parts * STRETCH;
    if (*to > s->n) *to = s->n;
}

/* Inner products of the known rows, and of those from `begin` to `count`, with the block, of a part of the numbers. */
FAST static void dot_part(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Space *s = task;
    const int64_t n = s->n, count = s->count;
    double *const h = s->work + (part + 1) * (s->first + s->size + s->width) * BLOCK;
    const double *w[BLOCK];
    int64_t from, to;
    (void)thread;
    for (int64_t c = 0; c < BLOCK; c++) w[c] = s->block + (c < s->width ? c : 0) * n;
    memset(h, 0, count * BLOCK * sizeof *h);
    for (span_of(s, part, parts, &from, &to); from < to; from += STRETCH) {
        const int64_t end = from + STRETCH < to ? from + STRETCH : to;
        for (int64_t r = 0; r < count; r++) {
            if (r == s->first && s->begin > r) r = s->begin;
            const int is_pair = r + 1 < count && r + 1 != s->first;
            const double *const u = s->rows + r * n, *const v = is_pair ? u + n : u;
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

/* Take from the block what these rows have of it. */
FAST static void take_part(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Space *s = task;
    const int64_t n = s->n;
    int64_t from, to;
    (void)thread;
    for (span_of(s, part, parts, &from, &to); from < to; from += STRETCH) {
        const int64_t end = from + STRETCH < to ? from + STRETCH : to;
        for (int64_t r = 0, stop; r < s->count; r = stop) {
            const double *u[4], *h[4];
            static const double none[BLOCK];
            if (r == s->first && s->begin > r) r = s->begin;
            stop = r < s->first && r + 4 > s->first ? s->first : r + 4;
            for (int64_t a = 0; a < 4; a++) {
                const int is_there = r + a < stop && r + a < s->count;
                u[a] = s->rows + (is_there ? r + a : r) * n, h[a] = is_there ? s->work + (r + a) * BLOCK : none;
            }
            for (int64_t c = 0; c < s->width; c++) {
                double *const w = s->block + c * n;
                const double p = h[0][c], q = h[1][c], x = h[2][c], y = h[3][c];
                for (int64_t i = from; i < end; i++) w[i] -= (u[0][i] * p + u[1][i] * q) + (u[2][i] * x + u[3][i] * y);
            }
        }
    }
}

/* The inner products of rows with the block, in `work`; a row of these has BLOCK numbers. See Space. */
static void dots(Space *s, double *block, int64_t begin, int64_t count, int64_t parts, int64_t threads)
{
    const int64_t all = (s->first + s->size + s->width) * BLOCK;
    s->block = block, s->begin = begin, s->count = count;
    share(dot_part, s, parts, threads);
    memcpy(s->work, s->work + all, count * BLOCK * sizeof *s->work);
    for (int64_t part = 1; part < parts; part++)
        for (int64_t i = 0; i < count * BLOCK; i++) s->work[i] += s->work[(part + 1) * all + i];
}

/* Rows of the block by R⁻ᵀ, for its Gram matrix RᵀR; the least pivot beside the length of its column. 0 where there is
   none: columns that are dependent, or not finite. */
FAST static double orthonormal(const Space *s, double *block)
{
    const int64_t n = s->n, p = s->width;
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

/* Orthonormal rows for the given ones, outside the space, in the rows that follow it. 0 where that takes more care. */
int64_t next_block(Space *s, const double *given, int64_t parts, int64_t threads)
{
    double *const block = s->rows + (s->first + s->filled) * s->n;
    memcpy(block, given, s->width * s->n * sizeof *block);
    if (!(orthonormal(s, block) > s->dependent)) return 0;
    for (int round = 0; round < 2; round++) {
        double left = 1;
        dots(s, block, s->first, s->first + s->filled, parts, threads);
        share(take_part, s, parts, threads);
        for (int64_t c = 0; c < s->width; c++) {
            double size = 0;
            for (int64_t i = 0; i < s->n; i++) size += block[c * s->n + i] * block[c * s->n + i];
            left = fmin(left, sqrt(size));
        }
        if (!(left > s->least) || !(orthonormal(s, block) > s->least)) return 0;
        if (left > s->enough) break;
    }
    return 1;
}

/* Take in the block that follows the space, its products, and further ones while there are fewer vectors than `upto` and
   room for another. Whether the last block that was needed could be made. */
int64_t extend_space(Space *s, int64_t upto, int64_t parts, int64_t threads)
{
    for (int64_t from = 0;; from = s->filled - s->width) {
        const int64_t old = s->filled, now = old + s->width, p = s->width;
        solve_in(s->shape, s->l, s->rows + (s->first + old) * s->n, s->rest, p, 1, s->n, s->room);
        /* Of a block that was made of the last products here, no others lie in the space: its matrix is symmetric. */
        dots(s, s->rest, s->first + from, s->first + now, parts, threads);
        share(take_part, s, parts, threads);
        const double *const h = s->work + s->first * BLOCK;
        for (int64_t r = from; r < now; r++)
            for (int64_t c = 0; c < p; c++) {
                const double own = r < old ? h[r * BLOCK + c] : (h[r * BLOCK + c] + h[(old + c) * BLOCK + r - old]) / 2;
                s->projected[r * s->size + old + c] = s->projected[(old + c) * s->size + r] = own;
            }
        for (int64_t a = 0; a < p; a++)
            for (int64_t b = 0; b <= a; b++) {
                double sum = 0;
                for (int64_t i = 0; i < s->n; i++) sum += s->rest[a * s->n + i] * s->rest[b * s->n + i];
                s->gram[a * p + b] = s->gram[b * p + a] = sum;
            }
        s->filled = now, s->blocks++;
        if (now >= upto || now + p > s->size) return 1;
        if (!next_block(s, s->rest, parts, threads)) return 0;
    }
}
