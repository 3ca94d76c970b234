/* Factors L D Lᵀ by multifrontal elimination (Duff & Reid 1983), and solves with them. */

#include "kernels.h"

#define PANEL 32          /* columns that are eliminated before others hear of it */
#define TALL  (WIDTH / 4) /* rows of a tile of the rest; four columns wide */

/* Subtract `count` eliminated columns from `from` on, L scaled by `d`, from the others of a front of f rows, `step`
   numbers a column. */
INLINE void take_from_rest(double *front, int64_t f, int64_t step, int64_t from, int64_t count)
{
    double scaled[PANEL][4];
    for (int64_t j = from + count; j < f; j += 4) {
        for (int64_t k = 0; k < count; k++) {
            const double *column = front + (from + k) * step, pivot = column[from + k];
            for (int64_t side = 0; side < 4; side++) scaled[k][side] = j + side < f ? -pivot * column[j + side] : 0;
        }
        for (int64_t i = j; i < f; i += TALL) {
            Wide_double sum[4][2] = {0};
            for (int64_t k = 0; k < count; k++) {
                const double *own = front + (from + k) * step + i;
                const Wide_double upper = *(const Wide_double *)own, lower = *(const Wide_double *)(own + TALL / 2);
                for (int side = 0; side < 4; side++)
                    sum[side][0] += upper * scaled[k][side], sum[side][1] += lower * scaled[k][side];
            }
            for (int side = 0; side < 4; side++) {
                Wide_double *to = (Wide_double *)(front + (j + side) * step + i);
                to[0] += sum[side][0], to[1] += sum[side][1];
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
            double *const column = front + k * step, pivot = column[k], inverse = 1 / pivot;
            if (!(pivot != 0) || !isfinite(pivot)) return 0;
            *negative += pivot < 0;
            for (int64_t j = k + 1; j < from + count; j++) {
                double *const other = front + j * step;
                const double factor = column[j] * inverse;
                for (int64_t i = j; i < f; i++) other[i] -= factor * column[i];
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

INLINE Super super_of(const Shape *shape, int64_t k)
{
    const int64_t width = shape->first[k + 1] - shape->first[k], below = shape->row_start[k + 1] - shape->row_start[k];
    return (Super){shape->first[k], width, below, width + below, shape->row + shape->row_start[k]};
}

/* Return the numbers of a column of a front of f rows: whole tiles of rows, and what a tile that begins in the last row reads.
   */
INLINE int64_t step_of(int64_t f)
{
    return (f + 2 * TALL - 1) / TALL * TALL;
}

/* Count the numbers that `numbers_of` works with: the largest front, and what waits for its parent. */
int64_t room_of_factors(const Shape *shape)
{
    return step_of(shape->widest) * (shape->widest + 4) + shape->waiting;
}

/* Compute L and D, in `l`, of the diagonal and `times` the values of rows of this shape. Return how many entries of D
   are negative; SINGULAR, or NO_MEMORY where there is not enough. */
FAST int64_t numbers_of(const Shape *shape, const int32_t *crow, const int32_t *col, const double *values, double times,
                        const double *diagonal, double *l)
{
    const int64_t n = shape->nodes;
    int32_t *const place = calloc(2 * n + 1, sizeof *place), *const position = place + n;
    double *const front = room_for(room_of_factors(shape)), *top = front + step_of(shape->widest) * (shape->widest + 4);
    int64_t *const children = malloc((shape->supers + 1) * sizeof *children), depth = 0, negative = 0;
    int64_t result = NO_MEMORY;
    if (!place || !front || !children) goto end;
    for (int64_t i = 0; i < n; i++) position[shape->node[i]] = i;
    result = SINGULAR;
    for (int64_t k = 0; k < shape->supers; k++) {
        const Super at = super_of(shape, k);
        const int64_t first = at.first, width = at.width, below = at.below, height = at.height, step = step_of(height);
        const int32_t *const row = at.row;
        memset(front, 0, step * (height + 3) * sizeof *front);
        for (int64_t i = 0; i < width; i++) place[first + i] = i;
        for (int64_t i = 0; i < below; i++) place[row[i]] = width + i;
        for (int64_t i = first; i < first + width; i++) {
            double *const column = front + (i - first) * step;
            for (int32_t edge = crow[shape->node[i]]; edge < crow[shape->node[i] + 1]; edge++) {
                const int32_t to = position[col[edge]];
                if (to >= i) column[place[to]] += times * values[edge];
            }
            if (diagonal) column[i - first] += diagonal[shape->node[i]];
        }
        while (depth > 0 && shape->parent[children[depth - 1]] == k) {
            const int64_t child = children[--depth], count = shape->row_start[child + 1] - shape->row_start[child];
            const int32_t *const from = shape->row + shape->row_start[child];
            const double *own = top -= count * (count + 1) / 2;
            for (int64_t j = 0; j < count; j++) {
                double *const column = front + place[from[j]] * step;
                for (int64_t i = j; i < count; i++) column[place[from[i]]] += *own++;
            }
        }
        if (!eliminated(front, height, step, width, &negative)) goto end;
        double *to = l + shape->column_start[k];
        for (int64_t j = 0; j < width; j++, to += height)
            memcpy(to + j, front + j * step + j, (height - j) * sizeof *to);
        for (int64_t j = width; j < height; j++, top += height - j + 1)
            memcpy(top, front + j * step + j, (height - j) * sizeof *top);
        if (below > 0) children[depth++] = k;
    }
    result = negative;
end:
    free(place), free(front), free(children);
    return result;
}

/* --- Solves --- */

/* Solve L D Lᵀ x = y in place, by L and then by D and Lᵀ; `t` has room for the rows below. */
INLINE void solve_vectors(const Shape *shape, const double *l, Wide_double *y, Wide_double *t)
{
    for (int64_t k = 0; k < shape->supers; k++) {
        const Super at = super_of(shape, k);
        const int64_t width = at.width, below = at.below, height = at.height;
        const double *column = l + shape->column_start[k];
        Wide_double *const own = y + at.first;
        for (int64_t i = 0; i < below; i++) t[i] = y[at.row[i]];
        for (int64_t j = 0; j < width; j += 4) {
            const int64_t some = width - j < 4 ? width - j : 4;
            for (int64_t side = j; side < j + some; side++)
                for (int64_t i = side + 1; i < width; i++) own[i] -= column[side * height + i] * own[side];
            const double *numbers = column + j * height + width;
            if (some == 4) {
                const Wide_double first = own[j], second = own[j + 1], third = own[j + 2], fourth = own[j + 3];
                for (int64_t i = 0; i < below; i++)
                    t[i] -= (numbers[i] * first + numbers[height + i] * second) +
                            (numbers[2 * height + i] * third + numbers[3 * height + i] * fourth);
            } else
                for (int64_t side = 0; side < some; side++)
                    for (int64_t i = 0; i < below; i++) t[i] -= numbers[side * height + i] * own[j + side];
        }
        for (int64_t i = 0; i < below; i++) y[at.row[i]] = t[i];
    }
    for (int64_t k = shape->supers - 1; k >= 0; k--) {
        const Super at = super_of(shape, k);
        const int64_t width = at.width, below = at.below, height = at.height;
        const double *column = l + shape->column_start[k];
        Wide_double *const own = y + at.first;
        for (int64_t i = 0; i < below; i++) t[i] = y[at.row[i]];
        for (int64_t j = 0; j < width; j++) own[j] /= column[j * height + j];
        for (int64_t j = 0; j < width; j += 4) {
            const int64_t some = width - j < 4 ? width - j : 4;
            const double *numbers = column + j * height + width;
            if (some == 4) {
                Wide_double first = {0}, second = {0}, third = {0}, fourth = {0};
                for (int64_t i = 0; i < below; i++) {
                    const Wide_double value = t[i];
                    first += numbers[i] * value, second += numbers[height + i] * value,
                        third += numbers[2 * height + i] * value, fourth += numbers[3 * height + i] * value;
                }
                own[j] -= first, own[j + 1] -= second, own[j + 2] -= third, own[j + 3] -= fourth;
            } else
                for (int64_t side = 0; side < some; side++) {
                    Wide_double sum = {0};
                    for (int64_t i = 0; i < below; i++) sum += numbers[side * height + i] * t[i];
                    own[j + side] -= sum;
                }
        }
        for (int64_t j = width - 1; j >= 0; j--)
            for (int64_t i = j + 1; i < width; i++) own[j] -= column[j * height + i] * own[i];
    }
}

/* Count the numbers that `solve_in` works with. */
INLINE int64_t room_of_solve(const Shape *shape)
{
    return (shape->nodes + shape->widest) * LANES;
}

/* Compute X = A⁻¹ B for `m` columns. Row i and column j of both are at i · step + j · other. */
FAST static void solve_in(const Shape *shape, const double *l, const double *b, double *x, int64_t m, int64_t step,
                          int64_t other, double *room)
{
    const int64_t n = shape->nodes, wide = LANES;
    double *const y = room, *const t = y + n * wide;
    for (int64_t from = 0; from < m; from += wide) {
        const int64_t some = m - from < wide ? m - from : wide;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < wide; j++)
                y[i * wide + j] = j < some ? b[shape->node[i] * step + (from + j) * other] : 0;
        solve_vectors(shape, l, (Wide_double *)y, (Wide_double *)t);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < some; j++) x[shape->node[i] * step + (from + j) * other] = y[i * wide + j];
    }
}

/* Solve for blocks (n, m). Return 0 where memory is not enough. */
int64_t solve_factors(const Shape *shape, const double *l, const double *b, double *x, int64_t m)
{
    double *const room = room_for(room_of_solve(shape));
    if (!room) return 0;
    solve_in(shape, l, b, x, m, m, 1, room);
    free(room);
    return 1;
}
