/* Subspace iteration on Chebyshev filters, whole, for each graph of a batch by itself: the loop of `ChebyshevSubspace`, with
   its rule. A part of `kernels.c`. */

#define ROOM_OF_FILTER(n) (2 * (n) * 17) /* numbers that filters of columns of n nodes write beside their answer */

/* T_degree(Ã) x of `graphs` graphs of n nodes, Ã = (A − centre) scale / 2, for the columns from `first` on; the others are
   copied. See `Operator.chebyshev`. `work` has ROOM_OF_FILTER for each thread. The columns of one graph may be in `groups`,
   each a part. */
typedef struct {
    Rows_double a;
    int64_t graphs, n, m, first, groups;
    const int64_t *degree;
    const double *centre, *scale, *x;
    double *out, *work;
} Filter;

/* Copy `width` numbers of each of n rows. */
INLINE void copy_rows(int64_t n, int64_t width, const double *x, int64_t of_x, double *out, int64_t of_out)
{
    for (int64_t i = 0; i < n; i++) memcpy(out + i * of_out, x + i * of_x, width * sizeof(double));
}

/* Some columns of one graph, in a block of their own: as many as are read in two lines of the cache. */
INLINE void filter_columns(const Filter * f, int64_t g, int64_t first, int64_t width, double *room)
{
    const int64_t n = f->n, begin = g * n * f->m + first;
    double *old = room, *new = room + n * width;
    Task_double t = {.a = f->a, .mode = SYSTEM, .from = g * n, .to = g * n + n, .base = g * n, .m = width};
    t.of_y = t.of_other = t.of_out = width;
    copy_rows(n, width, f->x + begin, f->m, old, width);
    t.y = old, t.out = new, t.times = f->scale[g] / 2, t.centre = f->centre[g], t.other = 0;
    product_of_double(&t, 0, 1, 0);
    t.times = f->scale[g], t.plus = -1;
    for (int64_t step = 1; step < f->degree[g]; step++) {
        t.y = new, t.other = t.out = old;
        product_of_double(&t, 0, 1, 0);
        double *next = old;
        old = new, new = next;
    }
    copy_rows(n, width, new, width, f->out + begin, f->m);
}

FAST static void filter_of(void *task, int64_t part, int64_t parts, int64_t thread)
{
    const Filter *f = task;
    const int64_t n = f->n, m = f->m - f->first, lanes = 8, all = f->graphs * f->groups;
    double *room = f->work + thread * ROOM_OF_FILTER(n);
    for (int64_t u = all * part / parts; u < all * (part + 1) / parts; u++) {
        const int64_t g = u / f->groups, group = u % f->groups, whole = (m + lanes - 2) / lanes; /* no column alone */
        const int64_t next = whole * (group + 1) / f->groups * lanes, end = group + 1 < f->groups ? next : m;
        int64_t at = whole * group / f->groups * lanes;
        if (at == 0) copy_rows(n, f->first, f->x + g * n * f->m, f->m, f->out + g * n * f->m, f->m);
        for (int64_t width; at < end; at += width) {
            width = end - at <= 2 * lanes + 1 ? end - at : 2 * lanes;
            filter_columns(f, g, f->first + at, width, room);
        }
    }
}

void filter(Filter * f, int64_t parts, int64_t threads) { share(filter_of, f, parts, threads); }


/* The numbers of the rule, which has its reasons in `torch_lapeig.eigen.solvers.chebyshev`, by their names there, and the options. */
typedef struct {
    double beyond, highest, overflow, damping, clean, spare, close, settled, tolerance;
    int64_t shown, least_degree, iterations, degree, products;
} Rule;

/* States of a graph: on the way, done, given up, of dependent columns. */
enum { BEGINS, GOES_ON, FINISHED, GIVES_UP, DEPENDENT };

/* Logarithm, for each degree, of the Chebyshev polynomial on [low, bound] at a value below. */
static double log_growth(double value, double low, double bound)
{
    return acosh(1 + fmax(2 / (bound - low) * (low - value), 1e-7));
}

/* Of `ritz` x is the block, which is overwritten; `vectors`, `values`, `residuals` are the answer. What the filter takes
   graph by graph is written here. `known`: null vectors of each graph. `centre`: about the mean of each spectrum;
   may be NULL. `work` of multiplications ends a call, which goes on where it is called again. */
typedef struct {
    Ritz *ritz;
    Filter *filter;
    const Rule *rule;
    int64_t k, threads, part, work, spent;
    const int64_t *known;
    const double *bound, *round_off, *centre;
    int64_t *state, *iterations, *products, *degree;
    double *block, *centres, *scales;
} Subspace;

/* Filter the columns of a block from `first` on between `low` and the bound, and set where they grow too large for squares,
   over their largest numbers. */
static void filtered(Subspace * s, int64_t g, int64_t first, double low, int64_t degree, double most, int64_t thread)
{
    Filter f = *s->filter;
    const int64_t n = f.n, m = f.m, lanes = 8, whole = (m - first + lanes - 2) / lanes;
    const double bound = s->bound[g];
    const int64_t work = (int64_t)(f.a.crow[(g + 1) * n] - f.a.crow[g * n]) * (m - first) * degree;
    double *const out = s->block + g * n * m;
    s->centres[g] = (low + bound) / 2, s->scales[g] = 4 / (bound - low), s->degree[g] = degree;
    f.x = s->ritz->vectors, f.first = first;
    if (f.graphs == 1) { /* the columns of one graph each by themselves, on several threads */
        const int64_t parts = work / s->part < s->threads ? work / s->part : s->threads;
        f.groups = parts < 1 ? 1 : parts < whole ? parts : whole;
        share(filter_of, &f, f.groups, s->threads);
    } else
        filter_of(&f, g, f.graphs, thread);
    __atomic_fetch_add(&s->spent, work, __ATOMIC_RELAXED);
    s->products[g] += degree + 1;
    if (degree * log_growth(most, low, bound) < 177) return; /* a fourth of what is a number */
    for (int64_t c = first; c < m; c++) {
        double largest = 0;
        for (int64_t i = 0; i < n; i++) largest = fabs(out[i * m + c]) > largest ? fabs(out[i * m + c]) : largest;
        for (int64_t i = 0; i < n && largest > 0; i++) out[i * m + c] /= largest;
    }
}

/* Filter random columns, in `vectors`, once above the centre of the spectrum: there, as is known, most of their values are.
   First by the least degree that is worth a look, and where that makes them dependent, as of few values near 0, by as much
   less as never does. Whether there is such a filter. */
static int prefilter(Subspace * s, int64_t g, int64_t thread)
{
    const Rule *u = s->rule;
    const double bound = s->bound[g], most = log(0.1 / sqrt(0x1p-52));
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

/* Take the null vectors out of the random columns, set them in the place of the first ones, and filter. */
static void begin(Subspace * s, int64_t g, int64_t thread)
{
    const Ritz *r = s->ritz;
    const int64_t n = r->n, m = r->m, of_null = r->of_null, nulls = s->known[g] < r->nulls ? s->known[g] : r->nulls;
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

/* Whether the pairs of a graph are found; if not, the next filter, unless it is to be given up. */
static void decide(Subspace * s, int64_t g, int64_t thread)
{
    const Rule *u = s->rule;
    const int64_t m = s->ritz->m, k = s->k;
    double *const values = s->ritz->values + g * m, *const residuals = s->ritz->residuals + g * m;
    const double bound = s->bound[g], round_off = s->round_off[g], eps = 0x1p-52;
    double worst = 0, cluster = 0;
    for (int64_t c = 0; c < m; c++) { /* residuals of the values that are said, none below 0 */
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

    /* Pairs that are found stay as they are, as many as lines of the cache are full of. */
    int64_t settled = 0;
    while (settled < k && residuals[settled] <= allowed) settled++;
    settled -= settled % (8);

    const double last = values[m - 1], same = fmax(round_off, cluster <= u->close * bound ? cluster : 0);
    const double low = fmin(last + (last - values[k - 1] <= same ? u->beyond * (bound - last) : 0), u->highest * bound);
    const double kth = log_growth(values[k - 1], low, bound);
    const double following = log_growth(values[k < m ? k : m - 1], low, bound);
    const double enough = fmax((needed + u->spare) / kth, next > 0 ? next / following : 0);
    const double wanted = fmin(fmax(fmin(enough, u->damping / kth), u->least_degree), u->degree);
    double longest = u->overflow * log(0x1p1023);
    longest /= log_growth(0, low, bound); /* a value of 0 may have been overlooked so far */
    for (int64_t c = 0; c < k; c++) { /* as much of a pair that is nearly found is not in the others */
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
        while (s->state[g] <= GOES_ON && __atomic_load_n(&s->spent, __ATOMIC_RELAXED) < s->work) {
            ritz_of(s->ritz, g, graphs, thread);
            if (s->ritz->sound[g])
                decide(s, g, thread);
            else if (s->iterations[g] != 1 || !prefilter(s, g, thread))
                s->state[g] = DEPENDENT;
        }
    }
}

/* The number of graphs that are to go on in another call. */
int64_t subspace(Subspace * s)
{
    int64_t left = 0;
    s->spent = 0;
    share(subspace_of, s, s->ritz->graphs, s->threads);
    for (int64_t g = 0; g < s->ritz->graphs; g++) left += s->state[g] <= GOES_ON;
    return left;
}
