/* Subspace iteration on Chebyshev filters, each graph of a batch by itself: the loop of `ChebyshevSubspace`, with its
   rule. */

#include "kernels.h"

enum { BEGINS, GOES_ON, FINISHED, GIVES_UP, DEPENDENT }; /* states of a graph */

/* Return the logarithm, for each degree, of the Chebyshev polynomial on [low, bound] at a value below. */
static double log_growth(double value, double low, double bound)
{
    return acosh(1 + fmax(2 / (bound - low) * (low - value), 1e-7));
}

/* Filter the columns of a graph from `first` on between `low` and the bound. Columns that may have grown too large for
   squares are divided by their largest number. */
static void filtered(Subspace *s, int64_t g, int64_t first, double low, int64_t degree, double most, int64_t thread)
{
    Filter f = *s->filter;
    const int64_t n = f.nodes, m = f.columns, whole = (m - first + LINE - 2) / LINE;
    const double bound = s->bound[g];
    const int64_t work = (int64_t)(f.rows.crow[(g + 1) * n] - f.rows.crow[g * n]) * (m - first) * degree;
    double *const out = s->block + g * n * m;
    s->centres[g] = (low + bound) / 2, s->scales[g] = 4 / (bound - low), s->degree[g] = degree;
    f.x = s->ritz->vectors, f.first = first;
    if (f.graphs == 1) { /* threads share the columns */
        const int64_t parts = work / s->part_work < s->threads ? work / s->part_work : s->threads;
        f.groups = parts < 1 ? 1 : parts < whole ? parts : whole;
        share(filter_of, &f, f.groups, s->threads);
    } else
        filter_of(&f, g, f.graphs, thread);
    __atomic_fetch_add(&s->work_done, work, __ATOMIC_RELAXED);
    s->products[g] += degree + 1;
    if (degree * log_growth(most, low, bound) < log(DBL_MAX) / 4) return;
    for (int64_t c = first; c < m; c++) {
        double largest = 0;
        for (int64_t i = 0; i < n; i++) largest = fabs(out[i * m + c]) > largest ? fabs(out[i * m + c]) : largest;
        for (int64_t i = 0; i < n && largest > 0; i++) out[i * m + c] /= largest;
    }
}

/* Filter random columns, in `vectors`, once above the centre of the spectrum, where most values are. The first try has
   the least degree that is worth Ritz pairs. Where it makes columns dependent, as with few values near 0, the second
   try has a degree that never does. Return whether there was a filter to try. */
static int prefilter(Subspace *s, int64_t g, int64_t thread)
{
    const Rule *u = s->rule;
    const double bound = s->bound[g], most = log(0.1 / sqrt(DBL_EPSILON));
    if (!s->centre || s->iterations[g] > 1 || u->iterations == 0 || !(bound > 0)) return 0;
    const double low = fmin(s->centre[g], u->highest * bound), sound = floor(most / log_growth(0, low, bound));
    const int64_t limit = u->degree < u->products ? u->degree : u->products;
    int64_t degree = s->iterations[g] == 0 && sound < u->least_degree ? u->least_degree : sound;
    if (s->iterations[g] == 1 && s->degree[g] <= sound) return 0;
    if (degree > limit) degree = limit;
    if (degree < 1) return 0;
    filtered(s, g, 0, low, degree, 0, thread);
    s->iterations[g] = 1;
    return 1;
}

/* Project the random columns off the null vectors, put these in the place of the first columns, and filter. */
static void begin(Subspace *s, int64_t g, int64_t thread)
{
    const Ritz *r = s->ritz;
    const int64_t n = r->nodes, m = r->columns, of_null = r->null_step,
                  nulls = s->nullity[g] < r->nulls ? s->nullity[g] : r->nulls;
    double *const x = s->block + g * n * m;
    const double *const null = r->null + g * n * of_null;
    double *const dots = r->room + thread * ROOM_OF_RITZ(m);
    for (int64_t a = 0; a < nulls; a++) {
        for (int64_t c = 0; c < m; c++) dots[c] = 0;
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < m; c++) dots[c] += null[i * of_null + a] * x[i * m + c];
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < m; c++) x[i * m + c] -= null[i * of_null + a] * dots[c];
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t a = 0; a < nulls; a++) x[i * m + a] = null[i * of_null + a];
    if (nulls < m) {
        memcpy(r->vectors + g * n * m, x, n * m * sizeof(double));
        prefilter(s, g, thread);
    }
}

/* Finish a graph whose pairs are found; apply the next filter to the others, or give up. */
static void decide(Subspace *s, int64_t g, int64_t thread)
{
    const Rule *u = s->rule;
    const int64_t m = s->ritz->columns, k = s->wanted;
    double *const values = s->ritz->values + g * m, *const residuals = s->ritz->residuals + g * m;
    const double bound = s->bound[g], round_off = s->round_off[g], eps = DBL_EPSILON;
    double worst = 0, cluster = 0;
    for (int64_t c = 0; c < m; c++) { /* no value below 0 is returned: residuals are those of 0 then */
        if (values[c] < 0) residuals[c] = hypot(residuals[c], values[c]), values[c] = 0;
        if (c < k) worst = fmax(worst, residuals[c]);
        if (c >= k - 1) cluster = fmax(cluster, residuals[c]);
    }
    const double gap = m > k ? values[k] - values[k - 1] : 0, allowed = fmax(u->tolerance * gap, round_off);
    double needed = log(worst / allowed), next = -INFINITY;
    if (m > k && gap > round_off) next = log(residuals[k] / fmax(u->settled * gap, allowed));
    const int is_right = needed <= 0 && next <= 0;
    s->state[g] = is_right ? FINISHED : GIVES_UP;
    if (is_right || s->iterations[g] == u->iterations) return;

    /* Pairs that are found stay as they are, in whole lines of the cache. */
    int64_t settled = 0;
    while (settled < k && residuals[settled] <= allowed) settled++;
    settled -= settled % LINE;

    const double last = values[m - 1], same = fmax(round_off, cluster <= u->close * bound ? cluster : 0);
    const double low = fmin(last + (last - values[k - 1] <= same ? u->beyond * (bound - last) : 0), u->highest * bound);
    const double kth = log_growth(values[k - 1], low, bound);
    const double following = log_growth(values[k < m ? k : m - 1], low, bound);
    const double enough = fmax((needed + u->spare) / kth, next > 0 ? next / following : 0);
    const double wanted = fmin(fmax(fmin(enough, u->damping / kth), u->least_degree), u->degree);
    double longest = u->overflow * log(DBL_MAX);
    longest /= log_growth(0, low, bound); /* a pair of value 0 may still be hidden in the block */
    for (int64_t c = 0; c < k; c++) {     /* how much this pair may grow before it drowns the others */
        const double own = log_growth(values[c], low, bound), without = log((values[k - 1] - values[c]) / residuals[c]);
        const double room = fmin(fmax(without, -0.5 * log(eps)), -u->clean * log(eps));
        longest = fmin(longest, room / fmax(fmax(own - kth, (own - following) / 1.5), 1e-7));
    }
    const double degree = ceil(fmin(wanted, fmax(longest, 1)));
    const double left = s->iterations[g] >= u->shown ? needed / kth : 0, products = s->products[g] + degree + 1;
    if (!(degree >= 1) || fmax(products, s->products[g] + 1 + left) > u->products) return;
    s->iterations[g]++, s->state[g] = GOES_ON;
    filtered(s, g, settled, low, degree, values[settled], thread);
}

static void subspace_of(void *task, int64_t part, int64_t parts, int64_t thread)
{
    Subspace *s = task;
    const int64_t graphs = s->ritz->graphs;
    for (int64_t g = graphs * part / parts; g < graphs * (part + 1) / parts; g++) {
        if (s->state[g] == BEGINS) begin(s, g, thread), s->state[g] = GOES_ON;
        while (s->state[g] <= GOES_ON && __atomic_load_n(&s->work_done, __ATOMIC_RELAXED) < s->most_work) {
            ritz_of(s->ritz, g, graphs, thread);
            if (s->ritz->is_sound[g])
                decide(s, g, thread);
            else if (s->iterations[g] != 1 || !prefilter(s, g, thread))
                s->state[g] = DEPENDENT;
        }
    }
}

/* Return the number of graphs that another call must go on with. */
int64_t subspace(Subspace *s)
{
    int64_t left = 0;
    s->work_done = 0;
    share(subspace_of, s, s->ritz->graphs, s->threads);
    for (int64_t g = 0; g < s->ritz->graphs; g++) left += s->state[g] <= GOES_ON;
    return left;
}
