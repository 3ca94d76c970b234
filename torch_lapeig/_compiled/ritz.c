/* Ritz pairs of blocks of vectors. A part of `kernels.c`, for float and for double. */

#ifndef ROOM_OF_RITZ
/* The numbers of double that `ritz_of` needs for a thread. */
#define ROOM_OF_RITZ(m) (2 * (m) * (m) + 2 * (m) + ROOM_OF_ONE(m))
/* Least entry on the diagonal of a Cholesky factor of columns of length 1, and largest of its inverse, up to which one such
   factor makes them orthonormal to round-off. */
#define PLAINLY 0.5
#define SPREAD 2.0
#endif

/* --- Blocks of vectors, `wide` numbers a row --- */

/* h += Xᵀ Y for m columns of X and one or two vectors of Y, `wide` numbers a row, as of h. */
INLINE void NAME(gram_of_rows)(int64_t n, int64_t m, int64_t of_x, const REAL *x, int64_t wide, const REAL *y, REAL *h,
                               const int two)
{
    const int64_t lanes = WIDTH / sizeof(REAL), other = two ? lanes : 0;
    for (int64_t a = 0; a < m; a += 4) {
        const int64_t b = a + 1 < m, c = a + 2 < m ? 2 : b, d = a + 3 < m ? 3 : c; /* the last column again */
        NAME(Wide) s[4] = {{0}}, t[4] = {{0}};
        for (int64_t i = 0; i < n; i++) {
            const NAME(Wide) row = *(const NAME(Wide) *)(y + i * wide), more = *(const NAME(Wide) *)(y + i * wide + other);
            const REAL *left = x + i * of_x + a;
            s[0] += left[0] * row, s[1] += left[b] * row, s[2] += left[c] * row, s[3] += left[d] * row;
            if (two) t[0] += left[0] * more, t[1] += left[b] * more, t[2] += left[c] * more, t[3] += left[d] * more;
        }
        for (int64_t k = 0; k < 4 && a + k < m; k++) {
            *(NAME(Wide) *)(h + (a + k) * wide) += s[k];
            if (two) *(NAME(Wide) *)(h + (a + k) * wide + lanes) += t[k];
        }
    }
}

/* h = Xᵀ Y. */
FAST static void NAME(gram)(int64_t n, int64_t m, int64_t of_x, const REAL *x, int64_t wide, const REAL *y, REAL *h)
{
    const int64_t lanes = WIDTH / sizeof(REAL);
    memset(h, 0, m * wide * sizeof(REAL));
    for (int64_t i = 0; i < n; i += FEW_ROWS) {
        const int64_t rows = n - i < FEW_ROWS ? n - i : FEW_ROWS;
        int64_t l = 0;
        for (; l + 2 * lanes <= wide; l += 2 * lanes)
            NAME(gram_of_rows)(rows, m, of_x, x + i * of_x, wide, y + i * wide + l, h + l, 1);
        if (l < wide) NAME(gram_of_rows)(rows, m, of_x, x + i * of_x, wide, y + i * wide + l, h + l, 0);
    }
}

/* One or two vectors of four rows of X C, for C of m rows; of all `wide` numbers a row. */
INLINE void NAME(four_rows)(const REAL *const x[4], int64_t m, int64_t wide, const REAL *c, NAME(Wide) * left,
                            NAME(Wide) * right, const int two)
{
    const int64_t lanes = WIDTH / sizeof(REAL);
    NAME(Wide) s[4] = {{0}}, t[4] = {{0}};
    for (int64_t a = 0; a < m; a++) {
        const NAME(Wide) own = *(const NAME(Wide) *)(c + a * wide);
        s[0] += x[0][a] * own, s[1] += x[1][a] * own, s[2] += x[2][a] * own, s[3] += x[3][a] * own;
        if (two) {
            const NAME(Wide) more = *(const NAME(Wide) *)(c + a * wide + lanes);
            t[0] += x[0][a] * more, t[1] += x[1][a] * more, t[2] += x[2][a] * more, t[3] += x[3][a] * more;
        }
    }
    for (int64_t k = 0; k < 4; k++) left[k] = s[k], right[k] = t[k];
}

/* out = X C for C of m rows; all of `wide` numbers a row. */
FAST static void NAME(turn)(int64_t n, int64_t m, int64_t wide, const REAL *x, const REAL *c, REAL *out)
{
    const int64_t lanes = WIDTH / sizeof(REAL);
    for (int64_t i = 0; i < n; i += 4) {
        const REAL *rows[4];
        for (int64_t k = 0; k < 4; k++) rows[k] = x + (i + k < n ? i + k : n - 1) * wide;
        for (int64_t l = 0; l < wide; l += 2 * lanes) {
            NAME(Wide) left[4], right[4];
            const int two = l + lanes < wide;
            if (two)
                NAME(four_rows)(rows, m, wide, c + l, left, right, 1);
            else
                NAME(four_rows)(rows, m, wide, c + l, left, right, 0);
            for (int64_t k = 0; k < 4 && i + k < n; k++) {
                *(NAME(Wide) *)(out + (i + k) * wide + l) = left[k];
                if (two) *(NAME(Wide) *)(out + (i + k) * wide + l + lanes) = right[k];
            }
        }
    }
}

/* x −= Qᵀ Q x for `count` orthonormal rows Q of n nodes, `ld` numbers each, in m columns, a multiple of a vector's: four rows
   of Q at a time, on nodes that stay in the cache for all. h has room for `count` vectors. */
FAST static void NAME(without)(int64_t n, int64_t m, int64_t ld, int64_t count, const REAL *rows, REAL *x, REAL *h)
{
    NAME(Wide) *const of_row = (NAME(Wide) *)h;
    for (const REAL *end = x + m; x < end; x += WIDTH / sizeof(REAL)) {
        memset(h, 0, count * sizeof *of_row);
        for (int64_t first = 0; first < n; first += STRETCH) {
            const int64_t stop = n - first < STRETCH ? n : first + STRETCH;
            for (int64_t r = 0; r < count; r += 4) {
                const REAL *q[4];
                NAME(Wide) sums[4] = {{0}};
                for (int64_t a = 0; a < 4; a++) q[a] = rows + (r + a < count ? r + a : r) * ld;
                for (int64_t i = first; i < stop; i++)
                    for (int a = 0; a < 4; a++) sums[a] += q[a][i] * *(const NAME(Wide) *)(x + i * m);
                for (int64_t a = 0; a < 4 && r + a < count; a++) of_row[r + a] += sums[a];
            }
        }
        for (int64_t first = 0; first < n; first += STRETCH) {
            const int64_t stop = n - first < STRETCH ? n : first + STRETCH;
            for (int64_t r = 0; r < count; r += 4) {
                const REAL *q[4];
                NAME(Wide) c[4] = {{0}};
                for (int64_t a = 0; a < 4; a++) {
                    q[a] = rows + (r + a < count ? r + a : r) * ld;
                    if (r + a < count) c[a] = of_row[r + a];
                }
                for (int64_t i = first; i < stop; i++)
                    *(NAME(Wide) *)(x + i * m) -= (q[0][i] * c[0] + q[1][i] * c[1]) + (q[2][i] * c[2] + q[3][i] * c[3]);
            }
        }
    }
}

/* C such that Xᵀ X = g makes X C orthonormal, by Cholesky of the matrix with a unit diagonal; its least diagonal entry,
   0 where there is none. `c` and `l` have m rows of `wide`. */
FAST static REAL NAME(whitening)(int64_t m, int64_t wide, const REAL *g, REAL *l, REAL *c)
{
    REAL least = 1;
    for (int64_t i = 0; i < m * wide; i++) l[i] = c[i] = 0;
    for (int64_t i = 0; i < m; i++) {
        if (!(g[i * wide + i] > 0)) return 0;
        for (int64_t j = 0; j <= i; j++) {
            REAL sum = g[i * wide + j] / (sqrt(g[i * wide + i]) * sqrt(g[j * wide + j]));
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
            REAL sum = i == j;
            for (int64_t k = j; k < i; k++) sum -= l[i * wide + k] * c[j * wide + k];
            c[j * wide + i] = sum / l[i * wide + i];
        }
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = j; i < m; i++) c[j * wide + i] /= sqrt(g[j * wide + j]);
    return least;
}

/* --- Rayleigh and Ritz --- */

/* For each graph of a batch Ritz pairs of the span of the columns of x, ascending, outside `count` orthonormal rows that one
   graph may have, and norms of residuals. Null vectors in the span count as of the value −bound, and where there are any no
   value is given back below 0. Number i of column c is at i · down + c · across. `sound` is 0 where columns are dependent.
   `work`, for each thread: 3 n + 3 m rows of `wide` numbers and `count` vectors of 64 bytes; `room`: ROOM_OF_RITZ. */
typedef struct {
    NAME(Rows) a;
    int64_t graphs, n, m, wide, down, across, nulls, of_null, count, ld;
    const REAL *x, *null, *bound, *rows;
    REAL *values, *vectors, *residuals, *work;
    double *room;
    int64_t *sound;
    REAL least;
} NAME(Ritz);

/* Take the rows out of x, twice; 0 where nothing but round-off is left of a column, or nothing was there. */
static int NAME(outside_rows)(const NAME(Ritz) * r, REAL *x, REAL *h, double *square)
{
    const double few = 100 * (sizeof(REAL) == 4 ? 0x1p-23 : 0x1p-52);
    for (int round = 0; round < 3; round++) {
        for (int64_t c = 0; c < r->m; c++) {
            double own = 0;
            for (int64_t i = 0; i < r->n; i++) own += (double)x[i * r->wide + c] * x[i * r->wide + c];
            if (round == 0) square[c] = own;
            if (!(own > few * few * square[c])) return 0;
        }
        if (round < 2) NAME(without)(r->n, r->wide, r->ld, r->count, r->rows, x, h);
    }
    return 1;
}

/* The projection Cᵀ H C, symmetric, less `bound` times the squares of the overlaps (nulls, wide) C. `room`: m rows. */
FAST static void NAME(projected)(int64_t m, int64_t wide, const REAL *h, const REAL *c, int64_t nulls, const REAL *overlaps,
                            double bound, double *small, double *room)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < m; j++) {
            double sum = 0;
            for (int64_t k = 0; k <= j; k++) sum += ((double)h[i * wide + k] + h[k * wide + i]) * c[k * wide + j];
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
            for (int64_t k = 0; k <= j; k++) room[j] += (double)overlaps[a * wide + k] * c[k * wide + j];
        }
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j <= i; j++) small[i * m + j] -= bound * room[i] * room[j];
    }
}

/* Whether one factor does, see PLAINLY: `c` is the inverse over the lengths, of which `h` has the squares. */
static int NAME(is_plain)(int64_t m, int64_t wide, const REAL *h, const REAL *c, REAL least)
{
    double spread = 0;
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = j; i < m; i++) spread = fmax(spread, fabs((double)c[j * wide + i]) * sqrt((double)h[j * wide + j]));
    return least > PLAINLY && spread <= SPREAD;
}

FAST static int NAME(ritz_of_graph)(const NAME(Ritz) * r, int64_t g, REAL *work, double *room)
{
    const int64_t n = r->n, m = r->m, wide = r->wide, first = g * n;
    const double bound = r->nulls ? r->bound[g] : 0;
    REAL *q = work, *image = q + n * wide, *const other = image + n * wide;
    REAL *const h = other + n * wide, *const l = h + m * wide, *const c = l + m * wide;
    double *const small = room, *const half = small + m * m, *const values = half + m * m;
    const double **const at = (const double **)(values + m);
    for (int64_t i = 0; i < n; i++) {
        const REAL *from = r->x + (first + i) * r->down;
        for (int64_t k = 0; k < m; k++) q[i * wide + k] = from[k * r->across];
        for (int64_t k = m; k < wide; k++) q[i * wide + k] = 0;
    }
    if (r->count && !NAME(outside_rows)(r, q, c + m * wide, values)) return 0;
    NAME(gram)(n, m, wide, q, wide, q, h);
    const REAL least = NAME(whitening)(m, wide, h, l, c);
    if (!(least >= r->least)) return 0;
    for (int64_t k = 0; k < m; k++)
        if (!(h[k * wide + k] > (sizeof(REAL) == 4 ? 1e-30 : 1e-280))) return 0; /* squares of few digits */
    if (!NAME(is_plain)(m, wide, h, c, least)) {
        REAL *const given = q;
        NAME(turn)(n, m, wide, q, c, image);
        q = image, image = given;
        if (r->count) NAME(without)(n, wide, r->ld, r->count, r->rows, q, c + m * wide); /* it has been enlarged */
        NAME(gram)(n, m, wide, q, wide, q, h);
        if (!(NAME(whitening)(m, wide, h, l, c) > PLAINLY)) return 0;
    }
    NAME(Task) t = {.a = r->a, .mode = SYSTEM, .from = first, .to = first + n, .base = first, .m = wide, .y = q, .out = image};
    t.of_y = t.of_out = wide, t.times = 1;
    NAME(product_of)(&t, 0, 1, 0);
    NAME(gram)(n, m, wide, q, wide, image, h);
    NAME(gram)(n, r->nulls, r->of_null, r->null + first * r->of_null, wide, q, l);
    NAME(projected)(m, wide, h, c, r->nulls, l, bound, small, half);
    if (!pairs_of_one(m, small, m, values, at, (double *)(at + m))) return 0;
    memset(l, 0, m * wide * sizeof(REAL));
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < m; k++) {
            double sum = 0;
            for (int64_t j = i; j < m; j++) sum += c[i * wide + j] * at[k][j];
            l[i * wide + k] = sum;
        }
    NAME(turn)(n, m, wide, q, l, other);
    NAME(turn)(n, m, wide, image, l, q);
    REAL *const said = h, *const squares = h + wide; /* in the room of h and l, which are done with */
    for (int64_t k = 0; k < wide; k++) {
        if (k < m) values[k] = r->nulls && values[k] < 0 ? 0 : values[k], half[k] = 0;
        said[k] = k < m ? values[k] : 0;
    }
    for (int64_t i = 0; i < n; i += FEW_ROWS) {
        const int64_t end = n - i < FEW_ROWS ? n : i + FEW_ROWS;
        for (int64_t k = 0; k < wide; k++) squares[k] = 0;
        for (int64_t j = i; j < end; j++)
            for (int64_t k = 0; k < wide; k++) {
                const REAL rest = q[j * wide + k] - said[k] * other[j * wide + k];
                squares[k] += rest * rest;
            }
        for (int64_t k = 0; k < m; k++) half[k] += squares[k];
    }
    for (int64_t i = 0; i < n; i++) memcpy(r->vectors + (first + i) * m, other + i * wide, m * sizeof(REAL));
    for (int64_t k = 0; k < m; k++) r->values[g * m + k] = values[k], r->residuals[g * m + k] = sqrt(half[k]);
    return 1;
}

static void NAME(ritz_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const NAME(Ritz) *r = task;
    REAL *const work = r->work + thread * (3 * (r->n + r->m) * r->wide + r->count * (int64_t)(64 / sizeof(REAL)));
    double *const room = r->room + thread * ROOM_OF_RITZ(r->m);
    for (int64_t g = r->graphs * part / parts; g < r->graphs * (part + 1) / parts; g++)
        r->sound[g] = NAME(ritz_of_graph)(r, g, work, room);
}

void NAME(ritz)(NAME(Ritz) * r, int64_t parts, int64_t threads) { share(NAME(ritz_of), r, parts, threads); }
