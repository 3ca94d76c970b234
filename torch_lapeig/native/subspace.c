/* Subspace iteration on Chebyshev filters (Zhou, Saad, Tiago & Chelikowsky 2006, section 2), each graph of a batch by
   itself: the loop of `ChebyshevSubspace`, with its settings.
     1. Random columns beside the null vectors are filtered once above the centre of the spectrum (`begin`).
     2. The Ritz pairs of the block are computed (`ritz.c`).
     3. Their residuals and gaps tell what is missing (`shortfall_of`), and the degree of the next filter (`degree_of`).
     4. Columns that have not converged are filtered above the largest Ritz value, and the loop goes on with 2.
   SciPy's `eigsh` extends a Krylov space by one vector a step instead; a block finds multiple eigenvalues. */

#include "kernels.h"

/* Return the logarithm, for each degree, of the Chebyshev polynomial on [low, bound] at a value below. */
static double log_growth(double value, double low, double bound)
{
    return acosh(1 + fmax(2 / (bound - low) * (low - value), 1e-7));
}

/* Filter the columns of a graph from `first` on between `low` and the bound. Columns that may have grown too large for
   squares are divided by their largest number. `room`: see `subspace`. */
static void filtered(Subspace *task, int64_t graph, int64_t first, double low, int64_t degree, double most,
                     double *room)
{
    Filter own = *task->filter;
    const int64_t n = own.nodes, m = own.columns, whole = (m - first + LINE - 2) / LINE;
    const double bound = task->bound[graph];
    const int64_t work = (int64_t)(own.rows.crow[(graph + 1) * n] - own.rows.crow[graph * n]) * (m - first) * degree;
    double *const out = task->filter->out + graph * n * m;
    own.centre[graph] = (low + bound) / 2, own.scale[graph] = 4 / (bound - low), own.degree[graph] = degree;
    own.first = first;
    if (own.graphs == 1) { /* threads share the columns */
        const int64_t parts = work / task->part_work < task->threads ? work / task->part_work : task->threads;
        own.groups = parts < 1 ? 1 : parts < whole ? parts : whole;
        if (!filter(&own, own.groups, task->threads)) task->state[graph] = STOPPED;
    } else
        filter_of(&own, graph, own.graphs, room);
    __atomic_fetch_add(&task->work_done, work, __ATOMIC_RELAXED);
    task->products[graph] += degree + 1;
    if (degree * log_growth(most, low, bound) < log(DBL_MAX) / 4) return;
    for (int64_t j = first; j < m; j++) {
        double largest = 0;
        for (int64_t i = 0; i < n; i++) largest = fabs(out[i * m + j]) > largest ? fabs(out[i * m + j]) : largest;
        for (int64_t i = 0; i < n && largest > 0; i++) out[i * m + j] /= largest;
    }
}

/* Step 1. Filter random columns, in `vectors`, once above the centre of the spectrum, where most values are. The first try has
   the least degree that is worth Ritz pairs. Where it makes columns dependent, as with few values near 0, the second
   try has a degree that never does. Return whether there was a filter to try. */
static int prefilter(Subspace *task, int64_t graph, double *room)
{
    const FilterSettings *settings = task->settings;
    const double bound = task->bound[graph], most = log(0.1 / sqrt(DBL_EPSILON));
    if (!task->centre || task->iterations[graph] > 1 || settings->iterations == 0 || !(bound > 0)) return 0;
    const double low = fmin(task->centre[graph], settings->highest * bound),
                 sound = floor(most / log_growth(0, low, bound));
    const int64_t limit = settings->degree < settings->products ? settings->degree : settings->products;
    int64_t degree = task->iterations[graph] == 0 && sound < settings->least_degree ? settings->least_degree : sound;
    if (task->iterations[graph] == 1 && task->filter->degree[graph] <= sound) return 0;
    if (degree > limit) degree = limit;
    if (degree < 1) return 0;
    filtered(task, graph, 0, low, degree, 0, room);
    task->iterations[graph] = 1;
    return 1;
}

/* Project the random columns off the null vectors, put these in the place of the first columns, and filter. */
static void begin(Subspace *task, int64_t graph, double *room)
{
    const Ritz *pairs = task->ritz;
    const int64_t n = pairs->nodes, m = pairs->columns, of_null = pairs->null_step,
                  nulls = task->nullity[graph] < pairs->nulls ? task->nullity[graph] : pairs->nulls;
    double *const x = task->filter->out + graph * n * m;
    const double *const null = pairs->null + graph * n * of_null;
    double *const dots = room;
    for (int64_t k = 0; k < nulls; k++) {
        for (int64_t j = 0; j < m; j++) dots[j] = 0;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < m; j++) dots[j] += null[i * of_null + k] * x[i * m + j];
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < m; j++) x[i * m + j] -= null[i * of_null + k] * dots[j];
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < nulls; k++) x[i * m + k] = null[i * of_null + k];
    if (nulls < m) {
        memcpy(pairs->vectors + graph * n * m, x, n * m * sizeof(double));
        prefilter(task, graph, room);
    }
}

/* How far a graph is from its pairs: the allowed residual; logarithms of the factors by which the residuals of the wanted
   pairs and of the next one must still fall; the largest residual from the last wanted pair on. */
typedef struct {
    double allowed, needed, next, cluster;
} Shortfall;

/* Step 3. */
static Shortfall shortfall_of(const Subspace *task, int64_t graph)
{
    const int64_t m = task->ritz->columns, wanted = task->wanted;
    double *const values = task->ritz->values + graph * m, *const residuals = task->ritz->residuals + graph * m;
    double worst = 0, cluster = 0;
    for (int64_t j = 0; j < m; j++) { /* no value below 0 is returned: residuals are those of 0 then */
        if (values[j] < 0) residuals[j] = hypot(residuals[j], values[j]), values[j] = 0;
        if (j < wanted) worst = fmax(worst, residuals[j]);
        if (j >= wanted - 1) cluster = fmax(cluster, residuals[j]);
    }
    const double gap = m > wanted ? values[wanted] - values[wanted - 1] : 0, round_off = task->round_off[graph];
    const double allowed = fmax(task->settings->tolerance * gap, round_off);
    Shortfall left = {allowed, log(worst / allowed), -INFINITY, cluster};
    if (gap > round_off) left.next = log(residuals[wanted] / fmax(task->settings->settled * gap, allowed));
    return left;
}

/* Return the degree of the next filter above `low`: what residuals need, as far as no pair drowns others. */
static double degree_of(const Subspace *task, int64_t graph, const Shortfall *left, double low)
{
    const FilterSettings *settings = task->settings;
    const int64_t m = task->ritz->columns, wanted = task->wanted;
    const double *const values = task->ritz->values + graph * m, *const residuals = task->ritz->residuals + graph * m;
    const double bound = task->bound[graph], last_wanted = values[wanted - 1], digits = -log(DBL_EPSILON);
    const double kth = log_growth(last_wanted, low, bound);
    const double following = log_growth(values[wanted < m ? wanted : m - 1], low, bound);
    const double enough = fmax((left->needed + settings->spare) / kth, left->next > 0 ? left->next / following : 0);
    const double useful = fmin(fmax(fmin(enough, settings->damping / kth), settings->least_degree), settings->degree);
    /* A pair of value 0 may still be hidden in the block, and must not overflow. */
    double longest = settings->overflow * log(DBL_MAX) / log_growth(0, low, bound);
    for (int64_t j = 0; j < wanted; j++) { /* how much this pair may grow before it drowns the others */
        const double own = log_growth(values[j], low, bound), without = log((last_wanted - values[j]) / residuals[j]);
        const double most = fmin(fmax(without, 0.5 * digits), settings->clean * digits);
        longest = fmin(longest, most / fmax(fmax(own - kth, (own - following) / 1.5), 1e-7));
    }
    return ceil(fmin(useful, fmax(longest, 1)));
}

/* Finish a graph whose pairs are found; apply the next filter to the others, or give up. */
static void decide(Subspace *task, int64_t graph, double *room)
{
    const FilterSettings *settings = task->settings;
    const int64_t m = task->ritz->columns, wanted = task->wanted;
    const double *const values = task->ritz->values + graph * m, *const residuals = task->ritz->residuals + graph * m;
    const double bound = task->bound[graph], last = values[m - 1];
    const Shortfall left = shortfall_of(task, graph);
    const int is_right = left.needed <= 0 && left.next <= 0;
    task->state[graph] = is_right ? FINISHED : GIVES_UP;
    if (is_right || task->iterations[graph] == settings->iterations) return;
    int64_t settled = 0; /* these pairs stay as they are, in whole lines of the cache */
    while (settled < wanted && residuals[settled] <= left.allowed) settled++;
    settled -= settled % LINE;
    /* If residuals leave the block in one cluster, the damped interval begins above it. */
    const double same = fmax(task->round_off[graph], left.cluster <= settings->close * bound ? left.cluster : 0);
    const double above = last - values[wanted - 1] <= same ? settings->beyond * (bound - last) : 0;
    const double low = fmin(last + above, settings->highest * bound), degree = degree_of(task, graph, &left, low);
    const double predicted = left.needed / log_growth(values[wanted - 1], low, bound);
    const double more = fmax(degree, task->iterations[graph] >= settings->shown ? predicted : 0);
    if (!(degree >= 1) || task->products[graph] + 1 + more > settings->products) return;
    task->iterations[graph]++, task->state[graph] = GOES_ON;
    filtered(task, graph, settled, low, degree, values[settled], room);
}

static void subspace_of(void *data, int64_t part, int64_t parts, double *room)
{
    Subspace *task = data;
    const int64_t graphs = task->ritz->graphs;
    for (int64_t graph = graphs * part / parts; graph < graphs * (part + 1) / parts; graph++) {
        if (task->state[graph] == BEGINS) task->state[graph] = GOES_ON, begin(task, graph, room);
        while (task->state[graph] <= GOES_ON && __atomic_load_n(&task->work_done, __ATOMIC_RELAXED) < task->most_work) {
            if (ritz_of_graph(task->ritz, graph, room))
                decide(task, graph, room);
            else if (task->iterations[graph] != 1 || !prefilter(task, graph, room))
                task->state[graph] = DEPENDENT;
        }
    }
}

/* Return the number of graphs that another call must go on with; NO_MEMORY where there is not enough. */
int64_t subspace(Subspace *task)
{
    const int64_t n = task->ritz->nodes, of_pairs = ROOM_OF_RITZ(n, task->ritz->columns), of_filter = ROOM_OF_FILTER(n);
    int64_t left = 0;
    task->work_done = 0;
    if (!share(subspace_of, task, task->ritz->graphs, task->threads, of_pairs > of_filter ? of_pairs : of_filter))
        return NO_MEMORY;
    for (int64_t graph = 0; graph < task->ritz->graphs; graph++) left += task->state[graph] <= GOES_ON;
    return left;
}
