/* Loops over rows for as many columns as a vector V has. Included by `products.c` for each V. */

/* Compute the columns of `count` vectors, which begin at `at` and may overlap. */
INLINE void JOIN(pass, V)(const NAME(Product) * t, const int64_t *at, const int count)
{
    for (int64_t i = t->start; i < t->stop; i++) {
        const REAL *const mine = t->y + (i - t->base) * t->y_step;
        V sums[4] = {{0}}, more[4] = {{0}};
        int32_t e = t->rows.crow[i];
        const int32_t end = t->rows.crow[i + 1];
        for (; e + 2 <= end; e += 2) {
            const REAL *y = t->y + (t->rows.col[e] - t->base) * t->y_step;
            const REAL *z = t->y + (t->rows.col[e + 1] - t->base) * t->y_step;
            for (int v = 0; v < count; v++) {
                sums[v] += t->rows.values[e] * *(const V *)(y + at[v]);
                more[v] += t->rows.values[e + 1] * *(const V *)(z + at[v]);
            }
        }
        if (e < end) {
            const REAL *y = t->y + (t->rows.col[e] - t->base) * t->y_step;
            for (int v = 0; v < count; v++) sums[v] += t->rows.values[e] * *(const V *)(y + at[v]);
        }
        const REAL diagonal = t->is_system ? (t->rows.diagonal ? t->rows.diagonal[i] : 1) - t->centre : 0;
        for (int v = 0; v < count; v++) {
            sums[v] += more[v];
            if (t->is_system) sums[v] = diagonal * *(const V *)(mine + at[v]) - sums[v];
            sums[v] *= t->times;
            if (t->other) sums[v] += t->plus * *(const V *)(t->other + (i - t->base) * t->other_step + at[v]);
        }
        for (int v = 0; v < count; v++) *(V *)(t->out + (i - t->base) * t->out_step + at[v]) = sums[v];
    }
}

/* Compute the columns from c on in passes of up to four vectors; vectors of the last pass overlap. Return the first
   column that is left, where fewer are left than a vector has. */
INLINE int64_t JOIN(passes, V)(const NAME(Product) * t, int64_t c)
{
    const int64_t wide = sizeof(V) / sizeof(REAL);
    while (t->columns - c >= wide) {
        const int64_t left = t->columns - c, next = left < 4 * wide ? t->columns : c + 4 * wide;
        int64_t at[4];
        for (int v = 0; v < 4; v++) at[v] = c + v * wide < next - wide ? c + v * wide : next - wide;
        if (left > 3 * wide)
            JOIN(pass, V)(t, at, 4);
        else if (left > 2 * wide)
            JOIN(pass, V)(t, at, 3);
        else if (left > wide)
            JOIN(pass, V)(t, at, 2);
        else
            JOIN(pass, V)(t, at, 1);
        c = next;
    }
    return c;
}

/* Compute row i of the tension and return its energy. The last vector overlaps the one before; each column counts
   once. */
INLINE double JOIN(tension, V)(const NAME(Tension) * t, int64_t i)
{
    const int64_t wide = sizeof(V) / sizeof(REAL);
    double sum = 0;
    for (int64_t next = 0; next < t->columns; next += wide) {
        const int64_t c = next + wide <= t->columns ? next : t->columns - wide;
        const V own = *(const V *)(t->y + i * t->y_step + c);
        V pull = {0};
        for (int32_t e = t->crow[i], end = t->crow[i + 1]; e < end;) {
            V energy = {0};
            for (const int32_t stop = end - e < EDGES_IN_FLOAT ? end : e + EDGES_IN_FLOAT; e < stop; e++) {
                const V apart = *(const V *)(t->y + t->col[e] * t->y_step + c) - own, part = t->values[e] * apart;
                pull += part, energy += part * apart;
            }
            for (int64_t l = next - c; l < wide; l++) sum += energy[l];
        }
        *(V *)(t->out + i * t->columns + c) = pull;
    }
    return sum;
}
