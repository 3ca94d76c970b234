/* The nearest points of small sets, by direct differences. Included by `kernels.c` for float and for double. */

#include "kernels.h"

/* Return the points of a set, rounded up to whole lines of the cache. */
INLINE int64_t NAME(padded)(int64_t n)
{
    const int64_t in_line = LINE * sizeof(double) / sizeof(REAL);
    return (n + in_line - 1) / in_line * in_line;
}

/* Write the squared distances of `count` queries to all points of a set to `far`. Squares are added coordinate by
   coordinate and are not fused with the sum, as in torch: so distances are equal to the last bit. */
INLINE void NAME(distances)(const NAME(Nearest) * task, const REAL *across, const REAL *query, const int count,
                            REAL *far)
{
    const int64_t wide = NAME(padded)(task->points);
    for (int64_t j = 0; j < wide; j += WIDTH / sizeof(REAL)) {
        NAME(Wide) sums[QUERIES];
        for (int i = 0; i < count; i++) sums[i] = (NAME(Wide)){0};
        for (int64_t k = 0; k < task->dimensions; k++) {
            const NAME(Wide) coordinates = *(const NAME(Wide) *)(across + k * wide + j);
            for (int i = 0; i < count; i++) {
                const NAME(Wide) apart = coordinates - query[i * task->dimensions + k];
                const NAME(Wide) square = apart * apart;
                sums[i] += square;
            }
        }
        for (int i = 0; i < count; i++) *(NAME(Wide) *)(far + i * wide + j) = sums[i];
    }
}

/* Count the numbers within a reach. */
INLINE int32_t NAME(within)(int64_t n, const REAL *far, REAL reach)
{
    int32_t count = 0;
    for (int64_t j = 0; j < n; j++) count += far[j] <= reach;
    return count;
}

/* Return the largest finite number. */
INLINE REAL NAME(largest)(int64_t n, const REAL *far)
{
    REAL most = 0;
    for (int64_t j = 0; j < n; j++) {
        const REAL own = far[j] < INFINITY ? far[j] : 0;
        most = own > most ? own : most;
    }
    return most;
}

/* Return a reach within which there are at least k of n numbers, and few more unless they tie; k of them are finite.
   `guess` is tried first: the reach of a query nearby. */
INLINE REAL NAME(reach_of)(int64_t n, const REAL *far, int64_t k, REAL guess)
{
    REAL low = 0, high = INFINITY;
    for (int step = 0; step < 24; step++) {
        const int32_t count = NAME(within)(n, far, guess);
        if (count >= k)
            high = guess;
        else
            low = guess;
        if (count >= k && count <= k + k / 2 + 2) break;
        if (isinf(high)) high = NAME(largest)(n, far);
        guess = low > 0 ? sqrt(low) * sqrt(high) : high / 16;
    }
    return high;
}

/* Sort the k nearest of the points within a reach. `few` is room for n numbers. */
INLINE void NAME(sorted)(int64_t n, const REAL *far, int64_t k, REAL reach, int64_t *numbers, REAL *squares,
                         int32_t *few)
{
    int64_t near = 0, count = 0;
    for (int64_t j = 0; j < n; j += 64) { /* most pieces of a long row hold no near point */
        const int64_t end = j + 64 < n ? j + 64 : n;
        if (NAME(within)(end - j, far + j, reach))
            for (int64_t i = j; i < end; i++) few[near] = i, near += far[i] <= reach;
    }
    for (int64_t i = 0; i < near; i++) {
        const REAL own = far[few[i]];
        if (count == k && !(own < squares[k - 1])) continue;
        int64_t place = count < k ? count++ : k - 1;
        for (; place > 0 && squares[place - 1] > own; place--)
            squares[place] = squares[place - 1], numbers[place] = numbers[place - 1];
        squares[place] = own, numbers[place] = few[i];
    }
    for (; count < k; count++) squares[count] = INFINITY, numbers[count] = -1;
}

FAST UNFUSED static void NAME(nearest_of)(void *data, int64_t part, int64_t parts, double *room)
{
    const NAME(Nearest) *task = data;
    const int64_t n = task->points, dims = task->dimensions, k = task->neighbors, wide = NAME(padded)(n);
    const int64_t all = task->sets * task->queries, from = all * part / parts, to = all * (part + 1) / parts;
    REAL *across = (REAL *)room, *far = across + dims * wide;
    int32_t *few = (int32_t *)(far + QUERIES * wide);
    int64_t held = -1;
    REAL reach = 0;
    for (int64_t row = from, count; row < to; row += count) {
        const int64_t set = row / task->queries, first = row % task->queries;
        count = to - row < QUERIES ? to - row : QUERIES;
        if (count > task->queries - first) count = task->queries - first;
        if (set != held) {
            const REAL *points = task->point + set * n * dims;
            for (int64_t j = 0; j < wide; j++)
                for (int64_t axis = 0; axis < dims; axis++)
                    across[axis * wide + j] = j < n ? points[j * dims + axis] : 0;
            held = set;
        }
        if (count == QUERIES)
            NAME(distances)(task, across, task->query + row * dims, QUERIES, far);
        else
            for (int64_t i = 0; i < count; i++)
                NAME(distances)(task, across, task->query + (row + i) * dims, 1, far + i * wide);
        for (int64_t i = 0; i < count; i++) {
            REAL *own = far + i * wide;
            for (int64_t j = 0; j < n; j++)
                if (!task->valid[set * n + j]) own[j] = INFINITY;
            for (int64_t j = n; j < wide; j++) own[j] = INFINITY;
            if (task->is_self_search) own[first + i] = INFINITY;
            reach = NAME(reach_of)(wide, own, k, reach);
            NAME(sorted)(wide, own, k, reach, task->found + (row + i) * k, task->squares + (row + i) * k, few);
        }
    }
}

int64_t NAME(nearest)(NAME(Nearest) * task, int64_t parts, int64_t threads)
{
    const int64_t rows = task->dimensions + QUERIES + 1; /* a row of int32 among them */
    return share(NAME(nearest_of), task, parts, threads,
                 rows * NAME(padded)(task->points) * sizeof(REAL) / sizeof(double));
}
