/* Products of sparse rows with blocks of columns. Included by `kernels.c` for float and for double. */

#include "kernels.h"

#define V NAME(Wide)
#include "columns.c"
#undef V
#define V NAME(Short)
#include "columns.c"
#undef V

/* Compute the columns from c on, which are fewer than a vector of 16 bytes has: at most three of float, or one of
   double. */
INLINE void NAME(pass_rest)(const NAME(Product) * t, int64_t c)
{
    const int64_t first = c, second = c + 1 < t->columns ? c + 1 : c, third = t->columns - 1; /* may be one column */
    for (int64_t i = t->start; i < t->stop; i++) {
        const REAL *const own = t->y + (i - t->base) * t->y_step;
        REAL sums[3] = {0}, mine[3] = {0};
        if (t->is_system) mine[0] = own[first], mine[1] = own[second], mine[2] = own[third];
        for (int32_t e = t->rows.crow[i]; e < t->rows.crow[i + 1]; e++) {
            const REAL value = t->rows.values[e], *const y = t->y + (t->rows.col[e] - t->base) * t->y_step;
            sums[0] += value * y[first];
            if (sizeof(REAL) == 8) continue;
            sums[1] += value * y[second], sums[2] += value * y[third];
        }
        REAL *const out = t->out + (i - t->base) * t->out_step;
        const REAL diagonal = t->is_system ? (t->rows.diagonal ? t->rows.diagonal[i] : 1) - t->centre : 0;
        for (int64_t k = c; k < t->columns; k++) {
            const int at = k == first ? 0 : k == third ? 2 : 1;
            REAL sum = t->is_system ? diagonal * mine[at] - sums[at] : sums[at];
            sum *= t->times;
            if (t->other) sum += t->plus * t->other[(i - t->base) * t->other_step + k];
            out[k] = sum;
        }
    }
}

/* Compute a part of the rows. A wide block takes several passes, so it goes over few rows at a time: their neighbours
   are still in the cache at the next pass. */
FAST static void NAME(product_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    NAME(Product) t = *(const NAME(Product) *)task;
    const int64_t all = t.stop - t.start, first = t.start + all * part / parts,
                  end = t.start + all * (part + 1) / parts;
    const int64_t rows = t.columns <= 128 / (int64_t)sizeof(REAL) ? all : 16;
    (void)thread;
    for (t.start = first; t.start < end; t.start = t.stop) {
        t.stop = t.start + rows < end ? t.start + rows : end;
        int64_t c = 0;
        c = JOIN(passes, NAME(Wide))(&t, c);
        c = JOIN(passes, NAME(Short))(&t, c);
        if (c < t.columns) NAME(pass_rest)(&t, c);
    }
}

void NAME(product)(NAME(Product) * t, int64_t parts, int64_t threads)
{
    share(NAME(product_of), t, parts, threads);
}
