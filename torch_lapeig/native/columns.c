/* Loops over rows for as many columns as a vector V has. Included by `products.c` for each V. */

/* Compute the columns of `count` vectors, which begin at `at` and may overlap. */
INLINE void JOIN(pass, V)(const NAME(Product) * task, const int64_t *at, const int count)
{
    for (int64_t i = task->start; i < task->stop; i++) {
        const REAL *const mine = task->y + (i - task->base) * task->y_step;
        V sums[4] = {{0}}, more[4] = {{0}};
        int32_t edge = task->rows.crow[i];
        const int32_t end = task->rows.crow[i + 1];
        for (; edge + 2 <= end; edge += 2) {
            const REAL *neighbor = task->y + (task->rows.col[edge] - task->base) * task->y_step;
            const REAL *following = task->y + (task->rows.col[edge + 1] - task->base) * task->y_step;
            for (int k = 0; k < count; k++) {
                sums[k] += task->rows.values[edge] * *(const V *)(neighbor + at[k]);
                more[k] += task->rows.values[edge + 1] * *(const V *)(following + at[k]);
            }
        }
        if (edge < end) {
            const REAL *neighbor = task->y + (task->rows.col[edge] - task->base) * task->y_step;
            for (int k = 0; k < count; k++) sums[k] += task->rows.values[edge] * *(const V *)(neighbor + at[k]);
        }
        const REAL diagonal = task->is_system ? (task->rows.diagonal ? task->rows.diagonal[i] : 1) - task->centre : 0;
        for (int k = 0; k < count; k++) {
            sums[k] += more[k];
            if (task->is_system) sums[k] = diagonal * *(const V *)(mine + at[k]) - sums[k];
            sums[k] *= task->times;
            if (task->other)
                sums[k] += task->plus * *(const V *)(task->other + (i - task->base) * task->other_step + at[k]);
        }
        for (int k = 0; k < count; k++) *(V *)(task->out + (i - task->base) * task->out_step + at[k]) = sums[k];
    }
}

/* Compute the columns from `column` on in passes of up to four vectors; vectors of the last pass overlap. Return the first
   column that is left, where fewer are left than a vector has. */
INLINE int64_t JOIN(passes, V)(const NAME(Product) * task, int64_t column)
{
    const int64_t wide = sizeof(V) / sizeof(REAL);
    while (task->columns - column >= wide) {
        const int64_t left = task->columns - column, next = left < 4 * wide ? task->columns : column + 4 * wide;
        int64_t at[4];
        for (int k = 0; k < 4; k++) at[k] = column + k * wide < next - wide ? column + k * wide : next - wide;
        if (left > 3 * wide)
            JOIN(pass, V)(task, at, 4);
        else if (left > 2 * wide)
            JOIN(pass, V)(task, at, 3);
        else if (left > wide)
            JOIN(pass, V)(task, at, 2);
        else
            JOIN(pass, V)(task, at, 1);
        column = next;
    }
    return column;
}

/* Compute row i of the tension and return its energy. The last vector overlaps the one before; each column counts
   once. */
INLINE double JOIN(tension, V)(const NAME(Tension) * task, int64_t i)
{
    const int64_t wide = sizeof(V) / sizeof(REAL);
    double sum = 0;
    for (int64_t next = 0; next < task->columns; next += wide) {
        const int64_t column = next + wide <= task->columns ? next : task->columns - wide;
        const V own = *(const V *)(task->y + i * task->y_step + column);
        V pull = {0};
        for (int32_t edge = task->crow[i], end = task->crow[i + 1]; edge < end;) {
            V energy = {0};
            for (const int32_t stop = end - edge < EDGES_IN_FLOAT ? end : edge + EDGES_IN_FLOAT; edge < stop; edge++) {
                const V apart = *(const V *)(task->y + task->col[edge] * task->y_step + column) - own,
                        part = task->values[edge] * apart;
                pull += part, energy += part * apart;
            }
            for (int64_t k = next - column; k < wide; k++) sum += energy[k];
        }
        *(V *)(task->out + i * task->columns + column) = pull;
    }
    return sum;
}
