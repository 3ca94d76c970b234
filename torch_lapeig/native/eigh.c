/* Eigenpairs of small symmetric matrices: less time than LAPACK takes for its calls. */

#include "kernels.h"

/* Make T = Qᵀ A Q tridiagonal by Householder's reflections, from the last row on. The lower triangle of A is read, and
   overwritten. d and e become the diagonal of T and the numbers below it; z, rows of `fours` vectors, becomes Qᵀ. x is
   the vector of a reflection, u room for a row. */
INLINE void tridiagonal(int64_t m, int64_t fours, double *a, double *d, double *e, Four *z, double *u)
{
    memset(z, 0, m * fours * sizeof *z);
    for (int64_t k = 0; k < m; k++) ((double *)(z + k * fours))[k] = 1;
    for (int64_t i = m - 1; i > 0; i--) {
        double *x = a + i * m, rest = 0, dot = 0;
        for (int64_t j = 0; j + 1 < i; j++) rest += x[j] * x[j];
        d[i] = x[i], e[i - 1] = x[i - 1];
        if (rest < 1e-200) continue;
        const double size = copysign(sqrt(x[i - 1] * x[i - 1] + rest), x[i - 1]);
        e[i - 1] = -size, x[i - 1] += size;
        const double tau = 1 / (size * x[i - 1]);
        for (int64_t k = 0; k < i; k++) u[k] = 0;
        for (int64_t k = 0; k < i; k++) { /* u = A x, each entry of the triangle once for both of its places */
            const double *row = a + k * m, own = x[k];
            double sum = row[k] * own;
            for (int64_t j = 0; j < k; j++) sum += row[j] * x[j], u[j] += row[j] * own;
            u[k] += sum;
        }
        for (int64_t k = 0; k < i; k++) dot += u[k] * x[k];
        dot *= tau / 2;
        for (int64_t k = 0; k < i; k++) u[k] = tau * (u[k] - dot * x[k]);
        for (int64_t k = 0; k < i; k++) {
            double *row = a + k * m;
            const double own = x[k], other = u[k];
            for (int64_t j = 0; j <= k; j++) row[j] -= own * u[j] + other * x[j];
        }
        for (int64_t k = 0; k < fours; k++) {
            Four sum = {0};
            for (int64_t j = 0; j < i; j++) sum += z[j * fours + k] * x[j];
            sum *= tau;
            for (int64_t j = 0; j < i; j++) z[j * fours + k] -= sum * x[j];
        }
    }
    d[0] = a[0], e[m - 1] = 0;
}

/* Compute eigenvalues of T in d and eigenvectors in the rows of z, by QL with implicit shifts. Return whether it
   converged. c and s are the cosine and sine of a rotation, g the number that it chases, p what it takes from the
   diagonal; f and b are its parts of a number beside the diagonal, and r is the length of f and g. */
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
                for (Four *lower = z + i * fours, *higher = lower + fours, *end = higher; lower < end;
                     lower++, higher++) {
                    const Four own = *higher, other = *lower;
                    *higher = s * other + c * own, *lower = c * other - s * own;
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
#define ROOM_OF_EIGH(m)       ((m) + ROOM_OF_EIGENPAIRS(m))           /* with the places of the vectors */

/* Compute the eigenvalues, ascending, of a matrix of m rows whose lower triangle is read, and point to the vector of
   each in `work`. Return 0 where that cannot be done; see `in_unit`. a, d, e and z: see `tridiagonal`. */
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

/* Return whether the two triangles are equal, entry by entry. */
INLINE int are_triangles_equal(int64_t n, const double *a)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++)
            if (a[i * n + j] != a[j * n + i]) return 0;
    return 1;
}

/* Return the sign of the first entry of nearly the largest size, times factors if there are some, as `signs` does. */
INLINE double sign_of(int64_t n, const double *v, const double *factor)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(v[i] * (factor ? factor[i] : 1)));
    int64_t first = 0;
    while (first + 1 < n && fabs(v[first] * (factor ? factor[first] : 1)) < 0.999 * most) first++;
    return copysign(1, v[first]);
}

static void eigh_of(void *data, int64_t part, int64_t parts, double *room)
{
    Eigh *task = data;
    const int64_t n = task->size, wanted = task->wanted;
    const double **const at = (const double **)room;
    for (int64_t graph = task->matrices * part / parts; graph < task->matrices * (part + 1) / parts; graph++) {
        double *const vectors = task->vectors + graph * n * wanted;
        const double *const from = task->matrix + graph * n * n;
        const int is_sound = (!task->is_whole || are_triangles_equal(n, from)) &&
                             eigenpairs(n, from, task->values + graph * n, at, (double *)(at + n));
        if (!is_sound) __atomic_store_n(&task->failed, 1, __ATOMIC_RELAXED);
        for (int64_t k = 0; is_sound && k < wanted; k++) {
            const double sign = sign_of(n, at[k], task->factor ? task->factor + graph * n : NULL);
            for (int64_t i = 0; i < n; i++) vectors[i * wanted + k] = sign * at[k][i];
        }
    }
}

int64_t eigh(Eigh *task, int64_t parts, int64_t threads)
{
    return share(eigh_of, task, parts, threads, ROOM_OF_EIGH(task->size));
}
