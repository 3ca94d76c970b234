/* Numbers of edges and of pairs: inner products, squared lengths, tension. Included by `kernels.c` for float and for
   double. */

#include "kernels.h"

/* Return u · v of m numbers, or ‖u − v‖². */
INLINE REAL NAME(between)(const REAL *u, const REAL *v, int64_t m, const int is_length)
{
    const int64_t wide = WIDTH / sizeof(REAL);
    NAME(Wide) sums = {0};
    NAME(Short) rest = {0};
    REAL sum = 0;
    int64_t i = 0;
    for (; i + wide <= m; i += wide) {
        const NAME(Wide) left = *(const NAME(Wide) *)(u + i), right = *(const NAME(Wide) *)(v + i);
        sums += is_length ? (left - right) * (left - right) : left * right;
    }
    if (i + wide / 2 <= m) {
        const NAME(Short) left = *(const NAME(Short) *)(u + i), right = *(const NAME(Short) *)(v + i);
        rest = is_length ? (left - right) * (left - right) : left * right, i += wide / 2;
    }
    for (; i < m; i++) sum += is_length ? (u[i] - v[i]) * (u[i] - v[i]) : u[i] * v[i];
    for (int64_t j = 0; j < wide; j++) sum += sums[j];
    for (int64_t j = 0; j < wide / 2; j++) sum += rest[j];
    return sum;
}

INLINE void NAME(edge_dot_or_sqdist)(const NAME(Edges) * task, int64_t part, int64_t parts, const int is_length)
{
    for (int64_t i = task->rows * part / parts; i < task->rows * (part + 1) / parts; i++)
        for (int32_t edge = task->crow[i]; edge < task->crow[i + 1]; edge++) {
            const REAL *other =
                is_length ? task->x + task->col[edge] * task->x_step : task->y + task->col[edge] * task->y_step;
            task->out[edge] = NAME(between)(task->x + i * task->x_step, other, task->columns, is_length);
        }
}

FAST static void NAME(edges_of)(void *data, int64_t part, int64_t parts, double *room)
{
    (void)room;
    const NAME(Edges) *task = data;
    if (task->y)
        NAME(edge_dot_or_sqdist)(task, part, parts, 0);
    else
        NAME(edge_dot_or_sqdist)(task, part, parts, 1);
}

int64_t NAME(edges)(NAME(Edges) * task, int64_t parts, int64_t threads)
{
    return share(NAME(edges_of), task, parts, threads, 0);
}

FAST static void NAME(pairs_of)(void *data, int64_t part, int64_t parts, double *room)
{
    (void)room;
    const NAME(Pairs) *task = data;
    for (int64_t pair = task->count * part / parts; pair < task->count * (part + 1) / parts; pair++) {
        const REAL *left = task->x + (task->i ? task->i[pair] : pair) * task->x_step,
                   *right = task->y + (task->i ? task->j[pair] : 0) * task->y_step;
        task->out[pair] = NAME(between)(left, right, task->columns, 1);
    }
}

int64_t NAME(pairs)(NAME(Pairs) * task, int64_t parts, int64_t threads)
{
    return share(NAME(pairs_of), task, parts, threads, 0);
}

FAST static void NAME(tension_of)(void *data, int64_t part, int64_t parts, double *room)
{
    (void)room;
    const NAME(Tension) *task = data;
    for (int64_t i = task->rows * part / parts; i < task->rows * (part + 1) / parts; i++) {
        double energy = 0;
        if (task->columns >= (int64_t)(WIDTH / sizeof(REAL)))
            energy = JOIN(tension, NAME(Wide))(task, i);
        else if (task->columns >= (int64_t)(16 / sizeof(REAL)))
            energy = JOIN(tension, NAME(Short))(task, i);
        else
            for (int64_t column = 0; column < task->columns; column++) {
                REAL pull = 0;
                for (int32_t edge = task->crow[i]; edge < task->crow[i + 1]; edge++) {
                    const REAL apart =
                        task->y[task->col[edge] * task->y_step + column] - task->y[i * task->y_step + column];
                    pull += task->values[edge] * apart, energy += task->values[edge] * apart * apart;
                }
                task->out[i * task->columns + column] = pull;
            }
        task->energy[i] = energy;
    }
}

int64_t NAME(tension)(NAME(Tension) * task, int64_t parts, int64_t threads)
{
    return share(NAME(tension_of), task, parts, threads, 0);
}
