/* What is asked of the weights of a graph before it is solved. A part of `kernels.c`. */

/* Degrees of the nodes, and the number of its component for each active one, of a degree above `tiny`, ascending by first
   nodes; 0 for the others. `queue`: room for n nodes.
   largest: of the degrees. total: their sum. active, parts, longest: nodes, components, edges of a row at most.
   least: the smallest degree of an active node. is_sound: no weight is negative or NaN. has_subnormal: a degree is above 0
   and not above `tiny`. */
typedef struct {
    const int32_t *crow, *col;
    const REAL *weight;
    int64_t n;
    REAL *degrees;
    int64_t *part;
    int32_t *queue;
    double tiny, largest, least, total;
    int64_t active, parts, longest, is_sound, has_subnormal;
} NAME(Weights);

/* All that edges of positive weight lead to from a node becomes part of its component. */
INLINE void NAME(spread_part)(const NAME(Weights) * t, int64_t from)
{
    int64_t done = 0, found = 1;
    t->queue[0] = from, t->part[from] = t->parts;
    while (done < found) {
        const int32_t i = t->queue[done++];
        for (int32_t e = t->crow[i]; e < t->crow[i + 1]; e++) {
            const int32_t j = t->col[e];
            if (t->part[j] < 0 && t->weight[e] > 0) t->part[j] = t->parts, t->queue[found++] = j;
        }
    }
}

void NAME(weigh)(NAME(Weights) * t)
{
    t->largest = t->total = t->active = t->parts = t->longest = t->has_subnormal = 0, t->is_sound = 1, t->least = INFINITY;
    for (int64_t i = 0; i < t->n; i++) {
        double sum = 0;
        for (int32_t e = t->crow[i]; e < t->crow[i + 1]; e++) {
            sum += t->weight[e];
            if (!(t->weight[e] >= 0)) t->is_sound = 0;
        }
        const double degree = t->degrees[i] = sum;
        const int is_active = degree > t->tiny;
        if (t->crow[i + 1] - t->crow[i] > t->longest) t->longest = t->crow[i + 1] - t->crow[i];
        if (degree > t->largest) t->largest = degree;
        if (is_active && degree < t->least) t->least = degree;
        if (degree > 0 && !is_active) t->has_subnormal = 1;
        t->total += degree, t->active += is_active, t->part[i] = is_active ? -1 : 0;
    }
    for (int64_t i = 0; i < t->n; i++)
        if (t->part[i] < 0) NAME(spread_part)(t, i), t->parts++;
}
