/* Solves with factors for as many columns as a vector V has. A part of `sparse.c`, once for each V. */

/* Solve L D Lᵀ x = y in the place of y, by L and then by D and Lᵀ; `t` has room for the rows below. */
INLINE void JOIN(solve, V)(const Shape *s, const double *l, V *y, V *t)
{
    for (int64_t k = 0; k < s->supers; k++) {
        const Super at = super_of(s, k);
        const int64_t width = at.width, below = at.below, f = at.f;
        const double *column = l + s->at[k];
        V *const own = y + at.first;
        for (int64_t i = 0; i < below; i++) t[i] = y[at.row[i]];
        for (int64_t j = 0; j < width; j += 4) {
            const int64_t some = width - j < 4 ? width - j : 4;
            for (int64_t a = j; a < j + some; a++)
                for (int64_t i = a + 1; i < width; i++) own[i] -= column[a * f + i] * own[a];
            const double *c = column + j * f + width;
            if (some == 4) {
                const V p = own[j], q = own[j + 1], u = own[j + 2], v = own[j + 3];
                for (int64_t i = 0; i < below; i++)
                    t[i] -= (c[i] * p + c[f + i] * q) + (c[2 * f + i] * u + c[3 * f + i] * v);
            } else
                for (int64_t a = 0; a < some; a++)
                    for (int64_t i = 0; i < below; i++) t[i] -= c[a * f + i] * own[j + a];
        }
        for (int64_t i = 0; i < below; i++) y[at.row[i]] = t[i];
    }
    for (int64_t k = s->supers - 1; k >= 0; k--) {
        const Super at = super_of(s, k);
        const int64_t width = at.width, below = at.below, f = at.f;
        const double *column = l + s->at[k];
        V *const own = y + at.first;
        for (int64_t i = 0; i < below; i++) t[i] = y[at.row[i]];
        for (int64_t j = 0; j < width; j++) own[j] /= column[j * f + j];
        for (int64_t j = 0; j < width; j += 4) {
            const int64_t some = width - j < 4 ? width - j : 4;
            const double *c = column + j * f + width;
            if (some == 4) {
                V p = {0}, q = {0}, u = {0}, v = {0};
                for (int64_t i = 0; i < below; i++) {
                    const V x = t[i];
                    p += c[i] * x, q += c[f + i] * x, u += c[2 * f + i] * x, v += c[3 * f + i] * x;
                }
                own[j] -= p, own[j + 1] -= q, own[j + 2] -= u, own[j + 3] -= v;
            } else
                for (int64_t a = 0; a < some; a++) {
                    V p = {0};
                    for (int64_t i = 0; i < below; i++) p += c[a * f + i] * t[i];
                    own[j + a] -= p;
                }
        }
        for (int64_t j = width - 1; j >= 0; j--)
            for (int64_t i = j + 1; i < width; i++) own[j] -= column[j * f + i] * own[i];
    }
}
