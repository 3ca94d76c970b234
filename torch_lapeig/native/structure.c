/* The structure of factors L D Lᵀ of sparse symmetric matrices. */

#include "kernels.h"

void release(Shape *s)
{
    if (!s) return;
    void *const parts[] = {s->node, s->first, s->parent, s->row_start, s->row, s->column_start, s};
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
    for (int64_t s = 0; s < supers; s++) {
        int64_t bound = 0, to = rows[s];
        for (int32_t a = begin[s]; a < begin[s + 1]; a++) bound += crow[nodes[a] + 1] - crow[nodes[a]];
        for (int32_t c = child[s]; c >= 0; c = sibling[c]) bound += rows[c + 1] - rows[c];
        if (!make_room(pool, room, to, bound)) return 0;
        int32_t *const list = *pool;
        int64_t least = supers;
        for (int32_t a = begin[s]; a < begin[s + 1]; a++)
            for (int32_t e = crow[nodes[a]]; e < crow[nodes[a] + 1]; e++)
                if (super[col[e]] > s && seen[col[e]] != s) {
                    seen[col[e]] = s, list[to++] = col[e];
                    least = super[col[e]] < least ? super[col[e]] : least;
                }
        for (int32_t c = child[s]; c >= 0; c = sibling[c])
            for (int64_t a = rows[c]; a < rows[c + 1]; a++)
                if (super[list[a]] > s && seen[list[a]] != s) {
                    seen[list[a]] = s, list[to++] = list[a];
                    least = super[list[a]] < least ? super[list[a]] : least;
                }
        rows[s + 1] = to, parent[s] = least;
        if (least < supers) sibling[s] = child[least], child[least] = s;
    }
    return 1;
}

/* Join children to their parents where that makes larger fronts with few zeros. `group`: the supernode that each ends
   in. */
static void joined(int64_t supers, const int32_t *width, const int32_t *parent, const int64_t *rows, int32_t *group,
                   int32_t *columns, double *zeros)
{
    for (int64_t s = 0; s < supers; s++) group[s] = s, columns[s] = width[s], zeros[s] = 0;
    for (int64_t s = 0; s < supers; s++) {
        const int64_t p = parent[s];
        if (p == supers) continue;
        const int64_t below = rows[s + 1] - rows[s], above = rows[p + 1] - rows[p], all = columns[s] + columns[p];
        const double more = zeros[s] + zeros[p] + (double)columns[s] * (columns[p] + above - below);
        if (!is_worth(all, more, 0.5 * all * (all + 1) + (double)all * above)) continue;
        group[s] = p, columns[p] = all, zeros[p] = more;
    }
    for (int64_t s = supers - 1; s >= 0; s--) group[s] = group[group[s]];
}

/* Order the groups so that children come just before their parents: `place` of each group. Return their number. */
static int64_t in_postorder(int64_t supers, const int32_t *parent, const int32_t *group, int32_t *place, int32_t *child,
                            int32_t *sibling)
{
    int64_t count = 0;
    for (int64_t s = 0; s <= supers; s++) child[s] = -1;
    for (int64_t s = supers - 1; s >= 0; s--) {
        if (group[s] != s) continue;
        const int64_t p = parent[s] < supers ? group[parent[s]] : supers;
        sibling[s] = child[p], child[p] = s;
    }
    for (int64_t root = child[supers]; root >= 0; root = sibling[root])
        for (int64_t s = root;;) {
            while (child[s] >= 0) { /* down, and never again this way */
                const int64_t c = child[s];
                child[s] = sibling[c], s = c;
            }
            place[s] = count++;
            if (s == root) break;
            s = group[parent[s]];
        }
    return count;
}

/* Fill the shape from the groups in their order. `work` has room for n + 1 numbers. Return 0 where memory is not
   enough. */
static int laid_out(Shape *s, int64_t supers, const int32_t *super, const int32_t *parent, const int32_t *group,
                    const int32_t *place, const int64_t *rows, const int32_t *pool, int32_t *position, int32_t *work)
{
    const int64_t n = s->nodes, count = s->supers;
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) work[i] = place[group[super[i]]];
    by_key(n, count, work, s->first, s->node);
    for (int64_t i = 0; i < n; i++) position[s->node[i]] = i;
    for (int64_t g = 0; g < supers; g++)
        if (group[g] == g) total += rows[g + 1] - rows[g];
    s->row = malloc((total + 1) * sizeof *s->row);
    int64_t *const by_row = calloc(n + 1, sizeof *by_row);
    int32_t *const of = malloc((total + 1) * sizeof *of);
    if (!s->row || !by_row || !of) {
        free(by_row), free(of);
        return 0;
    }
    for (int64_t g = 0; g < supers; g++) { /* rows by their position, then by super: so they come ascending in each */
        if (group[g] != g) continue;
        s->row_start[place[g] + 1] = rows[g + 1] - rows[g];
        s->parent[place[g]] = parent[g] < supers ? place[group[parent[g]]] : count;
        for (int64_t a = rows[g]; a < rows[g + 1]; a++) by_row[position[pool[a]] + 1]++;
    }
    for (int64_t i = 0; i < n; i++) by_row[i + 1] += by_row[i];
    for (int64_t g = 0; g < supers; g++)
        if (group[g] == g)
            for (int64_t a = rows[g]; a < rows[g + 1]; a++) of[by_row[position[pool[a]]]++] = place[g];
    s->row_start[0] = 0;
    for (int64_t k = 0; k < count; k++) s->row_start[k + 1] += s->row_start[k], work[k] = 0;
    for (int64_t i = 0, a = 0; i < n; i++)
        for (; a < by_row[i]; a++) s->row[s->row_start[of[a]] + work[of[a]]++] = i;
    free(by_row), free(of);
    return 1;
}

/* Measure the fronts, and find where the columns of each begin. Return 0 where memory is not enough. */
static int measured(Shape *s)
{
    int64_t *const held = calloc(s->supers + 1, sizeof *held), now = 0;
    if (!held) return 0;
    s->widest = s->waiting = s->column_start[0] = 0;
    for (int64_t k = 0; k < s->supers; k++) {
        const int64_t width = s->first[k + 1] - s->first[k], below = s->row_start[k + 1] - s->row_start[k];
        const int64_t own = below * (below + 1) / 2;
        s->column_start[k + 1] = s->column_start[k] + width * (width + below);
        s->widest = width + below > s->widest ? width + below : s->widest;
        now += own - held[k], held[s->parent[k]] += own;
        s->waiting = now > s->waiting ? now : s->waiting;
    }
    free(held);
    return 1;
}

/* Return the structure of the factors of a matrix with these rows, with or without its diagonal. NULL where they cost
   more than `most`, where memory is not enough, or where the rows are not symmetric. */
Shape *shape_of(int64_t n, const int32_t *crow, const int32_t *col, const Limits *most)
{
    Shape *s = calloc(1, sizeof *s);
    Quotient q = {.nodes = n, .room = crow[n] + n + 16};
    int32_t *const small = malloc((22 * n + 64) * sizeof *small), *list = malloc((crow[n] + n + 1) * sizeof *list);
    int64_t *const large = malloc((6 * n + 16) * sizeof *large);
    int done = 0;
    q.pool = malloc(q.room * sizeof *q.pool);
    if (!s || !small || !list || !large || !q.pool) goto end;
    int32_t *const part = small, *super = part + 9 * n + 9, *bucket = super + n, *width = bucket + n;
    q.list = list, q.start = part, q.length = part + n, q.elements = part + 2 * n, q.weight = part + 3 * n;
    q.degree = part + 4 * n, q.head = part + 5 * n, q.next = part + 6 * n + 1, q.last = part + 7 * n + 1;
    q.into = part + 8 * n + 1, q.size = width + n, q.place = large, q.mark = large + n;
    uint64_t *const like = (uint64_t *)large + 2 * n;
    for (int64_t i = 0, to = 0; i < n; i++) {
        q.start[i] = to;
        for (int32_t e = crow[i]; e < crow[i + 1]; e++)
            if (col[e] != i) list[to++] = col[e];
        q.length[i] = to - q.start[i], q.elements[i] = 0, q.weight[i] = 1, q.mark[i] = 0;
        q.into[i] = super[i] = bucket[i] = q.head[i] = -1;
    }
    q.head[n] = -1;
    const int64_t supers = eliminate(&q, most, super, bucket, like);
    if (supers < 0) goto end;
    /* Elimination no longer needs its memory. */
    int32_t *const parent = width + n, *const group = part, *const columns = part + n, *const place = part + 2 * n;
    int32_t *const work = parent + n, *const position = part + 3 * n;
    int64_t *const rows = large;
    double *const zeros = (double *)(large + n + 1);
    if (!rows_below(n, crow, col, supers, super, parent, rows, &q.pool, &q.room, work)) goto end;
    memset(width, 0, n * sizeof *width);
    for (int64_t i = 0; i < n; i++) width[super[i]]++;
    joined(supers, width, parent, rows, group, columns, zeros);
    s->nodes = n, s->supers = in_postorder(supers, parent, group, place, work, work + n + 1);
    for (int64_t g = 0; g < supers; g++) {
        const double below = rows[g + 1] - rows[g];
        for (int64_t c = 1; c <= width[g]; c++) s->work += (below + c) * (below + c);
    }
    s->node = malloc((n + 1) * sizeof *s->node), s->first = malloc((s->supers + 1) * sizeof *s->first);
    s->parent = malloc((s->supers + 1) * sizeof *s->parent);
    s->row_start = malloc((s->supers + 1) * sizeof *s->row_start),
    s->column_start = malloc((s->supers + 1) * sizeof *s->column_start);
    if (!s->node || !s->first || !s->parent || !s->row_start || !s->column_start) goto end;
    done = laid_out(s, supers, super, parent, group, place, rows, q.pool, position, work) && measured(s);
end:
    free(small), free(list), free(large), free(q.pool);
    if (!done) release(s), s = NULL;
    return s;
}

/* Tell the numbers that L holds, the supernodes, the rows of the largest front, the numbers that wait, and the work.
   */
void sizes_of(const Shape *s, int64_t *numbers, double *work)
{
    numbers[0] = s->column_start[s->supers], numbers[1] = s->supers, numbers[2] = s->widest, numbers[3] = s->waiting;
    *work = s->work;
}
