/* What is asked of Ritz pairs between long loops. A part of `kernels.c`. */

#ifndef REAL

/* --- Eigenpairs of a small symmetric matrix, or its eigenvalues with the ends of its eigenvectors --- */

/* T = Qᵀ A Q by Householder's reflections from the last row on: what is tridiagonal at the end of A stays as it is. Of A the
   lower triangle is read, and overwritten. d and e become the diagonal of T and what is below it; z, the last `ends` rows of
   the identity as columns of `fours` vectors, those of Q. u is room for a row. */
INLINE void tridiagonal_at_end(int64_t m, int64_t ends, int64_t fours, double *a, double *d, double *e, Four *z, double *u)
{
    memset(z, 0, m * fours * sizeof *z);
    for (int64_t q = 0; q < ends; q++) ((double *)(z + (m - ends + q) * fours))[q] = 1;
    for (int64_t i = m - 1; i > 0; i--) {
        double *x = a + i * m, rest = 0, dot = 0;
        for (int64_t j = 0; j + 1 < i; j++) rest += x[j] * x[j];
        d[i] = x[i], e[i - 1] = x[i - 1];
        if (rest < 1e-200) continue;
        const double size = copysign(sqrt(x[i - 1] * x[i - 1] + rest), x[i - 1]);
        e[i - 1] = -size, x[i - 1] += size;
        const double tau = 1 / (size * x[i - 1]);
        for (int64_t r = 0; r < i; r++) u[r] = 0;
        for (int64_t r = 0; r < i; r++) { /* u = A x, each entry of the triangle once for both of its places */
            const double *row = a + r * m, own = x[r];
            double sum = row[r] * own;
            for (int64_t c = 0; c < r; c++) sum += row[c] * x[c], u[c] += row[c] * own;
            u[r] += sum;
        }
        for (int64_t r = 0; r < i; r++) dot += u[r] * x[r];
        dot *= tau / 2;
        for (int64_t r = 0; r < i; r++) u[r] = tau * (u[r] - dot * x[r]);
        for (int64_t r = 0; r < i; r++) {
            double *row = a + r * m;
            const double own = x[r], other = u[r];
            for (int64_t c = 0; c <= r; c++) row[c] -= own * u[c] + other * x[c];
        }
        for (int64_t b = 0; b < fours; b++) {
            Four s = {0};
            for (int64_t j = 0; j < i; j++) s += z[j * fours + b] * x[j];
            s *= tau;
            for (int64_t j = 0; j < i; j++) z[j * fours + b] -= s * x[j];
        }
    }
    d[0] = a[0], e[m - 1] = 0;
}

/* Eigenvalues of T in d; z becomes z S for its eigenvectors S: QL with implicit shifts. Whether it has come to an end. */
INLINE int implicit_ql_of_one(int64_t m, int64_t fours, double *d, double *e, Four *z)
{
    double least = 0; /* beside which a number next to the diagonal is nothing */
    for (int64_t i = 0; i < m; i++) least = fmax(least, 0x1p-53 * (fabs(d[i]) + fabs(e[i])));
    for (int64_t low = 0; low < m; low++)
        for (int64_t sweep = 0;; sweep++) {
            int64_t high = low, i;
            while (high + 1 < m && !(fabs(e[high]) <= least)) high++;
            if (high == low) break;
            if (sweep == 60) return 0;
            const double half = (d[low + 1] - d[low]) / (2 * e[low]);
            double g = d[high] - d[low] + e[low] / (half + copysign(sqrt(half * half + 1), half)), s = 1, c = 1, p = 0;
            for (i = high - 1; i >= low; i--) {
                const double f = s * e[i], b = c * e[i], r = sqrt(f * f + g * g);
                e[i + 1] = r;
                if (r == 0) { /* by underflow: it is in two parts */
                    d[i + 1] -= p, e[high] = 0;
                    break;
                }
                s = f / r, c = g / r;
                const double upper = d[i + 1] - p, last = (d[i] - upper) * s + 2 * c * b;
                p = s * last, d[i + 1] = upper + p, g = c * last - b;
                for (Four *w = z + i * fours, *x = w + fours, *end = x; w < end; w++, x++) {
                    const Four own = *x, other = *w;
                    *x = s * other + c * own, *w = c * other - s * own;
                }
            }
            if (i >= low) continue;
            d[low] -= p, e[low] = g, e[high] = 0;
        }
    return 1;
}

/* The largest size of a lower triangle of m rows of `size` numbers, which over that comes to `a`, of m; 0 where it is not
   finite, or beyond 1e±150. */
INLINE double in_unit(int64_t m, const double *from, int64_t size, double *a)
{
    double most = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j <= i; j++) {
            const double own = fabs(from[i * size + j]);
            most = own > most || isnan(own) ? own : most;
        }
    if (most == 0) most = 1;
    if (!(most > 1e-150 && most < 1e150)) return 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j <= i; j++) a[i * m + j] = from[i * size + j] / most;
    return most;
}

/* Ritz values, ascending, of the projection on m vectors, the lower triangle of rows of `size` numbers, and the norms of
   their residuals: of the last `ends` vectors, four at most, the products have parts outside, with a Gram matrix. `work` has
   room for m (m + 8) numbers. 0 where the projection is not finite, or beyond 1e±150. */
FAST int64_t ritz_values(const double *projection, int64_t size, int64_t m, int64_t ends, const double *gram, double *values,
                         double *residuals, double *work)
{
    Four *const z = (Four *)work;
    double *const a = work + 4 * m, *const d = a + m * m, *const e = d + m, *const u = e + m;
    const double most = in_unit(m, projection, size, a);
    if (most == 0) return 0;
    tridiagonal_at_end(m, ends, 1, a, d, e, z, u);
    if (!implicit_ql_of_one(m, 1, d, e, z)) return 0;
    for (int64_t i = 1; i < m; i++) {
        const double own = d[i];
        const Four end = z[i];
        int64_t place = i;
        for (; place > 0 && d[place - 1] > own; place--) d[place] = d[place - 1], z[place] = z[place - 1];
        d[place] = own, z[place] = end;
    }
    for (int64_t i = 0; i < m; i++) {
        double square = 0;
        for (int64_t q = 0; q < ends; q++)
            for (int64_t r = 0; r < ends; r++) square += z[i][q] * gram[q * ends + r] * z[i][r];
        values[i] = d[i] * most, residuals[i] = sqrt(fmax(square, 0));
    }
    return 1;
}

/* Numbers of room that `pairs_of_one` needs, and of those from one of its vectors to the next. */
#define STEP_OF_ONE(m) (((m) + 3) / 4 * 4)
#define ROOM_OF_ONE(m) ((m) * ((m) + 4 + STEP_OF_ONE(m)))

/* Eigenvalues, ascending, of one matrix of m rows of `size` numbers, whose lower triangle is read, and where in `work` the
   vector of each is. 0 where it is not finite, or beyond 1e±150. */
INLINE int pairs_of_one(int64_t m, const double *from, int64_t size, double *values, const double **vectors, double *work)
{
    const int64_t step = STEP_OF_ONE(m);
    double *const z = work, *const a = z + m * step, *const d = a + m * m, *const e = d + m;
    const double most = in_unit(m, from, size, a);
    if (most == 0) return 0;
    tridiagonal_at_end(m, m, step / 4, a, d, e, (Four *)z, e + m);
    if (!implicit_ql_of_one(m, step / 4, d, e, (Four *)z)) return 0;
    for (int64_t i = 0; i < m; i++) {
        const double own = d[i] * most;
        int64_t place = i;
        for (; place > 0 && values[place - 1] > own; place--)
            values[place] = values[place - 1], vectors[place] = vectors[place - 1];
        values[place] = own, vectors[place] = z + i * step;
    }
    return 1;
}

/* The same, with the first `count` vectors as columns. `work`: of one, and m pointers. */
FAST int64_t eigh_of_one(int64_t m, int64_t size, int64_t count, const double *a, double *values, double *vectors, double *work)
{
    const double **const at = (const double **)(work + ROOM_OF_ONE(m));
    if (!pairs_of_one(m, a, size, values, at, work)) return 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t c = 0; c < count; c++) vectors[i * count + c] = at[c][i];
    return 1;
}

#else

/* --- Blocks of vectors, `wide` numbers a row --- */

/* h += Xᵀ Y for m columns of X and one or two vectors of Y, `wide` numbers a row, as of h. */
INLINE void NAME(gram_of_rows)(int64_t n, int64_t m, int64_t of_x, const REAL *x, int64_t wide, const REAL *y, REAL *h,
                               const int two)
{
    const int64_t lanes = 64 / sizeof(REAL), other = two ? lanes : 0;
    for (int64_t a = 0; a < m; a += 4) {
        const int64_t b = a + 1 < m, c = a + 2 < m ? 2 : b, d = a + 3 < m ? 3 : c; /* the last column again */
        NAME(V64) s[4] = {{0}}, t[4] = {{0}};
        for (int64_t i = 0; i < n; i++) {
            const NAME(V64) row = *(const NAME(V64) *)(y + i * wide), more = *(const NAME(V64) *)(y + i * wide + other);
            const REAL *left = x + i * of_x + a;
            s[0] += left[0] * row, s[1] += left[b] * row, s[2] += left[c] * row, s[3] += left[d] * row;
            if (two) t[0] += left[0] * more, t[1] += left[b] * more, t[2] += left[c] * more, t[3] += left[d] * more;
        }
        for (int64_t k = 0; k < 4 && a + k < m; k++) {
            *(NAME(V64) *)(h + (a + k) * wide) += s[k];
            if (two) *(NAME(V64) *)(h + (a + k) * wide + lanes) += t[k];
        }
    }
}

/* h = Xᵀ Y. */
INLINE void NAME(gram)(int64_t n, int64_t m, int64_t of_x, const REAL *x, int64_t wide, const REAL *y, REAL *h)
{
    const int64_t lanes = 64 / sizeof(REAL);
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
INLINE void NAME(four_rows)(const REAL *const x[4], int64_t m, int64_t wide, const REAL *c, NAME(V64) * left,
                            NAME(V64) * right, const int two)
{
    const int64_t lanes = 64 / sizeof(REAL);
    NAME(V64) s[4] = {{0}}, t[4] = {{0}};
    for (int64_t a = 0; a < m; a++) {
        const NAME(V64) own = *(const NAME(V64) *)(c + a * wide);
        s[0] += x[0][a] * own, s[1] += x[1][a] * own, s[2] += x[2][a] * own, s[3] += x[3][a] * own;
        if (two) {
            const NAME(V64) more = *(const NAME(V64) *)(c + a * wide + lanes);
            t[0] += x[0][a] * more, t[1] += x[1][a] * more, t[2] += x[2][a] * more, t[3] += x[3][a] * more;
        }
    }
    for (int64_t k = 0; k < 4; k++) left[k] = s[k], right[k] = t[k];
}

/* out = X C for C of m rows; all of `wide` numbers a row. */
INLINE void NAME(turn)(int64_t n, int64_t m, int64_t wide, const REAL *x, const REAL *c, REAL *out)
{
    const int64_t lanes = 64 / sizeof(REAL);
    for (int64_t i = 0; i < n; i += 4) {
        const REAL *rows[4];
        for (int64_t k = 0; k < 4; k++) rows[k] = x + (i + k < n ? i + k : n - 1) * wide;
        for (int64_t l = 0; l < wide; l += 2 * lanes) {
            NAME(V64) left[4], right[4];
            const int two = l + lanes < wide;
            if (two)
                NAME(four_rows)(rows, m, wide, c + l, left, right, 1);
            else
                NAME(four_rows)(rows, m, wide, c + l, left, right, 0);
            for (int64_t k = 0; k < 4 && i + k < n; k++) {
                *(NAME(V64) *)(out + (i + k) * wide + l) = left[k];
                if (two) *(NAME(V64) *)(out + (i + k) * wide + l + lanes) = right[k];
            }
        }
    }
}

/* out = Rᵀ C, or `out` + Rᵀ C where it `adds`, for `count` rows R of n nodes and C of `wide` numbers a row; four nodes at a
   time, on one or two vectors of C. */
INLINE void NAME(four_of_rows)(int64_t n, int64_t count, int64_t ld, const REAL *rows, int64_t wide, const REAL *c, REAL *out,
                               int64_t adds, const int two)
{
    const int64_t lanes = 64 / sizeof(REAL);
    for (int64_t i = 0; i < n; i += 4) {
        const int64_t b = i + 1 < n, d = i + 2 < n ? 2 : b, e = i + 3 < n ? 3 : d; /* the last node again */
        NAME(V64) s = {0}, t = {0}, u = {0}, v = {0}, w = {0}, x = {0}, y = {0}, z = {0};
        for (int64_t r = 0; r < count; r++) {
            const REAL *q = rows + r * ld + i;
            const NAME(V64) left = *(const NAME(V64) *)(c + r * wide);
            s += q[0] * left, t += q[b] * left, u += q[d] * left, v += q[e] * left;
            if (two) {
                const NAME(V64) right = *(const NAME(V64) *)(c + r * wide + lanes);
                w += q[0] * right, x += q[b] * right, y += q[d] * right, z += q[e] * right;
            }
        }
        const NAME(V64) of_left[4] = {s, t, u, v}, of_right[4] = {w, x, y, z};
        for (int64_t a = 0; a < 4 && i + a < n; a++) {
            NAME(V64) *to = (NAME(V64) *)(out + (i + a) * wide), *other = (NAME(V64) *)(out + (i + a) * wide + lanes);
            *to = of_left[a] + (adds ? *to : (NAME(V64)){0});
            if (two) *other = of_right[a] + (adds ? *other : (NAME(V64)){0});
        }
    }
}

INLINE void NAME(from_rows)(int64_t n, int64_t count, int64_t ld, const REAL *rows, int64_t wide, const REAL *c, REAL *out,
                          int64_t adds)
{
    const int64_t lanes = 64 / sizeof(REAL);
    int64_t l = 0;
    for (; l + 2 * lanes <= wide; l += 2 * lanes) NAME(four_of_rows)(n, count, ld, rows, wide, c + l, out + l, adds, 1);
    if (l < wide) NAME(four_of_rows)(n, count, ld, rows, wide, c + l, out + l, adds, 0);
}

/* C such that Xᵀ X = g makes X C orthonormal, by Cholesky of the matrix with a unit diagonal; its least diagonal entry,
   0 where there is none. `c` and `l` have m rows of `wide`. */
INLINE REAL NAME(whitening)(int64_t m, int64_t wide, const REAL *g, REAL *l, REAL *c)
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
INLINE int NAME(outside_rows)(const NAME(Ritz) * r, REAL *x, REAL *h, double *square)
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
INLINE void NAME(projected)(int64_t m, int64_t wide, const REAL *h, const REAL *c, int64_t nulls, const REAL *overlaps,
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

/* The numbers of double that `ritz_of` needs for a thread. */
#define ROOM_OF_RITZ(m) (2 * (m) * (m) + 2 * (m) + ROOM_OF_ONE(m))
/* Least entry on the diagonal of a Cholesky factor of columns of length 1, and largest of its inverse, up to which one such
   factor makes them orthonormal to round-off. */
#define PLAINLY 0.5
#define SPREAD 2.0

/* Whether it does: `c` is the inverse over the lengths, of which `h` has the squares. */
INLINE int NAME(is_plain)(int64_t m, int64_t wide, const REAL *h, const REAL *c, REAL least)
{
    double spread = 0;
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = j; i < m; i++) spread = fmax(spread, fabs((double)c[j * wide + i]) * sqrt((double)h[j * wide + j]));
    return least > PLAINLY && spread <= SPREAD;
}

INLINE int NAME(ritz_of_graph)(const NAME(Ritz) * r, int64_t g, REAL *work, double *room)
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
    NAME(Task) t = {.a = r->a, .from = first, .to = first + n, .base = first, .m = wide, .y = q, .out = image};
    t.of_y = t.of_out = wide, t.times = 1;
    NAME(apply)(&t, SYSTEM);
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

FAST static void NAME(ritz_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const NAME(Ritz) *r = task;
    REAL *const work = r->work + thread * (3 * (r->n + r->m) * r->wide + r->count * (int64_t)(64 / sizeof(REAL)));
    double *const room = r->room + thread * ROOM_OF_RITZ(r->m);
    for (int64_t g = r->graphs * part / parts; g < r->graphs * (part + 1) / parts; g++)
        r->sound[g] = NAME(ritz_of_graph)(r, g, work, room);
}

void NAME(ritz)(NAME(Ritz) * r, int64_t parts, int64_t threads) { share(NAME(ritz_of), r, parts, threads); }

/* The same of one graph for a block of images, B times the Ritz vectors of the r->m largest values of B in a space of
   `filled` rows, of `ld` numbers each: V (Vᵀ B V) t and what products of the last `ends` rows have outside, `rest`. x is made
   here, in rows of `wide` numbers. `coordinates`: (filled + ends) rows of `wide`; `room`: ROOM_OF_ONE and twice filled. */
FAST int64_t NAME(pairs_of_space)(NAME(Ritz) * r, REAL *x, int64_t filled, const double *projected, int64_t size, int64_t ld,
                                  const REAL *rows, int64_t ends, const REAL *rest, REAL *coordinates, double *room)
{
    const int64_t wide = r->wide;
    double *const values = room;
    const double **const at = (const double **)(room + filled);
    REAL *const outside = coordinates + filled * wide;
    if (!pairs_of_one(filled, projected, size, values, at, room + 2 * filled)) return 0;
    memset(coordinates, 0, (filled + ends) * wide * sizeof(REAL));
    for (int64_t c = 0; c < r->m; c++) {
        const int64_t last = filled - 1 - c;
        for (int64_t i = 0; i < filled; i++) coordinates[i * wide + c] = values[last] * at[last][i];
        for (int64_t i = 0; i < ends; i++) outside[i * wide + c] = at[last][filled - ends + i];
    }
    NAME(from_rows)(r->n, filled, ld, rows, wide, coordinates, x, 0);
    if (ends) NAME(from_rows)(r->n, ends, ld, rest, wide, outside, x, 1);
    return NAME(ritz_of_graph)(r, 0, r->work, r->room);
}

/* --- What is true of vectors: `torch_lapeig.eigen.check` --- */

/* Of the columns of `given`, of which numbers are `down` and `across` from each other: what they have outside `nulls` null
   vectors, of length 1, with signs, in rows of k numbers; these vectors in the place of the first. Their Rayleigh quotients,
   none below 0, the norms of A v − q v, `wide` numbers each, and how far VᵀV is from 1. `work`: 2 n + nulls + k rows of `wide` numbers. */
typedef struct {
    NAME(Rows) a;
    int64_t n, k, wide, nulls, down, across;
    const REAL *given, *null;
    REAL *vectors, *work;
    double *quotients, *residuals;
    double skewness;
} NAME(Check);

/* As many columns as a vector of the processor has numbers: to length 1, the first number of about the largest size
   positive; and of their images quotients and residuals, see Check. */
#define LANES ((int64_t)(64 / sizeof(REAL)))

/* Add squares of the rows of a piece, and their products with the image, if there is one. Of one sum over all rows the
   rounding would add up: where numbers repeat, as in vectors of symmetric graphs, it is no accident and has one sign. */
INLINE void NAME(add_squares)(int64_t rows, int64_t wide, const REAL *x, const REAL *image, double *square, double *energy)
{
    double own_square[16] = {0}, own_energy[16] = {0};
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < LANES; c++) {
            const double own = x[i * wide + c];
            own_square[c] += own * own;
            if (image) own_energy[c] += own * image[i * wide + c];
        }
    for (int64_t c = 0; c < LANES; c++) {
        square[c] += own_square[c];
        if (image) energy[c] += own_energy[c];
    }
}

INLINE void NAME(oriented)(int64_t n, int64_t wide, REAL *x)
{
    double square[16] = {0};
    REAL most[16] = {0}, turn[16] = {0};
    for (int64_t i = 0; i < n; i += FEW_ROWS)
        NAME(add_squares)(n - i < FEW_ROWS ? n - i : FEW_ROWS, wide, x + i * wide, NULL, square, NULL);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < LANES; c++) {
            const REAL own = x[i * wide + c], size = own < 0 ? -own : own;
            most[c] = size > most[c] ? size : most[c];
        }
    for (int64_t c = 0; c < LANES; c++) {
        int64_t first = 0;
        while (first + 1 < n && !(fabs((double)x[first * wide + c]) >= 0.999 * most[c])) first++;
        if (square[c] > 1e-60) turn[c] = copysign(1 / sqrt(square[c]), x[first * wide + c]);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < LANES; c++) x[i * wide + c] *= turn[c];
}

INLINE void NAME(quotients)(int64_t n, int64_t wide, const REAL *x, const REAL *image, int64_t nulls, double *quotients,
                            double *residuals)
{
    double square[16] = {0}, energy[16] = {0}, rest[16] = {0};
    REAL quotient[16];
    for (int64_t i = 0; i < n; i += FEW_ROWS)
        NAME(add_squares)(n - i < FEW_ROWS ? n - i : FEW_ROWS, wide, x + i * wide, image + i * wide, square, energy);
    for (int64_t c = 0; c < LANES; c++) quotient[c] = c < nulls || energy[c] < 0 ? 0 : energy[c] / square[c];
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < LANES; c++) {
            const double own = image[i * wide + c] - quotient[c] * x[i * wide + c];
            rest[c] += own * own;
        }
    for (int64_t c = 0; c < LANES; c++) quotients[c] = quotient[c], residuals[c] = sqrt(rest[c]);
}

FAST void NAME(check)(NAME(Check) * t)
{
    const int64_t n = t->n, k = t->k, wide = t->wide, nulls = t->nulls;
    REAL *const x = t->work, *const image = x + n * wide, *const h = image + n * wide;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < k; c++) x[i * wide + c] = t->given[i * t->down + c * t->across];
        for (int64_t c = k; c < wide; c++) x[i * wide + c] = 0;
    }
    NAME(gram)(n, nulls, nulls, t->null, wide, x, h);
    for (int64_t i = 0; i < n; i++)
        for (int64_t a = 0; a < nulls; a++)
            for (int64_t c = 0; c < wide; c++) x[i * wide + c] -= t->null[i * nulls + a] * h[a * wide + c];
    for (int64_t i = 0; i < n; i++)
        for (int64_t a = 0; a < nulls; a++) x[i * wide + a] = t->null[i * nulls + a];
    for (int64_t c = 0; c < wide; c += LANES) NAME(oriented)(n, wide, x + c);
    NAME(Task) task = {.a = t->a, .from = 0, .to = n, .base = 0, .m = wide, .y = x, .out = image};
    task.of_y = task.of_out = wide, task.times = 1;
    NAME(apply)(&task, SYSTEM);
    for (int64_t c = 0; c < wide; c += LANES)
        NAME(quotients)(n, wide, x + c, image + c, nulls - c, t->quotients + c, t->residuals + c);
    NAME(gram)(n, k, wide, x, wide, x, h);
    t->skewness = 0;
    for (int64_t a = 0; a < k; a++)
        for (int64_t c = 0; c < k; c++) {
            const double off = fabs((double)h[a * wide + c] - (a == c));
            if (!(off <= t->skewness) && !isnan(t->skewness)) t->skewness = off;
        }
    for (int64_t i = 0; i < n; i++) memcpy(t->vectors + i * k, x + i * wide, k * sizeof(REAL));
}

#undef LANES

#endif
