/* Chebyshev filters of blocks of columns. */

#include "kernels.h"

#define ROOM_OF_FILTER(n) (2 * (n) * (2 * LINE + 1)) /* numbers that a thread writes beside the answer */

/* Copy `width` numbers of each of n rows. */
INLINE void copy_rows(int64_t n, int64_t width, const double *x, int64_t of_x, double *out, int64_t of_out)
{
    for (int64_t i = 0; i < n; i++) memcpy(out + i * of_out, x + i * of_x, width * sizeof(double));
}

/* Filter some columns of one graph in a block of their own: as many as two lines of the cache hold. */
INLINE void filter_columns(const Filter *f, int64_t g, int64_t first, int64_t width, double *room)
{
    const int64_t n = f->nodes, begin = g * n * f->columns + first;
    double *old = room, *new = room + n * width;
    Product_double t = {
        .rows = f->rows, .is_system = 1, .start = g * n, .stop = g * n + n, .base = g * n, .columns = width};
    t.y_step = t.other_step = t.out_step = width;
    copy_rows(n, width, f->x + begin, f->columns, old, width);
    t.y = old, t.out = new, t.times = f->scale[g] / 2, t.centre = f->centre[g], t.other = 0;
    product_of_double(&t, 0, 1, 0);
    t.times = f->scale[g], t.plus = -1;
    for (int64_t step = 1; step < f->degree[g]; step++) {
        t.y = new, t.other = t.out = old;
        product_of_double(&t, 0, 1, 0);
        double *next = old;
        old = new, new = next;
    }
    copy_rows(n, width, new, width, f->out + begin, f->columns);
}

FAST static void filter_of(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Filter *f = task;
    const int64_t n = f->nodes, m = f->columns - f->first, all = f->graphs * f->groups;
    double *room = f->work + thread * ROOM_OF_FILTER(n);
    for (int64_t u = all * part / parts; u < all * (part + 1) / parts; u++) {
        const int64_t g = u / f->groups, group = u % f->groups, whole = (m + LINE - 2) / LINE; /* no column alone */
        const int64_t next = whole * (group + 1) / f->groups * LINE, end = group + 1 < f->groups ? next : m;
        int64_t at = whole * group / f->groups * LINE;
        if (at == 0)
            copy_rows(n, f->first, f->x + g * n * f->columns, f->columns, f->out + g * n * f->columns, f->columns);
        for (int64_t width; at < end; at += width) {
            width = end - at <= 2 * LINE + 1 ? end - at : 2 * LINE;
            filter_columns(f, g, f->first + at, width, room);
        }
    }
}

void filter(Filter *f, int64_t parts, int64_t threads)
{
    share(filter_of, f, parts, threads);
}
