/* Loops over rows for as many columns as a vector V has. A part of `products.c`, once for each V. */

/* The columns of `count` vectors, which begin at `at` and may overlap; see Task. */
INLINE void JOIN(pass, V)(const NAME(Task) * t, const int64_t *at, const int count)
{
    for (int64_t i = t->from; i < t->to; i++) {
        const REAL *const mine = t->y + (i - t->base) * t->of_y;
        V sums[4] = {{0}}, more[4] = {{0}};
        int32_t e = t->a.crow[i];
        const int32_t end = t->a.crow[i + 1];
        for (; e + 2 <= end; e += 2) {
            const REAL *y = t->y + (t->a.col[e] - t->base) * t->of_y;
            const REAL *z = t->y + (t->a.col[e + 1] - t->base) * t->of_y;
            for (int v = 0; v < count; v++) {
                sums[v] += t->a.values[e] * *(const V *)(y + at[v]);
                more[v] += t->a.values[e + 1] * *(const V *)(z + at[v]);
            }
        }
        if (e < end) {
            const REAL *y = t->y + (t->a.col[e] - t->base) * t->of_y;
            for (int v = 0; v < count; v++) sums[v] += t->a.values[e] * *(const V *)(y + at[v]);
        }
        const REAL diagonal = t->mode == SYSTEM ? (t->a.diagonal ? t->a.diagonal[i] : 1) - t->centre : 0;
        for (int v = 0; v < count; v++) {
            sums[v] += more[v];
            if (t->mode == SYSTEM) sums[v] = diagonal * *(const V *)(mine + at[v]) - sums[v];
            sums[v] *= t->times;
            if (t->other) sums[v] += t->plus * *(const V *)(t->other + (i - t->base) * t->of_other + at[v]);
        }
        for (int v = 0; v < count; v++) *(V *)(t->out + (i - t->base) * t->of_out + at[v]) = sums[v];
    }
}

/* The columns from c on that vectors have, up to four at a time, those of the last pass as far as overlaps allow; the first
   that is left. */
INLINE int64_t JOIN(passes, V)(const NAME(Task) * t, int64_t c)
{
    const int64_t wide = sizeof(V) / sizeof(REAL);
    while (t->m - c >= wide) {
        const int64_t left = t->m - c, next = left < 4 * wide ? t->m : c + 4 * wide;
        int64_t at[4];
        for (int v = 0; v < 4; v++) at[v] = c + v * wide < next - wide ? c + v * wide : next - wide;
        if (left > 3 * wide) JOIN(pass, V)(t, at, 4);
        else if (left > 2 * wide) JOIN(pass, V)(t, at, 3);
        else if (left > wide) JOIN(pass, V)(t, at, 2);
        else JOIN(pass, V)(t, at, 1);
        c = next;
    }
    return c;
}

/* Row i of Tension, in vectors that overlap at its end; the energy of a column is counted once. */
INLINE double JOIN(tension, V)(const NAME(Tension) * t, int64_t i)
{
    const int64_t wide = sizeof(V) / sizeof(REAL);
    double sum = 0;
    for (int64_t next = 0; next < t->m; next += wide) {
        const int64_t c = next + wide <= t->m ? next : t->m - wide;
        const V own = *(const V *)(t->y + i * t->of_y + c);
        V pull = {0};
        for (int32_t e = t->crow[i], end = t->crow[i + 1]; e < end;) {
            V energy = {0};
            for (const int32_t stop = end - e < FEW_EDGES ? end : e + FEW_EDGES; e < stop; e++) {
                const V apart = *(const V *)(t->y + t->col[e] * t->of_y + c) - own, part = t->values[e] * apart;
                pull += part, energy += part * apart;
            }
            for (int64_t l = next - c; l < wide; l++) sum += energy[l];
        }
        *(V *)(t->out + i * t->m + c) = pull;
    }
    return sum;
}
