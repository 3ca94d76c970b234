/* Eigenpairs of small symmetric matrices: less time than LAPACK takes for its calls. */

#include "kernels.h"

/* Make T = Qᵀ A Q tridiagonal by Householder's reflections, from the last row on. The lower triangle of A is read, and
   overwritten. d and e become the diagonal of T and the numbers below it; z, rows of `fours` vectors, becomes Qᵀ. u is
   room for a row. */
INLINE void tridiagonal(int64_t m, int64_t fours, double *a, double *d, double *e, Four *z, double *u)
{
    memset(z, 0, m * fours * sizeof *z);
    for (int64_t q = 0; q < m; q++) ((double *)(z + q * fours))[q] = 1;
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

/* Compute eigenvalues of T in d and eigenvectors in the rows of z, by QL with implicit shifts. Return whether it
   converged. */
INLINE int implicit_ql(int64_t m, int64_t fours, double *d, double *e, Four *z)
{
    double least = 0; /* below which a number next to the diagonal counts as zero */
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
                if (r == 0) { /* by underflow: the matrix is in two parts */
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

/* Divide a lower triangle of m rows by its largest size, into `a`. Return that size; 0 where it is not finite, or
   where squares would overflow or underflow. */
INLINE double in_unit(int64_t m, const double *from, double *a)
{
    double most = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j <= i; j++) {
            const double own = fabs(from[i * m + j]);
            most = own > most || isnan(own) ? own : most;
        }
    if (most == 0) most = 1;
    if (!(most > 1e-150 && most < 1e150)) return 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j <= i; j++) a[i * m + j] = from[i * m + j] / most;
    return most;
}

#define EIGENVECTOR_STEP(m)   (((m) + 3) / 4 * 4)                     /* numbers from one vector to the next */
#define ROOM_OF_EIGENPAIRS(m) ((m) * ((m) + 4 + EIGENVECTOR_STEP(m))) /* numbers that `eigenpairs` works with */
#define ROOM_OF_EIGH(m)       ((m) + ROOM_OF_EIGENPAIRS(m))

/* Compute the eigenvalues, ascending, of a matrix of m rows whose lower triangle is read, and point to the vector of
   each in `work`. Return 0 where that cannot be done; see `in_unit`. */
FAST static int eigenpairs(int64_t m, const double *from, double *values, const double **vectors, double *work)
{
    const int64_t step = EIGENVECTOR_STEP(m);
    double *const z = work, *const a = z + m * step, *const d = a + m * m, *const e = d + m;
    const double most = in_unit(m, from, a);
    if (most == 0) return 0;
    tridiagonal(m, step / 4, a, d, e, (Four *)z, e + m);
    if (!implicit_ql(m, step / 4, d, e, (Four *)z)) return 0;
    for (int64_t i = 0; i < m; i++) {
        const double own = d[i] * most;
        int64_t place = i;
        for (; place > 0 && values[place - 1] > own; place--)
            values[place] = values[place - 1], vectors[place] = vectors[place - 1];
        values[place] = own, vectors[place] = z + i * step;
    }
    return 1;
}

static void eigh_of(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Eigh *t = task;
    const int64_t n = t->size, wanted = t->wanted;
    const double **const at = (const double **)(t->work + thread * ROOM_OF_EIGH(n));
    for (int64_t g = t->matrices * part / parts; g < t->matrices * (part + 1) / parts; g++) {
        double *const vectors = t->vectors + g * n * wanted;
        t->is_sound[g] = eigenpairs(n, t->matrix + g * n * n, t->values + g * n, at, (double *)(at + n));
        if (!t->is_sound[g]) continue;
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < wanted; k++) vectors[i * wanted + k] = at[k][i];
    }
}

void eigh(Eigh *task, int64_t parts, int64_t threads)
{
    share(eigh_of, task, parts, threads);
}
