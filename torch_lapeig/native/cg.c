/* Conjugate gradients on the complement of eigenvectors, LANES columns side by side. */

#include "kernels.h"

typedef Wide_double Lanes;

/* Compute h = Qᵀ x for columns `from` to `to` of Q (n, width). */
FAST static void gram(int64_t n, int64_t width, int64_t from, int64_t to, const double *q, const Lanes *x, Lanes *h)
{
    int64_t a = from;
    for (; a + 4 <= to; a += 4) {
        Lanes s = {0}, t = {0}, u = {0}, v = {0};
        for (int64_t i = 0; i < n; i++) {
            const double *row = q + i * width + a;
            s += row[0] * x[i], t += row[1] * x[i], u += row[2] * x[i], v += row[3] * x[i];
        }
        h[a - from] = s, h[a - from + 1] = t, h[a - from + 2] = u, h[a - from + 3] = v;
    }
    for (; a < to; a++) {
        Lanes s = {0};
        for (int64_t i = 0; i < n; i++) s += q[i * width + a] * x[i];
        h[a - from] = s;
    }
}

/* Compute y = scale x − Q h. */
FAST static void less(int64_t n, int64_t width, int64_t from, int64_t to, const double *q, const Lanes *h, double scale,
                      const Lanes *x, Lanes *y)
{
    for (int64_t i = 0; i < n; i++) {
        Lanes s = scale * x[i], t = {0};
        const double *row = q + i * width;
        int64_t a = from;
        for (; a + 2 <= to; a += 2) s -= row[a] * h[a - from], t += row[a + 1] * h[a - from + 1];
        if (a < to) s -= row[a] * h[a - from];
        y[i] = s - t;
    }
}

FAST static void norms(int64_t n, const Lanes *x, Lanes *size)
{
    Lanes squares = {0};
    for (int64_t i = 0; i < n; i++) squares += x[i] * x[i];
    for (int64_t c = 0; c < LANES; c++) (*size)[c] = sqrt(squares[c]);
}

/* Project x off V, and off the guards of a cluster that the cut splits. */
static void project(const Complement *s, const Lanes *split, Lanes *x, Lanes *h)
{
    const int64_t all = s->wanted + s->guards;
    gram(s->nodes, s->wanted, 0, s->wanted, s->vectors, x, h);
    less(s->nodes, s->wanted, 0, s->wanted, s->vectors, h, 1, x, x);
    if (!split) return;
    gram(s->nodes, all, s->wanted, all, s->known, x, h);
    for (int64_t a = 0; a < s->guards; a++) h[a] *= split[a];
    less(s->nodes, all, s->wanted, all, s->known, h, 1, x, x);
}

/* Compute y = (A − λ_c) x_c for each column. */
FAST static void shifted(const Complement *s, int64_t first, const Lanes *values, const Lanes *x, Lanes *y)
{
    const Rows_double a = s->rows;
    for (int64_t i = 0; i < s->nodes; i++) {
        const double diagonal = a.diagonal ? a.diagonal[first + i] : 1;
        Lanes sum = (diagonal - *values) * x[i], more = {0};
        int32_t e = a.crow[first + i];
        const int32_t end = a.crow[first + i + 1];
        for (; e + 2 <= end; e += 2)
            sum -= a.values[e] * x[a.col[e] - first], more += a.values[e + 1] * x[a.col[e + 1] - first];
        if (e < end) sum -= a.values[e] * x[a.col[e] - first];
        y[i] = sum - more;
    }
}

/* Compute y = P (A − λ_c) x_c for each column. */
INLINE void image(const Complement *s, int64_t first, const Lanes *values, const Lanes *split, const Lanes *x, Lanes *y,
                  Lanes *h)
{
    shifted(s, first, values, x, y);
    project(s, split, y, h);
}

/* Compute y = rest x + known scales knownᵀ x. */
static void precondition(const Complement *s, const Lanes *scales, const Lanes *x, Lanes *y, Lanes *h)
{
    const int64_t all = s->wanted + s->guards;
    gram(s->nodes, all, 0, all, s->known, x, h);
    for (int64_t a = 0; a < all; a++) h[a] *= -scales[a];
    less(s->nodes, all, 0, all, s->known, h, *s->rest, x, y);
}

/* Compute the residuals at which columns of z count as solved. */
INLINE void allowed(const Complement *s, Lanes enough, Lanes size, const Lanes *z, Lanes *out)
{
    norms(s->nodes, z, out);
    for (int64_t c = 0; c < LANES; c++) {
        const double noise = s->noise * size[c];
        double own = *s->round_off * (*out)[c];
        if (own > noise || isnan(noise)) own = noise;
        (*out)[c] = own > enough[c] || isnan(own) ? own : enough[c];
    }
}

/* Copy columns of an array (rows, k) from `first` on to lanes; lanes beyond the last column become zero. */
INLINE void lanes(int64_t rows, int64_t k, int64_t first, const double *from, Lanes *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < LANES; c++) to[i][c] = first + c < k ? from[i * k + first + c] : 0;
}

/* Copy the columns of y to x where `where` is true; zeros where y is NULL. */
INLINE void choose(int64_t n, const int *where, const Lanes *y, Lanes *x)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < LANES; c++)
            if (where[c]) x[i][c] = y ? y[i][c] : 0;
}

/* Compute r = goal − image(z). */
INLINE void residual(const Complement *s, int64_t first, const Lanes *values, const Lanes *split, const Lanes *goal,
                     const Lanes *z, Lanes *r, Lanes *h)
{
    image(s, first, values, split, z, r, h);
    for (int64_t i = 0; i < s->nodes; i++) r[i] = goal[i] - r[i];
}

/* Do what `torch_lapeig.eigen.gradient.cg.conjugate_gradients` does, for up to LANES columns from `column` on. `work`
   has room for 7 n + 3 (k + u) vectors. */
INLINE void solve(const Complement *s, int64_t first, int64_t column, const double *target, double *z_out,
                  double *left_out, Lanes *work)
{
    const int64_t n = s->nodes, k = s->wanted, all = k + s->guards;
    Lanes *goal = work, *best = goal + n, *z = best + n, *r = z + n, *way = r + n, *push = way + n, *fresh_r = push + n;
    Lanes *h = fresh_r + n, *scales = h + all, *split = scales + all;
    Lanes values, enough, size, left, now, may;
    double energy[LANES];
    int going[LANES], moving[LANES], stale = 0;
    lanes(n, k, column, target, goal);
    lanes(all, k, column, s->scales, scales);
    lanes(1, k, column, s->values, &values);
    lanes(1, k, column, s->enough, &enough);
    lanes(1, k, column, s->size, &size);
    if (s->split)
        lanes(s->guards, k, column, s->split, split);
    else
        split = 0;
    memset(best, 0, n * sizeof(Lanes));
    memset(way, 0, n * sizeof(Lanes));
    memcpy(r, goal, n * sizeof(Lanes));
    norms(n, goal, &left);
    precondition(s, scales, goal, z, h);
    allowed(s, enough, size, best, &may);
    for (int64_t c = 0; c < LANES; c++) energy[c] = INFINITY, going[c] = left[c] > may[c], moving[c] = !(left[c] > 0);
    choose(n, moving, 0, z);
    for (int64_t step = 0; step <= s->limit; step++) {
        int any = 0;
        norms(n, r, &now);
        allowed(s, enough, size, z, &may);
        for (int64_t c = 0; c < LANES; c++) any |= moving[c] = going[c] && now[c] > 0.5 * may[c];
        if (step % s->replaced == 0 || step == s->limit || !any) {
            int better[LANES], lost[LANES], is_going = 0, is_lost = 0, has_gained = 0;
            residual(s, first, &values, split, goal, z, r, h);
            norms(n, r, &now);
            for (int64_t c = 0; c < LANES; c++) {
                better[c] = now[c] < left[c];
                has_gained |= going[c] && now[c] < 0.9 * left[c];
                if (better[c]) left[c] = now[c];
            }
            choose(n, better, z, best);
            allowed(s, enough, size, best, &may);
            for (int64_t c = 0; c < LANES; c++) {
                is_going |= going[c] = left[c] > may[c];
                is_lost |= lost[c] = going[c] && !(now[c] <= 1e3 * left[c]);
            }
            stale = has_gained || step == 0 ? 0 : stale + 1;
            if (!is_going || stale > s->patience || step == s->limit) break;
            if (is_lost) {
                choose(n, lost, best, z);
                choose(n, lost, 0, way);
                residual(s, first, &values, split, goal, z, r, h);
            }
            for (int64_t c = 0; c < LANES; c++) {
                if (!going[c] || lost[c]) energy[c] = INFINITY;
                moving[c] = going[c];
            }
        }
        Lanes fresh = {0}, curve = {0}, turn, length;
        precondition(s, scales, r, fresh_r, h);
        for (int64_t i = 0; i < n; i++) fresh += r[i] * fresh_r[i];
        for (int64_t c = 0; c < LANES; c++) {
            turn[c] = isfinite(energy[c]) && energy[c] > 0 ? fresh[c] / energy[c] : 0;
            energy[c] = fresh[c];
        }
        for (int64_t i = 0; i < n; i++) way[i] = fresh_r[i] + turn * way[i];
        image(s, first, &values, split, way, push, h);
        for (int64_t i = 0; i < n; i++) curve += way[i] * push[i];
        for (int64_t c = 0; c < LANES; c++) length[c] = moving[c] && curve[c] > 0 ? fresh[c] / curve[c] : 0;
        for (int64_t i = 0; i < n; i++) z[i] += length * way[i], r[i] -= length * push[i];
    }
    for (int64_t c = 0; c < LANES && column + c < k; c++) {
        left_out[column + c] = left[c];
        for (int64_t i = 0; i < n; i++) z_out[i * k + column + c] = best[i][c];
    }
}

/* Solve all columns of the graphs of a part, one graph after the other. */
FAST static void complement_of(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Complement *batch = task;
    for (int64_t g = batch->graphs * part / parts; g < batch->graphs * (part + 1) / parts; g++) {
        Complement s = *batch;
        const int64_t n = s.nodes, k = s.wanted, u = s.guards;
        s.vectors += g * n * k, s.known += g * n * (k + u), s.values += g * k, s.scales += g * (k + u) * k;
        s.rest += g, s.enough += g * k, s.size += g * k, s.round_off += g;
        if (s.split) s.split += g * u * k;
        Lanes *work = (Lanes *)s.work + thread * (7 * n + 3 * (k + u));
        for (int64_t column = 0; column < k; column += LANES)
            solve(&s, g * n, column, s.target + g * n * k, s.solution + g * n * k, s.residuals + g * k, work);
    }
}

void complement(Complement *batch, int64_t parts, int64_t threads)
{
    share(complement_of, batch, parts, threads);
}
