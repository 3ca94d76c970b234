/* Conjugate gradients on the complement of eigenvectors, LANES columns side by side. */

#include "kernels.h"

typedef Wide_double Lanes;

/* Compute h = Qᵀ x for columns `from` to `to` of Q (n, width). */
FAST static void gram(int64_t n, int64_t width, int64_t from, int64_t to, const double *q, const Lanes *x, Lanes *h)
{
    int64_t j = from;
    for (; j + 4 <= to; j += 4) {
        Lanes sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0};
        for (int64_t i = 0; i < n; i++) {
            const double *row = q + i * width + j;
            sum0 += row[0] * x[i], sum1 += row[1] * x[i], sum2 += row[2] * x[i], sum3 += row[3] * x[i];
        }
        h[j - from] = sum0, h[j - from + 1] = sum1, h[j - from + 2] = sum2, h[j - from + 3] = sum3;
    }
    for (; j < to; j++) {
        Lanes sum = {0};
        for (int64_t i = 0; i < n; i++) sum += q[i * width + j] * x[i];
        h[j - from] = sum;
    }
}

/* Compute y = scale x − Q h. */
FAST static void less(int64_t n, int64_t width, int64_t from, int64_t to, const double *q, const Lanes *h, double scale,
                      const Lanes *x, Lanes *y)
{
    for (int64_t i = 0; i < n; i++) {
        Lanes even = scale * x[i], odd = {0};
        const double *row = q + i * width;
        int64_t j = from;
        for (; j + 2 <= to; j += 2) even -= row[j] * h[j - from], odd += row[j + 1] * h[j - from + 1];
        if (j < to) even -= row[j] * h[j - from];
        y[i] = even - odd;
    }
}

FAST static void norms(int64_t n, const Lanes *x, Lanes *size)
{
    Lanes squares = {0};
    for (int64_t i = 0; i < n; i++) squares += x[i] * x[i];
    for (int64_t j = 0; j < LANES; j++) (*size)[j] = sqrt(squares[j]);
}

/* Project x off V, and off the guards of a cluster that the cut splits. h is room for a number of each. */
static void project(const Complement *task, const Lanes *split, Lanes *x, Lanes *h)
{
    const int64_t all = task->wanted + task->guards;
    gram(task->nodes, task->wanted, 0, task->wanted, task->vectors, x, h);
    less(task->nodes, task->wanted, 0, task->wanted, task->vectors, h, 1, x, x);
    if (!split) return;
    gram(task->nodes, all, task->wanted, all, task->known, x, h);
    for (int64_t j = 0; j < task->guards; j++) h[j] *= split[j];
    less(task->nodes, all, task->wanted, all, task->known, h, 1, x, x);
}

/* Compute y = (A − λ_c) x_c for each column. */
FAST static void shifted(const Complement *task, int64_t first, const Lanes *values, const Lanes *x, Lanes *y)
{
    const Rows_double rows = task->rows;
    for (int64_t i = 0; i < task->nodes; i++) {
        const double diagonal = rows.diagonal ? rows.diagonal[first + i] : 1;
        Lanes sum = (diagonal - *values) * x[i], more = {0};
        int32_t edge = rows.crow[first + i];
        const int32_t end = rows.crow[first + i + 1];
        for (; edge + 2 <= end; edge += 2)
            sum -= rows.values[edge] * x[rows.col[edge] - first],
                more += rows.values[edge + 1] * x[rows.col[edge + 1] - first];
        if (edge < end) sum -= rows.values[edge] * x[rows.col[edge] - first];
        y[i] = sum - more;
    }
}

/* Compute y = P (A − λ_c) x_c for each column. */
INLINE void image(const Complement *task, int64_t first, const Lanes *values, const Lanes *split, const Lanes *x,
                  Lanes *y, Lanes *h)
{
    shifted(task, first, values, x, y);
    project(task, split, y, h);
}

/* Compute y = rest x + known scales knownᵀ x. */
static void precondition(const Complement *task, const Lanes *scales, const Lanes *x, Lanes *y, Lanes *h)
{
    const int64_t all = task->wanted + task->guards;
    gram(task->nodes, all, 0, all, task->known, x, h);
    for (int64_t j = 0; j < all; j++) h[j] *= -scales[j];
    less(task->nodes, all, 0, all, task->known, h, *task->rest, x, y);
}

/* Compute the residuals at which columns of z count as solved. */
INLINE void allowed(const Complement *task, Lanes enough, Lanes size, const Lanes *z, Lanes *out)
{
    norms(task->nodes, z, out);
    for (int64_t j = 0; j < LANES; j++) {
        const double noise = task->noise * size[j];
        double own = *task->round_off * (*out)[j];
        if (own > noise || isnan(noise)) own = noise;
        (*out)[j] = own > enough[j] || isnan(own) ? own : enough[j];
    }
}

/* Copy columns of an array (rows, columns) from `first` on to lanes; lanes beyond the last column become zero. */
INLINE void lanes(int64_t rows, int64_t columns, int64_t first, const double *from, Lanes *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < LANES; j++) to[i][j] = first + j < columns ? from[i * columns + first + j] : 0;
}

/* Copy the columns of y to x where `where` is true; zeros where y is NULL. */
INLINE void choose(int64_t n, const int *where, const Lanes *y, Lanes *x)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < LANES; j++)
            if (where[j]) x[i][j] = y ? y[i][j] : 0;
}

/* Compute r = goal − image(z). */
INLINE void residual(const Complement *task, int64_t first, const Lanes *values, const Lanes *split, const Lanes *goal,
                     const Lanes *z, Lanes *r, Lanes *h)
{
    image(task, first, values, split, z, r, h);
    for (int64_t i = 0; i < task->nodes; i++) r[i] = goal[i] - r[i];
}

/* Count the vectors that `solve` works with. */
INLINE int64_t vectors_of(const Complement *task)
{
    return 7 * task->nodes + 3 * (task->wanted + task->guards);
}

/* Do what `torch_lapeig.eigen.gradient.cg.conjugate_gradients` does, for up to LANES columns from `column` on. */
INLINE void solve(const Complement *task, int64_t first, int64_t column, const double *target, double *z_out,
                  double *left_out, Lanes *work)
{
    const int64_t n = task->nodes, wanted = task->wanted, all = wanted + task->guards;
    Lanes *goal = work, *best = goal + n, *z = best + n, *r = z + n, *way = r + n, *push = way + n, *fresh_r = push + n;
    Lanes *h = fresh_r + n, *scales = h + all, *split = scales + all;
    Lanes values, enough, size, left, now, may;
    double energy[LANES];
    int going[LANES], moving[LANES], stale = 0;
    lanes(n, wanted, column, target, goal);
    lanes(all, wanted, column, task->scales, scales);
    lanes(1, wanted, column, task->values, &values);
    lanes(1, wanted, column, task->enough, &enough);
    lanes(1, wanted, column, task->size, &size);
    if (task->split)
        lanes(task->guards, wanted, column, task->split, split);
    else
        split = 0;
    memset(best, 0, n * sizeof(Lanes));
    memset(way, 0, n * sizeof(Lanes));
    memcpy(r, goal, n * sizeof(Lanes));
    norms(n, goal, &left);
    precondition(task, scales, goal, z, h);
    allowed(task, enough, size, best, &may);
    for (int64_t j = 0; j < LANES; j++) energy[j] = INFINITY, going[j] = left[j] > may[j], moving[j] = !(left[j] > 0);
    choose(n, moving, 0, z);
    for (int64_t step = 0; step <= task->limit; step++) {
        int any = 0;
        norms(n, r, &now);
        allowed(task, enough, size, z, &may);
        for (int64_t j = 0; j < LANES; j++) any |= moving[j] = going[j] && now[j] > 0.5 * may[j];
        if (step % task->replaced == 0 || step == task->limit || !any) {
            int better[LANES], lost[LANES], is_going = 0, is_lost = 0, has_gained = 0;
            residual(task, first, &values, split, goal, z, r, h);
            norms(n, r, &now);
            for (int64_t j = 0; j < LANES; j++) {
                better[j] = now[j] < left[j];
                has_gained |= going[j] && now[j] < 0.9 * left[j];
                if (better[j]) left[j] = now[j];
            }
            choose(n, better, z, best);
            allowed(task, enough, size, best, &may);
            for (int64_t j = 0; j < LANES; j++) {
                is_going |= going[j] = left[j] > may[j];
                is_lost |= lost[j] = going[j] && !(now[j] <= 1e3 * left[j]);
            }
            stale = has_gained || step == 0 ? 0 : stale + 1;
            if (!is_going || stale > task->patience || step == task->limit) break;
            if (is_lost) {
                choose(n, lost, best, z);
                choose(n, lost, 0, way);
                residual(task, first, &values, split, goal, z, r, h);
            }
            for (int64_t j = 0; j < LANES; j++) {
                if (!going[j] || lost[j]) energy[j] = INFINITY;
                moving[j] = going[j];
            }
        }
        Lanes fresh = {0}, curve = {0}, turn, length;
        precondition(task, scales, r, fresh_r, h);
        for (int64_t i = 0; i < n; i++) fresh += r[i] * fresh_r[i];
        for (int64_t j = 0; j < LANES; j++) {
            turn[j] = isfinite(energy[j]) && energy[j] > 0 ? fresh[j] / energy[j] : 0;
            energy[j] = fresh[j];
        }
        for (int64_t i = 0; i < n; i++) way[i] = fresh_r[i] + turn * way[i];
        image(task, first, &values, split, way, push, h);
        for (int64_t i = 0; i < n; i++) curve += way[i] * push[i];
        for (int64_t j = 0; j < LANES; j++) length[j] = moving[j] && curve[j] > 0 ? fresh[j] / curve[j] : 0;
        for (int64_t i = 0; i < n; i++) z[i] += length * way[i], r[i] -= length * push[i];
    }
    for (int64_t j = 0; j < LANES && column + j < wanted; j++) {
        left_out[column + j] = left[j];
        for (int64_t i = 0; i < n; i++) z_out[i * wanted + column + j] = best[i][j];
    }
}

/* Solve all columns of the graphs of a part, one graph after the other. */
FAST static void complement_of(void *task, int64_t part, int64_t parts, double *room)
{
    const Complement *batch = task;
    for (int64_t graph = batch->graphs * part / parts; graph < batch->graphs * (part + 1) / parts; graph++) {
        Complement own = *batch;
        const int64_t n = own.nodes, wanted = own.wanted, guards = own.guards;
        own.vectors += graph * n * wanted, own.known += graph * n * (wanted + guards), own.values += graph * wanted,
            own.scales += graph * (wanted + guards) * wanted;
        own.rest += graph, own.enough += graph * wanted, own.size += graph * wanted, own.round_off += graph;
        if (own.split) own.split += graph * guards * wanted;
        for (int64_t column = 0; column < wanted; column += LANES)
            solve(&own, graph * n, column, own.target + graph * n * wanted, own.solution + graph * n * wanted,
                  own.residuals + graph * wanted, (Lanes *)room);
    }
}

int64_t complement(Complement *batch, int64_t parts, int64_t threads)
{
    return share(complement_of, batch, parts, threads, LANES * vectors_of(batch));
}
