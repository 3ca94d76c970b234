/* Products of sparse rows with blocks of columns. Included by `kernels.c` for float and for double. */

#include "kernels.h"

#define V NAME(Wide)
#include "columns.c"
#undef V
#define V NAME(Short)
#include "columns.c"
#undef V

/* Compute the columns from `column` on, which are fewer than a vector of 16 bytes has: at most three of float, or one of
   double. */
INLINE void NAME(pass_rest)(const NAME(Product) * task, int64_t column)
{
    const int64_t first = column, second = column + 1 < task->columns ? column + 1 : column,
                  third = task->columns - 1; /* may be one column */
    for (int64_t i = task->start; i < task->stop; i++) {
        const REAL *const own = task->y + (i - task->base) * task->y_step;
        REAL sums[3] = {0}, mine[3] = {0};
        if (task->is_system) mine[0] = own[first], mine[1] = own[second], mine[2] = own[third];
        for (int32_t edge = task->rows.crow[i]; edge < task->rows.crow[i + 1]; edge++) {
            const REAL value = task->rows.values[edge], *const neighbor =
                                                            task->y +
                                                            (task->rows.col[edge] - task->base) * task->y_step;
            sums[0] += value * neighbor[first];
            if (sizeof(REAL) == 8) continue;
            sums[1] += value * neighbor[second], sums[2] += value * neighbor[third];
        }
        REAL *const out = task->out + (i - task->base) * task->out_step;
        const REAL diagonal = task->is_system ? (task->rows.diagonal ? task->rows.diagonal[i] : 1) - task->centre : 0;
        for (int64_t k = column; k < task->columns; k++) {
            const int at = k == first ? 0 : k == third ? 2 : 1;
            REAL sum = task->is_system ? diagonal * mine[at] - sums[at] : sums[at];
            sum *= task->times;
            if (task->other) sum += task->plus * task->other[(i - task->base) * task->other_step + k];
            out[k] = sum;
        }
    }
}

/* Compute a part of the rows. A wide block takes several passes, so it goes over few rows at a time: their neighbours
   are still in the cache at the next pass. */
FAST static void NAME(product_of)(void *task, int64_t part, int64_t parts, double *room)
{
    NAME(Product) own = *(const NAME(Product) *)task;
    const int64_t all = own.stop - own.start, first = own.start + all * part / parts,
                  end = own.start + all * (part + 1) / parts;
    const int64_t rows = own.columns <= 128 / (int64_t)sizeof(REAL) ? all : 16;
    (void)room;
    for (own.start = first; own.start < end; own.start = own.stop) {
        own.stop = own.start + rows < end ? own.start + rows : end;
        int64_t column = 0;
        column = JOIN(passes, NAME(Wide))(&own, column);
        column = JOIN(passes, NAME(Short))(&own, column);
        if (column < own.columns) NAME(pass_rest)(&own, column);
    }
}

int64_t NAME(product)(NAME(Product) * task, int64_t parts, int64_t threads)
{
    return share(NAME(product_of), task, parts, threads, 0);
}
