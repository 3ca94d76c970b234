/* Factors L D Lᵀ by multifrontal elimination (Duff & Reid 1983), and solves with them. */

#include "kernels.h"

#define PANEL 32          /* columns that are eliminated before others hear of it */
#define TALL  (WIDTH / 4) /* rows of a tile of the rest; four columns wide */

/* Subtract `count` eliminated columns from `from` on, L scaled by `d`, from the others of a front of f rows, `step`
   numbers a column. */
INLINE void take_from_rest(double *front, int64_t f, int64_t step, int64_t from, int64_t count)
{
    double c[PANEL][4];
    for (int64_t j = from + count; j < f; j += 4) {
        for (int64_t k = 0; k < count; k++) {
            const double *column = front + (from + k) * step, d = column[from + k];
            for (int64_t t = 0; t < 4; t++) c[k][t] = j + t < f ? -d * column[j + t] : 0;
        }
        for (int64_t i = j; i < f; i += TALL) {
            Wide_double sum[4][2] = {0};
            for (int64_t k = 0; k < count; k++) {
                const double *own = front + (from + k) * step + i;
                const Wide_double a = *(const Wide_double *)own, b = *(const Wide_double *)(own + TALL / 2);
                for (int t = 0; t < 4; t++) sum[t][0] += a * c[k][t], sum[t][1] += b * c[k][t];
            }
            for (int t = 0; t < 4; t++) {
                Wide_double *to = (Wide_double *)(front + (j + t) * step + i);
                to[0] += sum[t][0], to[1] += sum[t][1];
            }
        }
    }
}

/* Eliminate the first `width` columns of a front, whose lower triangle counts: L below the diagonal, D on it. Count
   negative entries of D. Return 0 where one is zero or not finite. */
INLINE int eliminated(double *front, int64_t f, int64_t step, int64_t width, int64_t *negative)
{
    for (int64_t from = 0; from < width; from += PANEL) {
        const int64_t count = width - from < PANEL ? width - from : PANEL;
        for (int64_t k = from; k < from + count; k++) {
            double *const column = front + k * step, d = column[k], inverse = 1 / d;
            if (!(d != 0) || !isfinite(d)) return 0;
            *negative += d < 0;
            for (int64_t j = k + 1; j < from + count; j++) {
                double *const other = front + j * step;
                const double c = column[j] * inverse;
                for (int64_t i = j; i < f; i++) other[i] -= c * column[i];
            }
            for (int64_t i = k + 1; i < f; i++) column[i] *= inverse;
        }
        take_from_rest(front, f, step, from, count);
    }
    return 1;
}

/* A supernode: its first position, its columns, the rows below, the height of its front, and these rows. */
typedef struct {
    int64_t first, width, below, height;
    const int32_t *row;
} Super;

INLINE Super super_of(const Shape *s, int64_t k)
{
    const int64_t width = s->first[k + 1] - s->first[k], below = s->row_start[k + 1] - s->row_start[k];
    return (Super){s->first[k], width, below, width + below, s->row + s->row_start[k]};
}

/* Return the numbers of a column of a front: whole tiles of rows, and what a tile that begins in the last row reads.
   */
INLINE int64_t step_of(int64_t f)
{
    return (f + 2 * TALL - 1) / TALL * TALL;
}

/* Compute L and D, in `l`, of the diagonal and `times` the values of rows of this shape. Return how many entries of D
   are negative; −1 where a pivot is zero or not finite, −2 where memory is not enough. */
FAST int64_t numbers_of(const Shape *s, const int32_t *crow, const int32_t *col, const double *values, double times,
                        const double *diagonal, double *l)
{
    const int64_t n = s->nodes;
    int32_t *const place = malloc((2 * n + 1) * sizeof *place), *const position = place + n;
    double *const front = malloc(step_of(s->widest) * (s->widest + 4) * sizeof *front);
    double *const waiting = malloc((s->waiting + 1) * sizeof *waiting), *top = waiting;
    int64_t *const children = malloc((s->supers + 1) * sizeof *children), depth = 0, negative = 0;
    int64_t result = -2;
    if (!place || !front || !waiting || !children) goto end;
    for (int64_t i = 0; i < n; i++) position[s->node[i]] = i;
    result = -1;
    for (int64_t k = 0; k < s->supers; k++) {
        const Super at = super_of(s, k);
        const int64_t first = at.first, width = at.width, below = at.below, f = at.height, step = step_of(f);
        const int32_t *const row = at.row;
        memset(front, 0, step * (f + 3) * sizeof *front);
        for (int64_t i = 0; i < width; i++) place[first + i] = i;
        for (int64_t i = 0; i < below; i++) place[row[i]] = width + i;
        for (int64_t i = first; i < first + width; i++) {
            double *const column = front + (i - first) * step;
            for (int32_t e = crow[s->node[i]]; e < crow[s->node[i] + 1]; e++) {
                const int32_t to = position[col[e]];
                if (to >= i) column[place[to]] += times * values[e];
            }
            if (diagonal) column[i - first] += diagonal[s->node[i]];
        }
        while (depth > 0 && s->parent[children[depth - 1]] == k) {
            const int64_t c = children[--depth], count = s->row_start[c + 1] - s->row_start[c];
            const int32_t *const from = s->row + s->row_start[c];
            const double *own = top -= count * (count + 1) / 2;
            for (int64_t j = 0; j < count; j++) {
                double *const column = front + place[from[j]] * step;
                for (int64_t i = j; i < count; i++) column[place[from[i]]] += *own++;
            }
        }
        if (!eliminated(front, f, step, width, &negative)) goto end;
        double *to = l + s->column_start[k];
        for (int64_t j = 0; j < width; j++, to += f) memcpy(to + j, front + j * step + j, (f - j) * sizeof *to);
        for (int64_t j = width; j < f; j++, top += f - j + 1) memcpy(top, front + j * step + j, (f - j) * sizeof *top);
        if (below > 0) children[depth++] = k;
    }
    result = negative;
end:
    free(place), free(front), free(waiting), free(children);
    return result;
}

/* --- Solves --- */

/* Solve L D Lᵀ x = y in place, by L and then by D and Lᵀ; `t` has room for the rows below. */
INLINE void solve_vectors(const Shape *s, const double *l, Wide_double *y, Wide_double *t)
{
    for (int64_t k = 0; k < s->supers; k++) {
        const Super at = super_of(s, k);
        const int64_t width = at.width, below = at.below, f = at.height;
        const double *column = l + s->column_start[k];
        Wide_double *const own = y + at.first;
        for (int64_t i = 0; i < below; i++) t[i] = y[at.row[i]];
        for (int64_t j = 0; j < width; j += 4) {
            const int64_t some = width - j < 4 ? width - j : 4;
            for (int64_t a = j; a < j + some; a++)
                for (int64_t i = a + 1; i < width; i++) own[i] -= column[a * f + i] * own[a];
            const double *c = column + j * f + width;
            if (some == 4) {
                const Wide_double p = own[j], q = own[j + 1], u = own[j + 2], v = own[j + 3];
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
        const int64_t width = at.width, below = at.below, f = at.height;
        const double *column = l + s->column_start[k];
        Wide_double *const own = y + at.first;
        for (int64_t i = 0; i < below; i++) t[i] = y[at.row[i]];
        for (int64_t j = 0; j < width; j++) own[j] /= column[j * f + j];
        for (int64_t j = 0; j < width; j += 4) {
            const int64_t some = width - j < 4 ? width - j : 4;
            const double *c = column + j * f + width;
            if (some == 4) {
                Wide_double p = {0}, q = {0}, u = {0}, v = {0};
                for (int64_t i = 0; i < below; i++) {
                    const Wide_double x = t[i];
                    p += c[i] * x, q += c[f + i] * x, u += c[2 * f + i] * x, v += c[3 * f + i] * x;
                }
                own[j] -= p, own[j + 1] -= q, own[j + 2] -= u, own[j + 3] -= v;
            } else
                for (int64_t a = 0; a < some; a++) {
                    Wide_double p = {0};
                    for (int64_t i = 0; i < below; i++) p += c[a * f + i] * t[i];
                    own[j + a] -= p;
                }
        }
        for (int64_t j = width - 1; j >= 0; j--)
            for (int64_t i = j + 1; i < width; i++) own[j] -= column[j * f + i] * own[i];
    }
}

/* Compute X = A⁻¹ B for `m` columns. Row i and column c of both are at i · step + c · other. `room` holds n + widest +
   1 rows of a vector. */
FAST static void solve_in(const Shape *s, const double *l, const double *b, double *x, int64_t m, int64_t step,
                          int64_t other, double *room)
{
    const int64_t n = s->nodes, wide = WIDTH / sizeof(double);
    double *const y = room, *const t = y + n * wide;
    for (int64_t from = 0; from < m; from += wide) {
        const int64_t some = m - from < wide ? m - from : wide;
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < wide; c++)
                y[i * wide + c] = c < some ? b[s->node[i] * step + (from + c) * other] : 0;
        solve_vectors(s, l, (Wide_double *)y, (Wide_double *)t);
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < some; c++) x[s->node[i] * step + (from + c) * other] = y[i * wide + c];
    }
}

/* Solve for blocks (n, m). Return 0 where memory is not enough. */
int64_t solve_factors(const Shape *s, const double *l, const double *b, double *x, int64_t m)
{
    double *const room = malloc((s->nodes + s->widest + 1) * WIDTH);
    if (!room) return 0;
    solve_in(s, l, b, x, m, m, 1, room);
    free(room);
    return 1;
}
