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
    int64_t c = 0;
    for (; c + wide <= m; c += wide) {
        const NAME(Wide) a = *(const NAME(Wide) *)(u + c), b = *(const NAME(Wide) *)(v + c);
        sums += is_length ? (a - b) * (a - b) : a * b;
    }
    if (c + wide / 2 <= m) {
        const NAME(Short) a = *(const NAME(Short) *)(u + c), b = *(const NAME(Short) *)(v + c);
        rest = is_length ? (a - b) * (a - b) : a * b, c += wide / 2;
    }
    for (; c < m; c++) sum += is_length ? (u[c] - v[c]) * (u[c] - v[c]) : u[c] * v[c];
    for (int64_t l = 0; l < wide; l++) sum += sums[l];
    for (int64_t l = 0; l < wide / 2; l++) sum += rest[l];
    return sum;
}

INLINE void NAME(of_edges)(const NAME(Edges) * t, int64_t part, int64_t parts, const int is_length)
{
    for (int64_t i = t->rows * part / parts; i < t->rows * (part + 1) / parts; i++)
        for (int32_t e = t->crow[i]; e < t->crow[i + 1]; e++) {
            const REAL *v = is_length ? t->x + t->col[e] * t->x_step : t->y + t->col[e] * t->y_step;
            t->out[e] = NAME(between)(t->x + i * t->x_step, v, t->columns, is_length);
        }
}

FAST static void NAME(edges_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    (void)thread;
    const NAME(Edges) *t = task;
    if (t->y)
        NAME(of_edges)(t, part, parts, 0);
    else
        NAME(of_edges)(t, part, parts, 1);
}

void NAME(edges)(NAME(Edges) * t, int64_t parts, int64_t threads)
{
    share(NAME(edges_of), t, parts, threads);
}

FAST static void NAME(pairs_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    (void)thread;
    const NAME(Pairs) *t = task;
    for (int64_t e = t->count * part / parts; e < t->count * (part + 1) / parts; e++) {
        const REAL *u = t->x + (t->i ? t->i[e] : e) * t->x_step, *v = t->y + (t->i ? t->j[e] : 0) * t->y_step;
        t->out[e] = NAME(between)(u, v, t->columns, 1);
    }
}

void NAME(pairs)(NAME(Pairs) * t, int64_t parts, int64_t threads)
{
    share(NAME(pairs_of), t, parts, threads);
}

FAST static void NAME(tension_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    (void)thread;
    const NAME(Tension) *t = task;
    for (int64_t i = t->rows * part / parts; i < t->rows * (part + 1) / parts; i++) {
        double energy = 0;
        if (t->columns >= (int64_t)(WIDTH / sizeof(REAL)))
            energy = JOIN(tension, NAME(Wide))(t, i);
        else if (t->columns >= (int64_t)(16 / sizeof(REAL)))
            energy = JOIN(tension, NAME(Short))(t, i);
        else
            for (int64_t c = 0; c < t->columns; c++) {
                REAL pull = 0;
                for (int32_t e = t->crow[i]; e < t->crow[i + 1]; e++) {
                    const REAL apart = t->y[t->col[e] * t->y_step + c] - t->y[i * t->y_step + c];
                    pull += t->values[e] * apart, energy += t->values[e] * apart * apart;
                }
                t->out[i * t->columns + c] = pull;
            }
        t->energy[i] = energy;
    }
}

void NAME(tension)(NAME(Tension) * t, int64_t parts, int64_t threads)
{
    share(NAME(tension_of), t, parts, threads);
}
