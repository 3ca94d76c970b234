/* The nearest points of small sets, by direct differences. A part of `kernels.c`, for float and for double. */

#ifndef QUERIES
#define QUERIES 4 /* whose distances are measured side by side */
#endif

/* Of each query of each set the k nearest points: numbers and squared distances, ascending, ties by number. `valid`: a byte
   for each point, 0 for none. `itself`: the queries are the points, none near itself. `wide`: points of a set or more, in
   whole vectors. `work`: for each thread dims + QUERIES + 1 rows of `wide` numbers. */
typedef struct {
    int64_t sets, points, queries, dims, k, itself, wide;
    const REAL *x, *asked;
    const uint8_t *valid;
    int64_t *numbers;
    REAL *squares, *work;
} NAME(Nearest);

/* In `far` the squared distances of `count` queries to all points of a set, coordinate by coordinate: a square is added
   to the others as in torch, and is not fused with the sum, so that both ways are as long. */
INLINE void NAME(distances)(const NAME(Nearest) * t, const REAL *across, const REAL *q, const int count, REAL *far)
{
    for (int64_t j = 0; j < t->wide; j += WIDTH / sizeof(REAL)) {
        NAME(Wide) sums[QUERIES];
        for (int i = 0; i < count; i++) sums[i] = (NAME(Wide)){0};
        for (int64_t c = 0; c < t->dims; c++) {
            const NAME(Wide) x = *(const NAME(Wide) *)(across + c * t->wide + j);
            for (int i = 0; i < count; i++) {
                const NAME(Wide) apart = x - q[i * t->dims + c];
                const NAME(Wide) square = apart * apart;
                sums[i] += square;
            }
        }
        for (int i = 0; i < count; i++) *(NAME(Wide) *)(far + i * t->wide + j) = sums[i];
    }
}

/* How many of n numbers are at most as large. */
INLINE int32_t NAME(within)(int64_t n, const REAL *far, REAL reach)
{
    int32_t count = 0;
    for (int64_t j = 0; j < n; j++) count += far[j] <= reach;
    return count;
}

/* The largest of n numbers that is finite. */
INLINE REAL NAME(largest)(int64_t n, const REAL *far)
{
    REAL most = 0;
    for (int64_t j = 0; j < n; j++) {
        const REAL own = far[j] < INFINITY ? far[j] : 0;
        most = own > most ? own : most;
    }
    return most;
}

/* A reach within which there are k of n numbers, of which k are finite, and not many more unless they are as far; `guess`
   is the first to be tried, that of a query nearby. */
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

/* The k nearest of n points of those within a reach. `few` is room for n numbers. */
INLINE void NAME(sorted)(int64_t n, const REAL *far, int64_t k, REAL reach, int64_t *numbers, REAL *squares, int32_t *few)
{
    int64_t m = 0, count = 0;
    for (int64_t j = 0; j < n; j += 64) { /* most pieces of a long row hold none */
        const int64_t end = j + 64 < n ? j + 64 : n;
        if (NAME(within)(end - j, far + j, reach))
            for (int64_t l = j; l < end; l++) few[m] = l, m += far[l] <= reach;
    }
    for (int64_t i = 0; i < m; i++) {
        const REAL own = far[few[i]];
        if (count == k && !(own < squares[k - 1])) continue;
        int64_t place = count < k ? count++ : k - 1;
        for (; place > 0 && squares[place - 1] > own; place--)
            squares[place] = squares[place - 1], numbers[place] = numbers[place - 1];
        squares[place] = own, numbers[place] = few[i];
    }
}

FAST UNFUSED static void NAME(nearest_of)(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const NAME(Nearest) *t = task;
    const int64_t n = t->points, dims = t->dims, k = t->k, wide = t->wide;
    const int64_t all = t->sets * t->queries, from = all * part / parts, to = all * (part + 1) / parts;
    REAL *across = t->work + thread * (dims + QUERIES + 1) * wide, *far = across + dims * wide;
    int32_t *few = (int32_t *)(far + QUERIES * wide);
    int64_t held = -1;
    REAL reach = 0;
    for (int64_t r = from, count; r < to; r += count) {
        const int64_t set = r / t->queries, first = r % t->queries;
        count = to - r < QUERIES ? to - r : QUERIES;
        if (count > t->queries - first) count = t->queries - first;
        if (set != held) {
            const REAL *x = t->x + set * n * dims;
            for (int64_t j = 0; j < wide; j++)
                for (int64_t c = 0; c < dims; c++) across[c * wide + j] = j < n ? x[j * dims + c] : 0;
            held = set;
        }
        if (count == QUERIES)
            NAME(distances)(t, across, t->asked + r * dims, QUERIES, far);
        else
            for (int64_t i = 0; i < count; i++) NAME(distances)(t, across, t->asked + (r + i) * dims, 1, far + i * wide);
        for (int64_t i = 0; i < count; i++) {
            REAL *own = far + i * wide;
            for (int64_t j = 0; j < n; j++)
                if (!t->valid[set * n + j]) own[j] = INFINITY;
            for (int64_t j = n; j < wide; j++) own[j] = INFINITY;
            if (t->itself) own[first + i] = INFINITY;
            reach = NAME(reach_of)(wide, own, k, reach);
            NAME(sorted)(wide, own, k, reach, t->numbers + (r + i) * k, t->squares + (r + i) * k, few);
        }
    }
}

void NAME(nearest)(NAME(Nearest) * t, int64_t parts, int64_t threads) { share(NAME(nearest_of), t, parts, threads); }
