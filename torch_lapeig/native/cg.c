/* Conjugate gradients on the complement of eigenvectors (Hestenes & Stiefel 1952), LANES columns side by side, each with
   its own shift: what `torch_lapeig.eigen.gradient.cg.conjugate_gradients` does.
     1. Begin at the preconditioned right-hand side (`begin_columns`).
     2. Every `replaced` steps compute true residuals, keep the best iterates, and begin anew from the best where a
        column diverges (`is_worth_going_on`). SciPy's `cg` trusts the recurrence, whose residual may part from the true.
     3. Make a step along the conjugate direction (`descend`). */

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

/* Some columns of a graph, whose first node is `node`: the right-hand sides, the best iterates, iterates, residuals,
   directions, their images and preconditioned residuals; room for a number of each known vector, and coefficients of
   these. `split` may be NULL. */
typedef struct {
    const Complement *task;
    int64_t node, all;
    Lanes *goal, *best, *z, *r, *way, *push, *fresh, *dots, *scales, *split;
    Lanes values, enough, size, left, may;
    double energy[LANES];
    int going[LANES], moving[LANES], stale;
} Columns;

/* Project x off V, and off the guards of a cluster that the cut splits. */
static void project(const Columns *own, Lanes *x)
{
    const Complement *task = own->task;
    const int64_t n = task->nodes, wanted = task->wanted, all = own->all;
    gram(n, wanted, 0, wanted, task->vectors, x, own->dots);
    less(n, wanted, 0, wanted, task->vectors, own->dots, 1, x, x);
    if (!own->split) return;
    gram(n, all, wanted, all, task->known, x, own->dots);
    for (int64_t j = 0; j < task->guards; j++) own->dots[j] *= own->split[j];
    less(n, all, wanted, all, task->known, own->dots, 1, x, x);
}

/* Compute y = (A − λ) x. */
FAST static void shifted(const Columns *own, const Lanes *x, Lanes *y)
{
    const Rows_double rows = own->task->rows;
    const int64_t first = own->node;
    const Lanes values = own->values;
    for (int64_t i = 0; i < own->task->nodes; i++) {
        const double diagonal = rows.diagonal ? rows.diagonal[first + i] : 1;
        Lanes sum = (diagonal - values) * x[i], more = {0};
        int32_t edge = rows.crow[first + i];
        const int32_t end = rows.crow[first + i + 1];
        for (; edge + 2 <= end; edge += 2)
            sum -= rows.values[edge] * x[rows.col[edge] - first],
                more += rows.values[edge + 1] * x[rows.col[edge + 1] - first];
        if (edge < end) sum -= rows.values[edge] * x[rows.col[edge] - first];
        y[i] = sum - more;
    }
}

/* Compute y = P (A − λ) x. */
static void image(const Columns *own, const Lanes *x, Lanes *y)
{
    shifted(own, x, y);
    project(own, y);
}

/* Compute r = goal − image(z). */
INLINE void residual(const Columns *own)
{
    image(own, own->z, own->r);
    for (int64_t i = 0; i < own->task->nodes; i++) own->r[i] = own->goal[i] - own->r[i];
}

/* Compute y = rest x + known scales knownᵀ x. */
static void precondition(const Columns *own, const Lanes *x, Lanes *y)
{
    const Complement *task = own->task;
    gram(task->nodes, own->all, 0, own->all, task->known, x, own->dots);
    for (int64_t j = 0; j < own->all; j++) own->dots[j] *= -own->scales[j];
    less(task->nodes, own->all, 0, own->all, task->known, own->dots, *task->rest, x, y);
}

/* Compute the residuals at which columns of z count as solved, in `may`. */
INLINE void allow(Columns *own, const Lanes *z)
{
    norms(own->task->nodes, z, &own->may);
    for (int64_t j = 0; j < LANES; j++) {
        const double noise = own->task->noise * own->size[j];
        double round_off = *own->task->round_off * own->may[j];
        if (round_off > noise || isnan(noise)) round_off = noise;
        own->may[j] = round_off > own->enough[j] || isnan(round_off) ? round_off : own->enough[j];
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

/* Count the vectors that `solve` works with. */
INLINE int64_t vectors_of(const Complement *task)
{
    return 7 * task->nodes + 3 * (task->wanted + task->guards);
}

/* Step 1, for up to LANES columns from `column` on. */
INLINE void begin_columns(Columns *own, int64_t column, const double *target, Lanes *room)
{
    const Complement *task = own->task;
    const int64_t n = task->nodes, wanted = task->wanted;
    Lanes **const blocks[] = {&own->goal, &own->best, &own->z, &own->r, &own->way, &own->push, &own->fresh};
    for (int64_t k = 0; k < 7; k++, room += n) *blocks[k] = room;
    own->dots = room, own->scales = room + own->all, own->split = task->split ? own->scales + own->all : 0;
    lanes(n, wanted, column, target, own->goal);
    lanes(own->all, wanted, column, task->scales, own->scales);
    lanes(1, wanted, column, task->values, &own->values);
    lanes(1, wanted, column, task->enough, &own->enough);
    lanes(1, wanted, column, task->size, &own->size);
    if (own->split) lanes(task->guards, wanted, column, task->split, own->split);
    memset(own->best, 0, n * sizeof(Lanes)), memset(own->way, 0, n * sizeof(Lanes));
    memcpy(own->r, own->goal, n * sizeof(Lanes));
    norms(n, own->goal, &own->left);
    precondition(own, own->goal, own->z);
    allow(own, own->best);
    for (int64_t j = 0; j < LANES; j++) {
        own->energy[j] = INFINITY;
        own->going[j] = own->left[j] > own->may[j], own->moving[j] = !(own->left[j] > 0);
    }
    choose(n, own->moving, 0, own->z);
    own->stale = 0;
}

/* Step 2. Return 0 where all columns are solved, or gain no more. */
INLINE int is_worth_going_on(Columns *own, int is_first)
{
    const int64_t n = own->task->nodes;
    int better[LANES], lost[LANES], is_going = 0, is_lost = 0, has_gained = 0;
    Lanes now;
    residual(own);
    norms(n, own->r, &now);
    for (int64_t j = 0; j < LANES; j++) {
        better[j] = now[j] < own->left[j];
        has_gained |= own->going[j] && now[j] < 0.9 * own->left[j];
        if (better[j]) own->left[j] = now[j];
    }
    choose(n, better, own->z, own->best);
    allow(own, own->best);
    for (int64_t j = 0; j < LANES; j++) {
        is_going |= own->going[j] = own->left[j] > own->may[j];
        is_lost |= lost[j] = own->going[j] && !(now[j] <= 1e3 * own->left[j]);
    }
    own->stale = has_gained || is_first ? 0 : own->stale + 1;
    if (!is_going || own->stale > own->task->patience) return 0;
    if (is_lost) {
        choose(n, lost, own->best, own->z);
        choose(n, lost, 0, own->way);
        residual(own);
    }
    for (int64_t j = 0; j < LANES; j++) {
        if (!own->going[j] || lost[j]) own->energy[j] = INFINITY;
        own->moving[j] = own->going[j];
    }
    return 1;
}

/* Step 3. */
INLINE void descend(Columns *own)
{
    const int64_t n = own->task->nodes;
    Lanes *const z = own->z, *const r = own->r, *const way = own->way, *const push = own->push,
                 *const fresh = own->fresh;
    Lanes energy = {0}, curve = {0}, turn, length;
    precondition(own, r, fresh);
    for (int64_t i = 0; i < n; i++) energy += r[i] * fresh[i];
    for (int64_t j = 0; j < LANES; j++) {
        turn[j] = isfinite(own->energy[j]) && own->energy[j] > 0 ? energy[j] / own->energy[j] : 0;
        own->energy[j] = energy[j];
    }
    for (int64_t i = 0; i < n; i++) way[i] = fresh[i] + turn * way[i];
    image(own, way, push);
    for (int64_t i = 0; i < n; i++) curve += way[i] * push[i];
    for (int64_t j = 0; j < LANES; j++) length[j] = own->moving[j] && curve[j] > 0 ? energy[j] / curve[j] : 0;
    for (int64_t i = 0; i < n; i++) z[i] += length * way[i], r[i] -= length * push[i];
}

INLINE void solve(Columns *own)
{
    const Complement *task = own->task;
    for (int64_t step = 0; step <= task->limit; step++) {
        int any = 0;
        Lanes now;
        norms(task->nodes, own->r, &now);
        allow(own, own->z);
        for (int64_t j = 0; j < LANES; j++) any |= own->moving[j] = own->going[j] && now[j] > 0.5 * own->may[j];
        const int is_due = step % task->replaced == 0 || step == task->limit || !any;
        if (is_due && !is_worth_going_on(own, step == 0)) return;
        if (step < task->limit) descend(own);
    }
}

/* Solve all columns of the graphs of a part, one graph after the other. */
FAST static void complement_of(void *data, int64_t part, int64_t parts, double *room)
{
    const Complement *batch = data;
    for (int64_t graph = batch->graphs * part / parts; graph < batch->graphs * (part + 1) / parts; graph++) {
        Complement task = *batch;
        const int64_t n = task.nodes, wanted = task.wanted, guards = task.guards, block = graph * n * wanted;
        task.vectors += block, task.known += graph * n * (wanted + guards), task.values += graph * wanted;
        task.scales += graph * (wanted + guards) * wanted, task.rest += graph, task.round_off += graph;
        task.enough += graph * wanted, task.size += graph * wanted;
        if (task.split) task.split += graph * guards * wanted;
        for (int64_t column = 0; column < wanted; column += LANES) {
            Columns own = {.task = &task, .node = graph * n, .all = wanted + guards};
            begin_columns(&own, column, task.target + block, (Lanes *)room);
            solve(&own);
            for (int64_t j = 0; j < LANES && column + j < wanted; j++) {
                task.residuals[graph * wanted + column + j] = own.left[j];
                for (int64_t i = 0; i < n; i++) task.solution[block + i * wanted + column + j] = own.best[i][j];
            }
        }
    }
}

int64_t complement(Complement *batch, int64_t parts, int64_t threads)
{
    return share(complement_of, batch, parts, threads, LANES * vectors_of(batch));
}
