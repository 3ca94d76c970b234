/* Factors L D Lᵀ by multifrontal elimination (Duff & Reid 1983), and solves with them. SciPy's SuperLU factors L U with
   row pivots; here nothing is pivoted, so that the structure is known beforehand and D counts negative eigenvalues. For
   each supernode, children before parents:
     1. Its front, the dense matrix of its columns and the rows below, takes the matrix's entries (`assemble`),
     2. and what its children have left, which waits on a stack (`add_child`).
     3. Its columns are eliminated (`eliminated`).
     4. They go to L; the rest of the front waits for the parent (`store`). */

#include "kernels.h"

#define PANEL 32          /* columns per panel; updates are applied after each panel */
#define TALL  (WIDTH / 4) /* rows of a tile of the rest; four columns wide */

/* Subtract `count` eliminated columns from `from` on from the others of a front, `step` numbers a column: L D Lᵀ of
   tiles of TALL rows and four columns. */
INLINE void take_from_rest(double *front, int64_t height, int64_t step, int64_t from, int64_t count)
{
    double scaled[PANEL][4];
    for (int64_t j = from + count; j < height; j += 4) {
        for (int64_t k = 0; k < count; k++) {
            const double *column = front + (from + k) * step, pivot = column[from + k];
            for (int64_t side = 0; side < 4; side++)
                scaled[k][side] = j + side < height ? -pivot * column[j + side] : 0;
        }
        for (int64_t i = j; i < height; i += TALL) {
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
INLINE int eliminated(double *front, int64_t height, int64_t step, int64_t width, int64_t *negative)
{
    for (int64_t from = 0; from < width; from += PANEL) {
        const int64_t count = width - from < PANEL ? width - from : PANEL;
        for (int64_t k = from; k < from + count; k++) {
            double *const column = front + k * step, pivot = column[k], inverse = 1 / pivot;
            if (!(pivot != 0) || !isfinite(pivot)) return 0;
            *negative += pivot < 0;
            for (int64_t j = k + 1; j < from + count; j++) {
                double *const other = front + j * step;
                const double ratio = column[j] * inverse;
                for (int64_t i = j; i < height; i++) other[i] -= ratio * column[i];
            }
            for (int64_t i = k + 1; i < height; i++) column[i] *= inverse;
        }
        take_from_rest(front, height, step, from, count);
    }
    return 1;
}

/* A supernode: its first position, its columns, the rows below, the height of its front, and these rows. */
typedef struct {
    int64_t first, width, below, height;
    const int32_t *row;
} Super;

INLINE Super super_of(const SymbolicFactor *symbolic, int64_t k)
{
    const int64_t width = symbolic->first[k + 1] - symbolic->first[k],
                  below = symbolic->row_start[k + 1] - symbolic->row_start[k];
    return (Super){symbolic->first[k], width, below, width + below, symbolic->row + symbolic->row_start[k]};
}

/* Return the leading dimension of a front, padded so that a tile starting at the last row stays in bounds. */
INLINE int64_t step_of(int64_t height)
{
    return (height + 2 * TALL - 1) / TALL * TALL;
}

/* Count the numbers that `numeric_factor` works with: the largest front, and what waits for its parent. */
int64_t room_of_factors(const SymbolicFactor *symbolic)
{
    return step_of(symbolic->widest) * (symbolic->widest + 4) + symbolic->waiting;
}

/* Lower triangle of diag(`diagonal`) + `times` times the values of rows; `diagonal` may be NULL. */
typedef struct {
    const int32_t *crow, *col;
    const double *values, *diagonal;
    double times;
} Matrix;

/* The front of a supernode, `step` numbers a column; for each position its row in the front, and for each node its
   position. */
typedef struct {
    double *numbers;
    int64_t step;
    int32_t *place, *position;
} Front;

/* Step 1. */
INLINE void assemble(const SymbolicFactor *symbolic, const Super *super, const Matrix *matrix, const Front *front)
{
    memset(front->numbers, 0, front->step * (super->height + 3) * sizeof(double));
    for (int64_t i = 0; i < super->width; i++) front->place[super->first + i] = i;
    for (int64_t i = 0; i < super->below; i++) front->place[super->row[i]] = super->width + i;
    for (int64_t i = 0; i < super->width; i++) {
        double *const column = front->numbers + i * front->step;
        const int32_t node = symbolic->node[super->first + i];
        for (int32_t edge = matrix->crow[node]; edge < matrix->crow[node + 1]; edge++) {
            const int32_t to = front->position[matrix->col[edge]];
            if (to >= super->first + i) column[front->place[to]] += matrix->times * matrix->values[edge];
        }
        if (matrix->diagonal) column[i] += matrix->diagonal[node];
    }
}

/* Step 2, for one child. Return the top of the stack below its numbers. */
INLINE double *add_child(const Super *child, const Front *front, double *top)
{
    const double *own = top -= child->below * (child->below + 1) / 2;
    for (int64_t j = 0; j < child->below; j++) {
        double *const column = front->numbers + front->place[child->row[j]] * front->step;
        for (int64_t i = j; i < child->below; i++) column[front->place[child->row[i]]] += *own++;
    }
    return top;
}

/* Step 4. Return the new top of the stack. */
INLINE double *store(const Super *super, const Front *front, double *l, double *top)
{
    for (int64_t j = 0; j < super->height; j++) {
        const double *column = front->numbers + j * front->step + j;
        double *const to = j < super->width ? l + j * super->height + j : top;
        memcpy(to, column, (super->height - j) * sizeof *to);
        if (j >= super->width) top += super->height - j;
    }
    return top;
}

/* Compute L and D, in `l`, of the diagonal and `times` the values of rows of this structure. Return how many entries of
   D are negative; SINGULAR, or NO_MEMORY where there is not enough. */
FAST int64_t numeric_factor(const SymbolicFactor *symbolic, const int32_t *crow, const int32_t *col,
                            const double *values, double times, const double *diagonal, double *l)
{
    const int64_t n = symbolic->nodes, front_room = step_of(symbolic->widest) * (symbolic->widest + 4);
    const Matrix matrix = {crow, col, values, diagonal, times};
    int32_t *const place = calloc(2 * n + 1, sizeof *place);
    double *const room = room_for(room_of_factors(symbolic)), *top = room + front_room;
    int64_t *const children = malloc((symbolic->supers + 1) * sizeof *children), depth = 0, negative = 0;
    int64_t result = NO_MEMORY;
    Front front = {room, 0, place, place + n};
    if (!place || !room || !children) goto end;
    for (int64_t i = 0; i < n; i++) front.position[symbolic->node[i]] = i;
    result = SINGULAR;
    for (int64_t k = 0; k < symbolic->supers; k++) {
        const Super super = super_of(symbolic, k);
        front.step = step_of(super.height);
        assemble(symbolic, &super, &matrix, &front);
        while (depth > 0 && symbolic->parent[children[depth - 1]] == k) {
            const Super child = super_of(symbolic, children[--depth]);
            top = add_child(&child, &front, top);
        }
        if (!eliminated(room, super.height, front.step, super.width, &negative)) goto end;
        top = store(&super, &front, l + symbolic->column_start[k], top);
        if (super.below > 0) children[depth++] = k;
    }
    result = negative;
end:
    free(place), free_room(room), free(children);
    return result;
}

/* --- Solves --- */

/* Solve L z = y in place, supernode by supernode; `rest` has room for the rows below. */
INLINE void solve_lower(const SymbolicFactor *symbolic, const double *l, Wide_double *y, Wide_double *rest)
{
    for (int64_t k = 0; k < symbolic->supers; k++) {
        const Super super = super_of(symbolic, k);
        const int64_t width = super.width, below = super.below, height = super.height;
        const double *column = l + symbolic->column_start[k];
        Wide_double *const own = y + super.first;
        for (int64_t i = 0; i < below; i++) rest[i] = y[super.row[i]];
        for (int64_t j = 0; j < width; j += 4) {
            const int64_t some = width - j < 4 ? width - j : 4;
            for (int64_t side = j; side < j + some; side++)
                for (int64_t i = side + 1; i < width; i++) own[i] -= column[side * height + i] * own[side];
            const double *numbers = column + j * height + width;
            if (some == 4) {
                const Wide_double first = own[j], second = own[j + 1], third = own[j + 2], fourth = own[j + 3];
                for (int64_t i = 0; i < below; i++)
                    rest[i] -= (numbers[i] * first + numbers[height + i] * second) +
                               (numbers[2 * height + i] * third + numbers[3 * height + i] * fourth);
            } else
                for (int64_t side = 0; side < some; side++)
                    for (int64_t i = 0; i < below; i++) rest[i] -= numbers[side * height + i] * own[j + side];
        }
        for (int64_t i = 0; i < below; i++) y[super.row[i]] = rest[i];
    }
}

/* Solve D Lᵀ x = z in place, parents first. */
INLINE void solve_upper(const SymbolicFactor *symbolic, const double *l, Wide_double *y, Wide_double *rest)
{
    for (int64_t k = symbolic->supers - 1; k >= 0; k--) {
        const Super super = super_of(symbolic, k);
        const int64_t width = super.width, below = super.below, height = super.height;
        const double *column = l + symbolic->column_start[k];
        Wide_double *const own = y + super.first;
        for (int64_t i = 0; i < below; i++) rest[i] = y[super.row[i]];
        for (int64_t j = 0; j < width; j++) own[j] /= column[j * height + j];
        for (int64_t j = 0; j < width; j += 4) {
            const int64_t some = width - j < 4 ? width - j : 4;
            const double *numbers = column + j * height + width;
            Wide_double sums[4] = {{0}};
            if (some == 4)
                for (int64_t i = 0; i < below; i++)
                    for (int64_t side = 0; side < 4; side++) sums[side] += numbers[side * height + i] * rest[i];
            else
                for (int64_t side = 0; side < some; side++)
                    for (int64_t i = 0; i < below; i++) sums[side] += numbers[side * height + i] * rest[i];
            for (int64_t side = 0; side < some; side++) own[j + side] -= sums[side];
        }
        for (int64_t j = width - 1; j >= 0; j--)
            for (int64_t i = j + 1; i < width; i++) own[j] -= column[j * height + i] * own[i];
    }
}

/* Count the numbers that `solve_in` works with. */
INLINE int64_t room_of_solve(const SymbolicFactor *symbolic)
{
    return (symbolic->nodes + symbolic->widest) * LANES;
}

/* Compute X = A⁻¹ B. Row i and column j of both are at i · row_step + j · column_step. */
FAST static void solve_in(const SymbolicFactor *symbolic, const double *l, const double *b, double *x, int64_t columns,
                          int64_t row_step, int64_t column_step, double *room)
{
    const int64_t n = symbolic->nodes, wide = LANES;
    double *const y = room, *const rest = y + n * wide;
    for (int64_t from = 0; from < columns; from += wide) {
        const int64_t some = columns - from < wide ? columns - from : wide;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < wide; j++)
                y[i * wide + j] = j < some ? b[symbolic->node[i] * row_step + (from + j) * column_step] : 0;
        solve_lower(symbolic, l, (Wide_double *)y, (Wide_double *)rest);
        solve_upper(symbolic, l, (Wide_double *)y, (Wide_double *)rest);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < some; j++)
                x[symbolic->node[i] * row_step + (from + j) * column_step] = y[i * wide + j];
    }
}

/* Solve for blocks (nodes, columns) of one storage. Return 0 where memory is not enough. */
int64_t solve_factors(const SymbolicFactor *symbolic, const double *l, const double *b, double *x, int64_t columns,
                      int64_t row_step, int64_t column_step)
{
    double *const room = room_for(room_of_solve(symbolic));
    if (!room) return 0;
    solve_in(symbolic, l, b, x, columns, row_step, column_step, room);
    free_room(room);
    return 1;
}
