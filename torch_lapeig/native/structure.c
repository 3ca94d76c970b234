/* The structure of factors L D Lᵀ of sparse symmetric matrices. */

#include "kernels.h"

void release(SymbolicFactor *symbolic)
{
    if (!symbolic) return;
    void *const parts[] = {symbolic->node, symbolic->first,        symbolic->parent, symbolic->row_start,
                           symbolic->row,  symbolic->column_start, symbolic};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) free(parts[i]);
}

/* Return whether a front of so many columns to eliminate is worth the zeros in it. */
INLINE int is_worth(int64_t columns, double zeros, double entries)
{
    const double share = zeros / entries;
    return columns <= 4 || (columns <= 16 && share < 0.5) || (columns <= 48 && share < 0.15) || share < 0.05;
}

/* Sort 0 … count − 1 by their keys below `keys`: `order`, and where each key begins (keys + 1). */
INLINE void by_key(int64_t count, int64_t keys, const int32_t *key, int32_t *begin, int32_t *order)
{
    memset(begin, 0, (keys + 1) * sizeof *begin);
    for (int64_t i = 0; i < count; i++) begin[key[i] + 1]++;
    for (int64_t k = 0; k < keys; k++) begin[k + 1] += begin[k];
    for (int64_t i = 0; i < count; i++) order[begin[key[i]]++] = i;
    for (int64_t k = keys; k > 0; k--) begin[k] = begin[k - 1];
    begin[0] = 0;
}

/* Find the rows below each supernode, as nodes, and its parent: rows of its own columns and of its children.
   Supernodes are numbered as they are eliminated. `rows` (supers + 1) says where each begins in the pool. `work` has
   room for 5 n + 1 numbers. Return 0 where memory is not enough. */
static int rows_below(int64_t n, const int32_t *crow, const int32_t *col, int64_t supers, const int32_t *super,
                      int32_t *parent, int64_t *rows, int32_t **pool, int64_t *room, int32_t *work)
{
    int32_t *const begin = work, *const nodes = begin + n + 1, *const seen = nodes + n;
    int32_t *const child = seen + n, *const sibling = child + n;
    by_key(n, supers, super, begin, nodes);
    for (int64_t i = 0; i < n; i++) seen[i] = child[i] = -1;
    rows[0] = 0;
    for (int64_t k = 0; k < supers; k++) {
        int64_t bound = 0, to = rows[k];
        for (int32_t i = begin[k]; i < begin[k + 1]; i++) bound += crow[nodes[i] + 1] - crow[nodes[i]];
        for (int32_t j = child[k]; j >= 0; j = sibling[j]) bound += rows[j + 1] - rows[j];
        if (!make_room(pool, room, to, bound)) return 0;
        int32_t *const list = *pool;
        int64_t least = supers;
        for (int32_t i = begin[k]; i < begin[k + 1]; i++)
            for (int32_t edge = crow[nodes[i]]; edge < crow[nodes[i] + 1]; edge++)
                if (super[col[edge]] > k && seen[col[edge]] != k) {
                    seen[col[edge]] = k, list[to++] = col[edge];
                    least = super[col[edge]] < least ? super[col[edge]] : least;
                }
        for (int32_t j = child[k]; j >= 0; j = sibling[j])
            for (int64_t i = rows[j]; i < rows[j + 1]; i++)
                if (super[list[i]] > k && seen[list[i]] != k) {
                    seen[list[i]] = k, list[to++] = list[i];
                    least = super[list[i]] < least ? super[list[i]] : least;
                }
        rows[k + 1] = to, parent[k] = least;
        if (least < supers) sibling[k] = child[least], child[least] = k;
    }
    return 1;
}

/* Join children to their parents where that makes larger fronts with few zeros. `group`: the supernode that each ends
   in. */
static void join(int64_t supers, const int32_t *width, const int32_t *parent, const int64_t *rows, int32_t *group,
                 int32_t *columns, double *zeros)
{
    for (int64_t k = 0; k < supers; k++) group[k] = k, columns[k] = width[k], zeros[k] = 0;
    for (int64_t k = 0; k < supers; k++) {
        const int64_t into = parent[k];
        if (into == supers) continue;
        const int64_t below = rows[k + 1] - rows[k], above = rows[into + 1] - rows[into],
                      all = columns[k] + columns[into];
        const double more = zeros[k] + zeros[into] + (double)columns[k] * (columns[into] + above - below);
        if (!is_worth(all, more, 0.5 * all * (all + 1) + (double)all * above)) continue;
        group[k] = into, columns[into] = all, zeros[into] = more;
    }
    for (int64_t k = supers - 1; k >= 0; k--) group[k] = group[group[k]];
}

/* Order the groups so that children come just before their parents: `place` of each group. Return their number. */
static int64_t in_postorder(int64_t supers, const int32_t *parent, const int32_t *group, int32_t *place, int32_t *child,
                            int32_t *sibling)
{
    int64_t count = 0;
    for (int64_t k = 0; k <= supers; k++) child[k] = -1;
    for (int64_t k = supers - 1; k >= 0; k--) {
        if (group[k] != k) continue;
        const int64_t into = parent[k] < supers ? group[parent[k]] : supers;
        sibling[k] = child[into], child[into] = k;
    }
    for (int64_t root = child[supers]; root >= 0; root = sibling[root])
        for (int64_t k = root;;) {
            while (child[k] >= 0) { /* down, and never again this way */
                const int64_t down = child[k];
                child[k] = sibling[down], k = down;
            }
            place[k] = count++;
            if (k == root) break;
            k = group[parent[k]];
        }
    return count;
}

/* Fill the structure from the groups in their order. `work` has room for n + 1 numbers. Return 0 where memory is not
   enough. */
static int lay_out(SymbolicFactor *symbolic, int64_t supers, const int32_t *super, const int32_t *parent,
                   const int32_t *group, const int32_t *place, const int64_t *rows, const int32_t *pool,
                   int32_t *position, int32_t *work)
{
    const int64_t n = symbolic->nodes, count = symbolic->supers;
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) work[i] = place[group[super[i]]];
    by_key(n, count, work, symbolic->first, symbolic->node);
    for (int64_t i = 0; i < n; i++) position[symbolic->node[i]] = i;
    for (int64_t j = 0; j < supers; j++)
        if (group[j] == j) total += rows[j + 1] - rows[j];
    symbolic->row = malloc((total + 1) * sizeof *symbolic->row);
    int64_t *const by_row = calloc(n + 1, sizeof *by_row);
    int32_t *const of = malloc((total + 1) * sizeof *of);
    if (!symbolic->row || !by_row || !of) {
        free(by_row), free(of);
        return 0;
    }
    for (int64_t j = 0; j < supers; j++) { /* rows by their position, then by super: so they come ascending in each */
        if (group[j] != j) continue;
        symbolic->row_start[place[j] + 1] = rows[j + 1] - rows[j];
        symbolic->parent[place[j]] = parent[j] < supers ? place[group[parent[j]]] : count;
        for (int64_t k = rows[j]; k < rows[j + 1]; k++) by_row[position[pool[k]] + 1]++;
    }
    for (int64_t i = 0; i < n; i++) by_row[i + 1] += by_row[i];
    for (int64_t j = 0; j < supers; j++)
        if (group[j] == j)
            for (int64_t k = rows[j]; k < rows[j + 1]; k++) of[by_row[position[pool[k]]]++] = place[j];
    symbolic->row_start[0] = 0;
    for (int64_t k = 0; k < count; k++) symbolic->row_start[k + 1] += symbolic->row_start[k], work[k] = 0;
    for (int64_t i = 0, k = 0; i < n; i++)
        for (; k < by_row[i]; k++) symbolic->row[symbolic->row_start[of[k]] + work[of[k]]++] = i;
    free(by_row), free(of);
    return 1;
}

/* Measure the fronts, and find where the columns of each begin. Return 0 where memory is not enough. */
static int measure(SymbolicFactor *symbolic)
{
    int64_t *const held = calloc(symbolic->supers + 1, sizeof *held), now = 0;
    if (!held) return 0;
    symbolic->widest = symbolic->waiting = symbolic->column_start[0] = 0;
    for (int64_t k = 0; k < symbolic->supers; k++) {
        const int64_t width = symbolic->first[k + 1] - symbolic->first[k],
                      below = symbolic->row_start[k + 1] - symbolic->row_start[k];
        const int64_t own = below * (below + 1) / 2;
        symbolic->column_start[k + 1] = symbolic->column_start[k] + width * (width + below);
        symbolic->widest = width + below > symbolic->widest ? width + below : symbolic->widest;
        now += own - held[k], held[symbolic->parent[k]] += own;
        symbolic->waiting = now > symbolic->waiting ? now : symbolic->waiting;
    }
    free(held);
    return 1;
}

/* Return whether rows have `entries` columns of n nodes, ascending in each row, and each entry its reverse, so that all
   loops here stay within their arrays. `next`, room for n numbers, becomes the entry in each row that no entry has met
   yet: the entries of a column meet its row in their order. */
int64_t is_symmetric(int64_t n, int64_t entries, const int32_t *crow, const int32_t *col, int32_t *next)
{
    if (crow[0] != 0 || crow[n] != entries) return 0;
    for (int64_t i = 0; i < n; i++) {
        if (crow[i] > crow[i + 1]) return 0;
        next[i] = crow[i];
    }
    for (int64_t i = 0; i < n; i++)
        for (int32_t edge = crow[i]; edge < crow[i + 1]; edge++) {
            const int32_t j = col[edge];
            if (j < 0 || j >= n || (edge > crow[i] && j <= col[edge - 1])) return 0;
            if (next[j] == crow[j + 1] || col[next[j]++] != i) return 0;
        }
    return 1;
}

/* Begin elimination with the graph of the matrix; `small` has room for 11 n + 11 numbers, `large` for 3 n. */
static void begin_elimination(Quotient *graph, const int32_t *crow, const int32_t *col, int32_t *small, int64_t *large)
{
    const int64_t n = graph->nodes;
    int32_t **const arrays[] = {&graph->start,  &graph->length, &graph->elements, &graph->weight,
                                &graph->degree, &graph->head,   &graph->next,     &graph->last,
                                &graph->into,   &graph->size,   &graph->bucket};
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++, small += n + 1) *arrays[k] = small;
    graph->place = large, graph->mark = large + n, graph->hash = (uint64_t *)large + 2 * n;
    for (int64_t i = 0, to = 0; i < n; i++) {
        graph->start[i] = to;
        for (int32_t edge = crow[i]; edge < crow[i + 1]; edge++)
            if (col[edge] != i) graph->list[to++] = col[edge];
        graph->length[i] = to - graph->start[i], graph->elements[i] = 0, graph->weight[i] = 1, graph->mark[i] = 0;
        graph->into[i] = graph->bucket[i] = graph->head[i] = -1;
    }
    graph->head[n] = -1;
}

/* Return the structure of the factors of a matrix with these rows, which `is_symmetric` accepts, with or without its
   diagonal. NULL where they cost more than `most`, or where memory is not enough. */
SymbolicFactor *symbolic_factor(int64_t n, const int32_t *crow, const int32_t *col, const Limits *most)
{
    SymbolicFactor *symbolic = calloc(1, sizeof *symbolic);
    Quotient graph = {.nodes = n, .room = crow[n] + n + 16};
    int32_t *const small = malloc((19 * n + 32) * sizeof *small);
    int64_t *const large = malloc((3 * n + 16) * sizeof *large);
    int done = 0;
    graph.pool = malloc(graph.room * sizeof *graph.pool), graph.list = malloc((crow[n] + n + 1) * sizeof *graph.list);
    if (!symbolic || !small || !graph.list || !large || !graph.pool) goto end;
    begin_elimination(&graph, crow, col, small, large);
    int32_t *const super = small + 11 * n + 11, *const width = super + n, *const parent = width + n;
    for (int64_t i = 0; i < n; i++) super[i] = -1;
    const int64_t supers = eliminate(&graph, most, super);
    if (supers < 0) goto end;
    /* Elimination no longer needs its memory. */
    int32_t *const group = small, *const columns = group + n, *const place = columns + n, *const position = place + n;
    int32_t *const work = parent + n;
    int64_t *const rows = large;
    double *const zeros = (double *)(large + n + 1);
    if (!rows_below(n, crow, col, supers, super, parent, rows, &graph.pool, &graph.room, work)) goto end;
    memset(width, 0, n * sizeof *width);
    for (int64_t i = 0; i < n; i++) width[super[i]]++;
    join(supers, width, parent, rows, group, columns, zeros);
    symbolic->nodes = n, symbolic->supers = in_postorder(supers, parent, group, place, work, work + n + 1);
    for (int64_t k = 0; k < supers; k++) {
        const double below = rows[k + 1] - rows[k];
        for (int64_t j = 1; j <= width[k]; j++) symbolic->work += (below + j) * (below + j);
    }
    symbolic->node = malloc((n + 1) * sizeof *symbolic->node);
    symbolic->first = malloc((symbolic->supers + 1) * sizeof *symbolic->first);
    symbolic->parent = malloc((symbolic->supers + 1) * sizeof *symbolic->parent);
    symbolic->row_start = malloc((symbolic->supers + 1) * sizeof *symbolic->row_start);
    symbolic->column_start = malloc((symbolic->supers + 1) * sizeof *symbolic->column_start);
    if (!symbolic->node || !symbolic->first || !symbolic->parent || !symbolic->row_start || !symbolic->column_start)
        goto end;
    done =
        lay_out(symbolic, supers, super, parent, group, place, rows, graph.pool, position, work) && measure(symbolic);
end:
    free(small), free(graph.list), free(large), free(graph.pool);
    if (!done) release(symbolic), symbolic = NULL;
    return symbolic;
}
