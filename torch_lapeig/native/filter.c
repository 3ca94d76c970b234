/* Chebyshev filters of blocks of columns: T_d(Ã) X by T_d+1 = 2 Ã T_d − T_d−1 (Zhou, Saad, Tiago & Chelikowsky 2006,
   section 2), in one product a step that scales, shifts and subtracts. SciPy has no filters. */

#include "kernels.h"

#define ROOM_OF_FILTER(n) (2 * (n) * (2 * LINE + 1)) /* numbers that a thread works with */

/* Copy `width` numbers of each of n rows. */
INLINE void copy_rows(int64_t n, int64_t width, const double *x, int64_t of_x, double *out, int64_t of_out)
{
    for (int64_t i = 0; i < n; i++) memcpy(out + i * of_out, x + i * of_x, width * sizeof(double));
}

/* Filter some columns of one graph in a block of their own: as many as two lines of the cache hold. */
INLINE void filter_columns(const Filter *task, int64_t graph, int64_t first, int64_t width, double *room)
{
    const int64_t n = task->nodes, begin = graph * n * task->columns + first;
    double *old = room, *new = room + n * width;
    Product_double product = {.rows = task->rows, .is_system = 1, .start = graph * n, .base = graph * n};
    product.stop = product.start + n, product.columns = product.y_step = product.other_step = product.out_step = width;
    copy_rows(n, width, task->x + begin, task->columns, old, width);
    product.y = old, product.out = new, product.times = task->scale[graph] / 2, product.centre = task->centre[graph];
    product_of_double(&product, 0, 1, 0);
    product.times = task->scale[graph], product.plus = -1;
    for (int64_t step = 1; step < task->degree[graph]; step++) {
        product.y = new, product.other = product.out = old;
        product_of_double(&product, 0, 1, 0);
        double *next = old;
        old = new, new = next;
    }
    copy_rows(n, width, new, width, task->out + begin, task->columns);
}

FAST static void filter_of(void *data, int64_t part, int64_t parts, double *room)
{
    const Filter *task = data;
    const int64_t n = task->nodes, m = task->columns - task->first, all = task->graphs * task->groups;
    for (int64_t unit = all * part / parts; unit < all * (part + 1) / parts; unit++) {
        const int64_t graph = unit / task->groups, group = unit % task->groups,
                      whole = (m + LINE - 2) / LINE; /* no column alone */
        const int64_t next = whole * (group + 1) / task->groups * LINE, end = group + 1 < task->groups ? next : m;
        int64_t at = whole * group / task->groups * LINE;
        if (at == 0)
            copy_rows(n, task->first, task->x + graph * n * task->columns, task->columns,
                      task->out + graph * n * task->columns, task->columns);
        for (int64_t width; at < end; at += width) {
            width = end - at <= 2 * LINE + 1 ? end - at : 2 * LINE;
            filter_columns(task, graph, task->first + at, width, room);
        }
    }
}

static int64_t filter(Filter *task, int64_t parts, int64_t threads)
{
    return share(filter_of, task, parts, threads, ROOM_OF_FILTER(task->nodes));
}
