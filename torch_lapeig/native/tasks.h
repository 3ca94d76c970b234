/* Tasks on numbers of type REAL. Included by `kernels.h` for float and for double. A step is the count of numbers from
   one row of a block to the next. */

/* The rows of A = diag(c) − M: M in CSR; `diagonal` is c, or NULL where it is all ones. */
typedef struct {
    const int32_t *crow, *col;
    const REAL *values, *diagonal;
} NAME(Rows);

/* out = times R y + plus other for rows `start` to `stop`, where R = M, or A − centre if `is_system`. The nodes of the
   blocks count from `base`. `other` may be NULL, and may be `out`. */
typedef struct {
    NAME(Rows) rows;
    int64_t is_system, start, stop, base, columns, y_step, other_step, out_step;
    const REAL *y, *other;
    REAL *out;
    REAL times, plus, centre;
} NAME(Product);

/* x_i · y_j for each edge, or ‖x_i − x_j‖² where `y` is NULL. */
typedef struct {
    const int32_t *crow, *col;
    int64_t rows, columns, x_step, y_step;
    const REAL *x, *y;
    REAL *out;
} NAME(Edges);

/* ‖x_i − y_j‖² for pairs of rows; without `i`, for all rows of x and the first row of y. */
typedef struct {
    const int64_t *i, *j;
    int64_t count, columns, x_step, y_step;
    const REAL *x, *y;
    REAL *out;
} NAME(Pairs);

/* Σ_j m_ij (y_j − y_i) of each row, in `out`, and Σ_j m_ij ‖y_j − y_i‖², in `energy`. */
typedef struct {
    const int32_t *crow, *col;
    int64_t rows, columns, y_step;
    const REAL *values, *y;
    REAL *out, *energy;
} NAME(Tension);

/* The nearest points of each query in its set: `neighbors` numbers and squared distances, ascending, ties by number.
   `valid` is a byte for each point, 0 for padding. If `is_self_search`, the queries are the points, and none is its
   own neighbour. A neighbour that does not exist has the number −1. */
typedef struct {
    int64_t sets, points, queries, dimensions, neighbors, is_self_search;
    const REAL *point, *query;
    const uint8_t *valid;
    int64_t *found;
    REAL *squares;
} NAME(Nearest);
