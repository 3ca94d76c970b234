/* Loops over rows for as many columns as a vector V has. A part of `products.c`, once for each V. */

/* Columns p on, and if `two` as many from q on, which may overlap; see Task. */
INLINE void JOIN(pass, V)(const NAME(Task) * t, int64_t p, int64_t q, const int two)
{
    for (int64_t i = t->from; i < t->to; i++) {
        V a = {0}, b = {0}, c = {0}, d = {0}, mine = {0}, my = {0};
        int32_t e = t->a.crow[i];
        const int32_t end = t->a.crow[i + 1];
        if (t->mode != MATRIX) {
            mine = *(const V *)(t->y + (i - t->base) * t->of_y + p);
            if (two) my = *(const V *)(t->y + (i - t->base) * t->of_y + q);
        }
        for (; e + 2 <= end; e += 2) {
            const REAL *y = t->y + (t->a.col[e] - t->base) * t->of_y;
            const REAL *z = t->y + (t->a.col[e + 1] - t->base) * t->of_y;
            a += t->a.values[e] * *(const V *)(y + p);
            c += t->a.values[e + 1] * *(const V *)(z + p);
            if (two) {
                b += t->a.values[e] * *(const V *)(y + q);
                d += t->a.values[e + 1] * *(const V *)(z + q);
            }
        }
        if (e < end) {
            const REAL *y = t->y + (t->a.col[e] - t->base) * t->of_y;
            a += t->a.values[e] * *(const V *)(y + p);
            if (two) b += t->a.values[e] * *(const V *)(y + q);
        }
        a += c, b += d;
        if (t->mode == SYSTEM) {
            const REAL diagonal = (t->a.diagonal ? t->a.diagonal[i] : 1) - t->centre;
            a = diagonal * mine - a, b = diagonal * my - b;
        }
        a *= t->times, b *= t->times;
        if (t->other) {
            const REAL *other = t->other + (i - t->base) * t->of_other;
            a += t->plus * *(const V *)(other + p);
            if (two) b += t->plus * *(const V *)(other + q);
        }
        REAL *out = t->out + (i - t->base) * t->of_out;
        *(V *)(out + p) = a;
        if (two) *(V *)(out + q) = b;
    }
}

/* The columns from c on that vectors have, two at a time, those of the last pass as far as overlaps allow; the first that is
   left. */
INLINE int64_t JOIN(passes, V)(const NAME(Task) * t, int64_t c)
{
    const int64_t wide = sizeof(V) / sizeof(REAL);
    while (t->m - c > wide) {
        const int64_t second = t->m - c < 2 * wide ? t->m - wide : c + wide;
        JOIN(pass, V)(t, c, second, 1);
        c = second + wide;
    }
    if (t->m - c == wide) JOIN(pass, V)(t, c, c, 0), c = t->m;
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
