/* What is asked of Ritz pairs between long loops. A part of `kernels.c`. */

#ifndef REAL

/* --- Eigenvalues of a small symmetric matrix, with the ends of its eigenvectors --- */

/* T = Qᵀ A Q by Householder's reflections from the last row on: what is tridiagonal at the end of A stays as it is. Of A the
   lower triangle is read, and overwritten. d and e become the diagonal of T and what is below it; z, the last `ends` rows of
   the identity as columns of four, those of Q. u is room for a row. */
INLINE void tridiagonal_at_end(int64_t m, int64_t ends, double *a, double *d, double *e, Four *z, double *u)
{
    const Four none = {0};
    for (int64_t i = 0; i < m; i++) z[i] = none;
    for (int64_t q = 0; q < ends; q++) z[m - ends + q][q] = 1;
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
        Four s = none;
        for (int64_t j = 0; j < i; j++) s += z[j] * x[j];
        s *= tau;
        for (int64_t j = 0; j < i; j++) z[j] -= s * x[j];
    }
    d[0] = a[0], e[m - 1] = 0;
}

/* Eigenvalues of T in d; z becomes z S for its eigenvectors S: QL with implicit shifts. Whether it has come to an end. */
INLINE int ql_of_ends(int64_t m, double *d, double *e, Four *z)
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
                const Four x = z[i + 1], y = z[i];
                z[i + 1] = s * y + c * x, z[i] = c * y - s * x;
            }
            if (i >= low) continue;
            d[low] -= p, e[low] = g, e[high] = 0;
        }
    return 1;
}

/* Ritz values, ascending, of the projection on m vectors, the lower triangle of rows of `size` numbers, and the norms of
   their residuals: of the last `ends` vectors, four at most, the products have parts outside, with a Gram matrix. `work` has
   room for m (m + 8) numbers. 0 where the projection is not finite, or beyond 1e±150. */
FAST int64_t ritz_values(const double *projection, int64_t size, int64_t m, int64_t ends, const double *gram, double *values,
                         double *residuals, double *work)
{
    Four *const z = (Four *)work;
    double *const a = work + 4 * m, *const d = a + m * m, *const e = d + m, *const u = e + m;
    double most = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j <= i; j++) {
            const double own = fabs(projection[i * size + j]);
            most = own > most || isnan(own) ? own : most;
        }
    if (most == 0) most = 1;
    if (!(most > 1e-150 && most < 1e150)) return 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j <= i; j++) a[i * m + j] = projection[i * size + j] / most;
    tridiagonal_at_end(m, ends, a, d, e, z, u);
    if (!ql_of_ends(m, d, e, z)) return 0;
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

#else

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

INLINE void NAME(oriented)(int64_t n, int64_t wide, REAL *x)
{
    double square[16] = {0};
    REAL most[16] = {0}, turn[16] = {0};
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < LANES; c++) {
            const REAL own = x[i * wide + c], size = own < 0 ? -own : own;
            square[c] += (double)own * own;
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
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < LANES; c++) {
            const double own = x[i * wide + c];
            square[c] += own * own, energy[c] += own * image[i * wide + c];
        }
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
