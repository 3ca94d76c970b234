/* Eigenpairs of small symmetric matrices, four side by side: what LAPACK does for one such matrix waits mostly for one
   square root or division after the other. More lanes are slow where a register holds four numbers, and leave the second
   cache sooner. A part of `kernels.c`. */

typedef uint64_t Bits __attribute__((vector_size(WIDTH), aligned(8), may_alias));

/* Lanes of x where all bits of `where` are set, those of y where none is. */
INLINE V either(Bits where, V x, V y) { return (V)(((Bits)x & where) | ((Bits)y & ~where)); }

INLINE V roots(V x)
{
    V y;
    for (int c = 0; c < LANE; c++) y[c] = sqrt(x[c]);
    return y;
}

/* All bits of the lanes whose square, of numbers up to about 1, is nothing beside that: below 1e-200. */
INLINE Bits is_nothing(V square) { return -(((Bits)square - 0x16687e92154ef7acull) >> 63); }

/* A = Q T Qᵀ by Householder's reflections 1 − τ x xᵀ. Of A the upper triangle is read; row j becomes x of reflection j,
   from column j + 1 on. d and e are the diagonal of T and what is beside it; p is room for a row. */
INLINE void tridiagonal(int64_t n, V *a, V *d, V *e, V *tau, V *p)
{
    const V none = {0};
    for (int64_t j = 0; j + 1 < n; j++) {
        V *x = a + j * n, rest = none, dot = none;
        d[j] = x[j];
        for (int64_t i = j + 2; i < n; i++) rest += x[i] * x[i];
        const V head = x[j + 1], size = roots(head * head + rest);
        const Bits done = is_nothing(rest), minus = (Bits)head & (1ull << 63);
        e[j] = either(done, head, (V)((Bits)(-size) ^ minus));
        x[j + 1] = head - e[j];
        tau[j] = either(done, none, -1 / (e[j] * x[j + 1]));
        for (int64_t i = j + 1; i < n; i++) p[i] = none;
        for (int64_t r = j + 1; r < n; r++) { /* p = A x, each entry of the triangle once for both of its places */
            const V *row = a + r * n, own = x[r];
            V sum = row[r] * own;
            for (int64_t i = r + 1; i < n; i++) sum += row[i] * x[i], p[i] += row[i] * own;
            p[r] += sum;
        }
        for (int64_t i = j + 1; i < n; i++) dot += p[i] * x[i];
        dot *= tau[j] / 2;
        for (int64_t i = j + 1; i < n; i++) p[i] = tau[j] * (p[i] - dot * x[i]);
        for (int64_t r = j + 1; r < n; r++) {
            V *row = a + r * n;
            const V own = x[r], other = p[r];
            for (int64_t i = r; i < n; i++) row[i] -= own * p[i] + other * x[i];
        }
    }
    d[n - 1] = a[n * n - 1];
    e[n - 1] = none;
}

/* Eigenvalues of T in d, and vectors in the rows of z, which hold a basis before: QL with implicit shifts, each lane at its
   own place. `on` is room for n rows. Returns whether all have come to an end. */
INLINE int implicit_ql(int64_t n, V *d, V *e, V *z, Bits *on)
{
    const V none = {0}, one = none + 1;
    double least[LANE] = {0}; /* beside which a number next to the diagonal is nothing */
    int64_t low[LANE] = {0}, high[LANE];
    for (int64_t i = 0; i < n; i++)
        for (int q = 0; q < LANE; q++) least[q] = fmax(least[q], 0x1p-53 * (fabs(d[i][q]) + fabs(e[i][q])));
    for (int64_t sweep = 0; sweep < 60 * n; sweep++) {
        int64_t from = n, to = 0;
        V g = none, s = one, c = one, p = none;
        for (int q = 0; q < LANE; q++) { /* the first block that is not diagonal, and the shift of its first value */
            int64_t b = low[q], end;
            while (b + 1 < n && fabs(e[b][q]) <= least[q]) b++;
            low[q] = b, high[q] = b;
            if (b + 1 == n) continue;
            for (end = b + 1; end + 1 < n && !(fabs(e[end][q]) <= least[q]);) end++;
            high[q] = end;
            from = b < from ? b : from, to = end > to ? end : to;
            const double half = (d[b + 1][q] - d[b][q]) / (2 * e[b][q]), turn = half + copysign(sqrt(half * half + 1), half);
            g[q] = d[end][q] - d[b][q] + e[b][q] / turn;
        }
        if (from == n) return 1;
        for (int64_t i = from; i < to; i++)
            for (int q = 0; q < LANE; q++) on[i][q] = -(uint64_t)(low[q] <= i && i < high[q]);
        for (int64_t i = to - 1; i >= from; i--) {
            const V f = s * e[i], b = c * e[i], square = f * f + g * g, r = roots(square), inverse = one / r;
            const Bits unturned = is_nothing(square);
            const V sine = either(unturned, none, f * inverse), cosine = either(unturned, one, g * inverse);
            const V upper = d[i + 1] - p, last = (d[i] - upper) * sine + 2 * cosine * b, push = sine * last;
            e[i + 1] = either(on[i], r, e[i + 1]), d[i + 1] = either(on[i], upper + push, d[i + 1]);
            g = either(on[i], cosine * last - b, g), p = either(on[i], push, p);
            s = either(on[i], sine, s), c = either(on[i], cosine, c);
            const V turn = either(on[i], sine, none), stay = either(on[i], cosine, one);
            V *u = z + (i + 1) * n, *w = z + i * n;
            for (int64_t l = 0; l < n; l++) {
                const V x = u[l], y = w[l];
                u[l] = turn * y + stay * x, w[l] = stay * y - turn * x;
            }
        }
        for (int q = 0; q < LANE; q++)
            if (low[q] < high[q]) d[low[q]][q] -= p[q], e[low[q]][q] = g[q], e[high[q]][q] = 0;
    }
    return 0;
}

/* One lane of the values ascending, and in p where they were. */
INLINE void ascend(int64_t n, V *d, V *p, int q)
{
    for (int64_t i = 0; i < n; i++) {
        const double own = d[i][q];
        int64_t place = i;
        for (; place > 0 && d[place - 1][q] > own; place--) d[place][q] = d[place - 1][q], p[place][q] = p[place - 1][q];
        d[place][q] = own, p[place][q] = i;
    }
}

/* The eigenvectors of number k, of ascending values, in x: those of T turned by the reflections. */
INLINE void eigenvectors(int64_t n, int64_t k, const V *a, const V *tau, const V *z, const V *p, V *x)
{
    for (int64_t i = 0; i < n; i++)
        for (int q = 0; q < LANE; q++) x[i][q] = z[(int64_t)p[k][q] * n + i][q];
    for (int64_t j = n - 2; j >= 0; j--) {
        const V *y = a + j * n;
        V s = {0};
        for (int64_t i = j + 1; i < n; i++) s += y[i] * x[i];
        s *= tau[j];
        for (int64_t i = j + 1; i < n; i++) x[i] -= s * y[i];
    }
}

/* Where four matrices are solved: 2 n² + 5 n rows. `last` is for whoever needs a row at a time. */
typedef struct {
    V *a, *z, *d, *e, *tau, *p, *last;
} Room;

INLINE Room room_of(double *work, int64_t n, int64_t wide, int64_t thread)
{
    V *a = (V *)work + thread * (2 * wide * wide + 5 * wide), *z = a + n * n, *d = z + n * n;
    const Room room = {a, z, d, d + n, d + 2 * n, d + 3 * n, d + 4 * n};
    memset(a, 0, 2 * n * n * sizeof(V));
    return room;
}

/* The pairs of the upper triangles in `a`, for `eigenvectors`; whether they were found. */
INLINE int solve_lanes(int64_t n, const Room *r)
{
    for (int64_t i = 0; i < n; i++)
        for (int q = 0; q < LANE; q++) r->z[i * n + i][q] = 1;
    tridiagonal(n, r->a, r->d, r->e, r->tau, r->p);
    const int is_done = implicit_ql(n, r->d, r->e, r->z, (Bits *)r->last);
    for (int q = 0; q < LANE; q++) ascend(n, r->d, r->p, q);
    return is_done;
}

/* Values ascending and the first `count` vectors, as columns, of matrices whose lower triangle is read. `sound` is 0 where
   LAPACK is to have a try: numbers that are not finite or beyond 1e±150. `work`: a `Room` for each thread. */
typedef struct {
    int64_t matrices, n, count;
    const double *a;
    double *values, *vectors, *work;
    int64_t *sound;
} Eigh;

/* Into the lane q of an upper triangle, the largest of size 1; that size. */
INLINE double matrix_into_lane(int64_t n, const double *from, V *a, int q)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            const double size = fabs(from[i * n + j]);
            most = size > most || isnan(size) ? size : most;
        }
    const int is_sound = most > 1e-150 && most < 1e150;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) a[j * n + i][q] = is_sound ? from[i * n + j] / most : 0;
    return is_sound || most == 0 ? most : NAN;
}

FAST static void eigh_of(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Eigh *t = task;
    const int64_t n = t->n, groups = (t->matrices + LANE - 1) / LANE;
    for (int64_t g = groups * part / parts; g < groups * (part + 1) / parts; g++) {
        const int64_t first = g * LANE, lanes = t->matrices - first < LANE ? t->matrices - first : LANE;
        const Room r = room_of(t->work, n, n, thread);
        double size[LANE];
        for (int q = 0; q < lanes; q++) size[q] = matrix_into_lane(n, t->a + (first + q) * n * n, r.a, q);
        const int is_done = solve_lanes(n, &r);
        for (int q = 0; q < lanes; q++) {
            t->sound[first + q] = is_done && !isnan(size[q]);
            for (int64_t i = 0; i < n; i++) t->values[(first + q) * n + i] = r.d[i][q] * size[q];
        }
        for (int64_t k = 0; k < t->count; k++) {
            eigenvectors(n, k, r.a, r.tau, r.z, r.p, r.last);
            for (int q = 0; q < lanes; q++)
                for (int64_t i = 0; i < n; i++) t->vectors[((first + q) * n + i) * t->count + k] = r.last[i][q];
        }
    }
}

void eigh(Eigh *task, int64_t parts, int64_t threads) { share(eigh_of, task, parts, threads); }
