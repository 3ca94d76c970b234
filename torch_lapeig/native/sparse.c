/* Factors L D Lᵀ of sparse symmetric matrices: an order of little fill, their structure, their numbers, and solves.
   A part of `kernels.c`. */

/* --- The order: approximate minimum degree (Amestoy, Davis & Duff 1996) --- */

/* What elimination leaves of a graph. A variable stands for nodes that have become indistinguishable. An element is what
   an eliminated variable has left: its variables are all linked, which is known without a list of their links. */
typedef struct {
    int64_t n, used, room;
    int32_t *list, *start, *length, *elements; /* of a variable: elements, so many, then variables that no element has */
    int32_t *weight;                           /* nodes of a variable, 0 where it is gone; negative in the new element */
    int32_t *degree, *head, *next, *last;      /* variables of each degree, linked both ways */
    int32_t *into;                             /* of a variable that is gone, what it went into, or −1 */
    int32_t *pool, *size;                      /* the variables of elements, and how many these have */
    int64_t *place, *mark;                     /* of an element in the pool; 0 where it is gone */
} Quotient;

/* Multiplications that factors take, and their entries. */
typedef struct {
    double work, entries;
} Limits;

INLINE void take_out(Quotient *q, int32_t i)
{
    const int32_t next = q->next[i], last = q->last[i];
    if (next >= 0) q->last[next] = last;
    if (last >= 0)
        q->next[last] = next;
    else
        q->head[q->degree[i]] = next;
}

INLINE void put_in(Quotient *q, int32_t i, int32_t degree)
{
    const int32_t next = q->head[degree];
    q->degree[i] = degree, q->next[i] = next, q->last[i] = -1, q->head[degree] = i;
    if (next >= 0) q->last[next] = i;
}

/* Move the live variables of a list into the new element; what they weigh. */
INLINE int64_t gather(Quotient *q, const int32_t *list, int64_t count)
{
    int64_t weight = 0;
    for (int64_t a = 0; a < count; a++) {
        const int32_t i = list[a];
        if (q->weight[i] <= 0) continue;
        weight += q->weight[i], q->weight[i] = -q->weight[i];
        q->pool[q->used++] = i;
        take_out(q, i);
    }
    return weight;
}

/* Keep of variable i what new element p has not: live elements with other variables, and variables outside. `tag`: beside
   which marks of elements say what these have outside. Gives the degree outside p, and a number like that of equal lists;
   −1 where nothing was dropped for p to take its place, as in a pattern that is not symmetric. */
INLINE int64_t pruned(Quotient *q, int32_t i, int32_t p, int64_t tag, uint64_t *like)
{
    int32_t *const own = q->list + q->start[i];
    int32_t kept = 0, to, old = q->elements[i];
    int64_t degree = 0;
    *like = 0;
    for (int32_t a = 0; a < old; a++) {
        const int32_t e = own[a];
        if (q->mark[e] <= tag) {
            q->mark[e] = 0; /* all of its variables are in p */
            continue;
        }
        degree += q->mark[e] - tag, *like += e, own[kept++] = e;
    }
    to = kept;
    for (int32_t a = old; a < q->length[i]; a++) {
        const int32_t j = own[a];
        if (q->weight[j] <= 0) continue;
        degree += q->weight[j], *like += j, own[to++] = j;
    }
    if (to >= q->length[i]) return -1; /* p itself, or an element of it, was there */
    own[to] = own[kept], own[kept] = own[0], own[0] = p;
    q->elements[i] = kept + 1, q->length[i] = to + 1;
    return degree;
}

/* Whether the lists of two variables are equal but for their first elements; those of i are marked with `tag`. */
INLINE int is_like(const Quotient *q, int32_t i, int32_t j, int64_t tag)
{
    if (q->length[i] != q->length[j] || q->elements[i] != q->elements[j]) return 0;
    const int32_t *list = q->list + q->start[j];
    for (int32_t a = 1; a < q->length[j]; a++)
        if (q->mark[list[a]] != tag) return 0;
    return 1;
}

/* Room for so many more in the pool; 0 where there is no memory. */
INLINE int make_room(int32_t **pool, int64_t *room, int64_t used, int64_t more)
{
    if (used + more <= *room) return 1;
    const int64_t wanted = 2 * (used + more);
    int32_t *found = realloc(*pool, wanted * sizeof *found);
    if (!found) return 0;
    *pool = found, *room = wanted;
    return 1;
}

/* Eliminate all variables. `super`: the number of each node's, in the order of elimination; how many there are, or −1 where
   these would take more than `most`, or where the pattern is not symmetric. */
static int64_t eliminate(Quotient *q, const Limits *most, int32_t *super, int32_t *bucket, uint64_t *like)
{
    const int64_t n = q->n;
    int64_t count = 0, done = 0, tag = 1, largest = 0;
    const int32_t dense = fmax(16, 10 * sqrt((double)n)); /* nodes of more links come last, without a look at them */
    Limits now = {0};
    for (int64_t i = 0; i < n; i++) {
        if (q->length[i] > dense)
            q->weight[i] = 0, done++;
        else
            put_in(q, i, q->length[i]);
    }
    const int64_t last = n - done;
    for (int64_t lowest = 0, gone = 0; gone < last;) {
        while (q->head[lowest] < 0) lowest++;
        const int32_t p = q->head[lowest], *own = q->list + q->start[p];
        int64_t weight = q->weight[p], outside = 0, from = q->used, bound = q->length[p], to;
        take_out(q, p);
        for (int32_t a = 0; a < q->elements[p]; a++) bound += q->size[own[a]];
        if (!make_room(&q->pool, &q->room, q->used, bound)) return -1;
        q->weight[p] = 0, super[p] = count++;
        for (int32_t a = 0; a < q->elements[p]; a++) {
            outside += gather(q, q->pool + q->place[own[a]], q->size[own[a]]);
            q->mark[own[a]] = 0;
        }
        outside += gather(q, own + q->elements[p], q->length[p] - q->elements[p]);
        for (int64_t a = from; a < q->used; a++) { /* what each element has outside the new one */
            const int32_t i = q->pool[a], *list = q->list + q->start[i];
            for (int32_t b = 0; b < q->elements[i]; b++) {
                const int32_t e = list[b];
                if (q->mark[e] > tag)
                    q->mark[e] += q->weight[i];
                else if (q->mark[e])
                    q->mark[e] = tag + q->degree[e] + q->weight[i];
            }
        }
        for (int64_t a = from; a < q->used; a++) {
            const int32_t i = q->pool[a];
            const int64_t degree = pruned(q, i, p, tag, like + i);
            if (degree < 0) return -1;
            if (degree == 0) { /* of no degree outside: it is eliminated with p */
                weight -= q->weight[i], outside += q->weight[i];
                q->weight[i] = 0, q->into[i] = p;
                continue;
            }
            q->degree[i] = degree < q->degree[i] ? degree : q->degree[i];
            like[i] %= n;
            q->next[i] = bucket[like[i]], bucket[like[i]] = i;
        }
        gone += weight;
        tag += largest = outside > largest ? outside : largest;
        tag++;
        for (int64_t a = from; a < q->used; a++) { /* variables of equal lists become one */
            int32_t i = q->pool[a];
            if (q->weight[i] == 0) continue;
            const int64_t of = like[i];
            i = bucket[of], bucket[of] = -1;
            for (; i >= 0 && q->next[i] >= 0; i = q->next[i], tag++) {
                const int32_t *list = q->list + q->start[i];
                for (int32_t b = 1; b < q->length[i]; b++) q->mark[list[b]] = tag;
                for (int32_t before = i, j; (j = q->next[before]) >= 0;) {
                    if (!is_like(q, i, j, tag)) {
                        before = j;
                        continue;
                    }
                    q->weight[i] += q->weight[j], q->weight[j] = 0, q->into[j] = i;
                    q->next[before] = q->next[j];
                }
            }
        }
        to = from;
        for (int64_t a = from; a < q->used; a++) {
            const int32_t i = q->pool[a], own_weight = -q->weight[i];
            if (own_weight == 0) continue;
            q->weight[i] = own_weight;
            const int64_t whole = q->degree[i] + outside - own_weight, left = last - gone - own_weight;
            const int64_t degree = whole < left ? whole : left;
            put_in(q, i, degree);
            lowest = degree < lowest ? degree : lowest;
            q->pool[to++] = i;
        }
        q->place[p] = from, q->size[p] = to - from, q->degree[p] = outside, q->mark[p] = to > from;
        q->used = to;
        for (int64_t c = outside + 1; c <= outside + weight; c++) now.work += (double)c * c, now.entries += c;
        /* What is left of the new element is a clique, whose columns will hold it whole: they take that much at least. */
        const double clique = outside;
        if (now.work + clique * clique * clique / 3 > most->work) return -1;
        if (now.entries + clique * clique / 2 > most->entries) return -1;
    }
    for (int64_t i = 0; i < n; i++)
        if (super[i] < 0 && q->into[i] < 0) super[i] = count++; /* dense ones */
    for (int64_t i = 0; i < n; i++) {
        int32_t root = i;
        while (super[root] < 0) root = q->into[root];
        for (int32_t j = i, next; super[j] < 0; j = next) next = q->into[j], super[j] = super[root];
    }
    return count;
}

/* --- The structure of the factors --- */

/* Columns of L that have the same rows below them are a super. Its front is the dense matrix of its own rows and these. */
typedef struct {
    int64_t n, supers;
    int32_t *node;       /* (n) at each position of the order */
    int32_t *first;      /* (supers + 1) position of each super, children before their parents */
    int32_t *parent;     /* the super of the first row below; `supers` where there is none */
    int64_t *begin;      /* (supers + 1) of its rows below */
    int32_t *row;        /* positions, ascending */
    int64_t *at;         /* (supers + 1) of its columns in L, each of which has as many numbers as the front has rows */
    int64_t widest, waiting; /* rows of the largest front; numbers that wait for their parents, at most */
    double work;         /* multiplications, of the structure without the zeros in it */
} Shape;

void release(Shape *s)
{
    if (!s) return;
    void *const parts[] = {s->node, s->first, s->parent, s->begin, s->row, s->at, s};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) free(parts[i]);
}

/* Whether a front of so many columns to eliminate is worth the zeros in it. */
INLINE int is_worth(int64_t columns, double zeros, double entries)
{
    const double share = zeros / entries;
    return columns <= 4 || (columns <= 16 && share < 0.5) || (columns <= 48 && share < 0.15) || share < 0.05;
}

/* Sort 0 … count − 1 by their keys below `keys`: `begin` (keys + 1), and `order`. */
INLINE void by_key(int64_t count, int64_t keys, const int32_t *key, int32_t *begin, int32_t *order)
{
    memset(begin, 0, (keys + 1) * sizeof *begin);
    for (int64_t i = 0; i < count; i++) begin[key[i] + 1]++;
    for (int64_t k = 0; k < keys; k++) begin[k + 1] += begin[k];
    for (int64_t i = 0; i < count; i++) order[begin[key[i]]++] = i;
    for (int64_t k = keys; k > 0; k--) begin[k] = begin[k - 1];
    begin[0] = 0;
}

/* The rows below each super, as nodes, and its parent: those of its own columns and of its children. Supers are numbered
   as they are eliminated. `rows` (supers + 1), of the pool; 0 where there is no memory. `work`: 5 n + 1 numbers. */
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

/* Join children to their parents where that makes fronts of some size of few zeros: `group`, the super each ends in. */
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

/* Put the groups in an order in which children come just before their parents: `place` of each group. */
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

/* Fill the shape, given the groups in their order. `work`: n + 1 numbers. */
static int laid_out(Shape *s, int64_t supers, const int32_t *super, const int32_t *parent, const int32_t *group,
                    const int32_t *place, const int64_t *rows, const int32_t *pool, int32_t *position, int32_t *work)
{
    const int64_t n = s->n, count = s->supers;
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
        s->begin[place[g] + 1] = rows[g + 1] - rows[g];
        s->parent[place[g]] = parent[g] < supers ? place[group[parent[g]]] : count;
        for (int64_t a = rows[g]; a < rows[g + 1]; a++) by_row[position[pool[a]] + 1]++;
    }
    for (int64_t i = 0; i < n; i++) by_row[i + 1] += by_row[i];
    for (int64_t g = 0; g < supers; g++)
        if (group[g] == g)
            for (int64_t a = rows[g]; a < rows[g + 1]; a++) of[by_row[position[pool[a]]]++] = place[g];
    s->begin[0] = 0;
    for (int64_t k = 0; k < count; k++) s->begin[k + 1] += s->begin[k], work[k] = 0;
    for (int64_t i = 0, a = 0; i < n; i++)
        for (; a < by_row[i]; a++) s->row[s->begin[of[a]] + work[of[a]]++] = i;
    free(by_row), free(of);
    return 1;
}

/* What fronts take, and where the columns of each begin. */
static int measured(Shape *s)
{
    int64_t *const held = calloc(s->supers + 1, sizeof *held), now = 0;
    if (!held) return 0;
    s->widest = s->waiting = s->at[0] = 0;
    for (int64_t k = 0; k < s->supers; k++) {
        const int64_t width = s->first[k + 1] - s->first[k], below = s->begin[k + 1] - s->begin[k];
        const int64_t own = below * (below + 1) / 2;
        s->at[k + 1] = s->at[k] + width * (width + below);
        s->widest = width + below > s->widest ? width + below : s->widest;
        now += own - held[k], held[s->parent[k]] += own;
        s->waiting = now > s->waiting ? now : s->waiting;
    }
    free(held);
    return 1;
}

/* The structure of the factors of a matrix with these rows, with or without its diagonal. NULL where they take more than
   `most`, or more memory than there is, or where the rows are not symmetric. */
Shape *shape_of(int64_t n, const int32_t *crow, const int32_t *col, const Limits *most)
{
    Shape *s = calloc(1, sizeof *s);
    Quotient q = {.n = n, .room = crow[n] + n + 16};
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
    /* What elimination worked with is free again. */
    int32_t *const parent = width + n, *const group = part, *const columns = part + n, *const place = part + 2 * n;
    int32_t *const work = parent + n, *const position = part + 3 * n;
    int64_t *const rows = large;
    double *const zeros = (double *)(large + n + 1);
    if (!rows_below(n, crow, col, supers, super, parent, rows, &q.pool, &q.room, work)) goto end;
    memset(width, 0, n * sizeof *width);
    for (int64_t i = 0; i < n; i++) width[super[i]]++;
    joined(supers, width, parent, rows, group, columns, zeros);
    s->n = n, s->supers = in_postorder(supers, parent, group, place, work, work + n + 1);
    for (int64_t g = 0; g < supers; g++) {
        const double below = rows[g + 1] - rows[g];
        for (int64_t c = 1; c <= width[g]; c++) s->work += (below + c) * (below + c);
    }
    s->node = malloc((n + 1) * sizeof *s->node), s->first = malloc((s->supers + 1) * sizeof *s->first);
    s->parent = malloc((s->supers + 1) * sizeof *s->parent);
    s->begin = malloc((s->supers + 1) * sizeof *s->begin), s->at = malloc((s->supers + 1) * sizeof *s->at);
    if (!s->node || !s->first || !s->parent || !s->begin || !s->at) goto end;
    done = laid_out(s, supers, super, parent, group, place, rows, q.pool, position, work) && measured(s);
end:
    free(small), free(list), free(large), free(q.pool);
    if (!done) release(s), s = NULL;
    return s;
}

/* Numbers that L holds, and numbers of room that its making needs; the multiplications. */
void sizes_of(const Shape *s, int64_t *numbers, double *work)
{
    numbers[0] = s->at[s->supers], numbers[1] = s->supers, numbers[2] = s->widest, numbers[3] = s->waiting;
    *work = s->work;
}

/* --- The numbers: multifrontal elimination (Duff & Reid 1983) --- */

#define PANEL 32 /* columns that are eliminated before others hear of it */
#define TALL (WIDTH / 4) /* rows of a tile of the rest; four columns wide */

/* Take `count` columns from `from` on, L scaled by `d`, from all others of a front of f rows, `step` numbers a column. */
INLINE void take_from_rest(double *front, int64_t f, int64_t step, int64_t from, int64_t count)
{
    double c[PANEL][4];
    for (int64_t j = from + count; j < f; j += 4) {
        for (int64_t k = 0; k < count; k++) {
            const double *column = front + (from + k) * step, d = column[from + k];
            for (int64_t t = 0; t < 4; t++) c[k][t] = j + t < f ? -d * column[j + t] : 0;
        }
        for (int64_t i = j; i < f; i += TALL) {
            Wide_double sum[4][2] = {0};
            for (int64_t k = 0; k < count; k++) {
                const double *own = front + (from + k) * step + i;
                const Wide_double a = *(const Wide_double *)own, b = *(const Wide_double *)(own + TALL / 2);
                for (int t = 0; t < 4; t++) sum[t][0] += a * c[k][t], sum[t][1] += b * c[k][t];
            }
            for (int t = 0; t < 4; t++) {
                Wide_double *to = (Wide_double *)(front + (j + t) * step + i);
                to[0] += sum[t][0], to[1] += sum[t][1];
            }
        }
    }
}

/* Eliminate the first `width` columns of a front, of which the lower triangle counts: L below its diagonal, D on it. Adds
   up how many of D are negative; 0 where one is zero or not finite. */
INLINE int eliminated(double *front, int64_t f, int64_t step, int64_t width, int64_t *negative)
{
    for (int64_t from = 0; from < width; from += PANEL) {
        const int64_t count = width - from < PANEL ? width - from : PANEL;
        for (int64_t k = from; k < from + count; k++) {
            double *const column = front + k * step, d = column[k], inverse = 1 / d;
            if (!(d != 0) || !isfinite(d)) return 0;
            *negative += d < 0;
            for (int64_t j = k + 1; j < from + count; j++) {
                double *const other = front + j * step;
                const double c = column[j] * inverse;
                for (int64_t i = j; i < f; i++) other[i] -= c * column[i];
            }
            for (int64_t i = k + 1; i < f; i++) column[i] *= inverse;
        }
        take_from_rest(front, f, step, from, count);
    }
    return 1;
}

/* A super: its first position, its columns, its rows below, both together, and those rows. */
typedef struct {
    int64_t first, width, below, f;
    const int32_t *row;
} Super;

INLINE Super super_of(const Shape *s, int64_t k)
{
    const int64_t width = s->first[k + 1] - s->first[k], below = s->begin[k + 1] - s->begin[k];
    return (Super){s->first[k], width, below, width + below, s->row + s->begin[k]};
}

/* Numbers of a column of a front: whole tiles of rows, and what a tile reads that begins in the last. */
INLINE int64_t step_of(int64_t f) { return (f + 2 * TALL - 1) / TALL * TALL; }

/* L and D, in `l`, of the diagonal and `times` the values of rows of this shape; how many of D are negative, or −1 where
   there are no such factors, −2 where there is no memory. */
FAST int64_t numbers_of(const Shape *s, const int32_t *crow, const int32_t *col, const double *values, double times,
                        const double *diagonal, double *l)
{
    const int64_t n = s->n;
    int32_t *const place = malloc((2 * n + 1) * sizeof *place), *const position = place + n;
    double *const front = malloc(step_of(s->widest) * (s->widest + 4) * sizeof *front);
    double *const waiting = malloc((s->waiting + 1) * sizeof *waiting), *top = waiting;
    int64_t *const children = malloc((s->supers + 1) * sizeof *children), depth = 0, negative = 0;
    int64_t result = -2;
    if (!place || !front || !waiting || !children) goto end;
    for (int64_t i = 0; i < n; i++) position[s->node[i]] = i;
    result = -1;
    for (int64_t k = 0; k < s->supers; k++) {
        const Super at = super_of(s, k);
        const int64_t first = at.first, width = at.width, below = at.below, f = at.f, step = step_of(f);
        const int32_t *const row = at.row;
        memset(front, 0, step * (f + 3) * sizeof *front);
        for (int64_t i = 0; i < width; i++) place[first + i] = i;
        for (int64_t i = 0; i < below; i++) place[row[i]] = width + i;
        for (int64_t i = first; i < first + width; i++) {
            double *const column = front + (i - first) * step;
            for (int32_t e = crow[s->node[i]]; e < crow[s->node[i] + 1]; e++) {
                const int32_t to = position[col[e]];
                if (to >= i) column[place[to]] += times * values[e];
            }
            if (diagonal) column[i - first] += diagonal[s->node[i]];
        }
        while (depth > 0 && s->parent[children[depth - 1]] == k) {
            const int64_t c = children[--depth], count = s->begin[c + 1] - s->begin[c];
            const int32_t *const from = s->row + s->begin[c];
            const double *own = top -= count * (count + 1) / 2;
            for (int64_t j = 0; j < count; j++) {
                double *const column = front + place[from[j]] * step;
                for (int64_t i = j; i < count; i++) column[place[from[i]]] += *own++;
            }
        }
        if (!eliminated(front, f, step, width, &negative)) goto end;
        double *to = l + s->at[k];
        for (int64_t j = 0; j < width; j++, to += f) memcpy(to + j, front + j * step + j, (f - j) * sizeof *to);
        for (int64_t j = width; j < f; j++, top += f - j + 1) memcpy(top, front + j * step + j, (f - j) * sizeof *top);
        if (below > 0) children[depth++] = k;
    }
    result = negative;
end:
    free(place), free(front), free(waiting), free(children);
    return result;
}

/* --- Solves --- */

#define V Wide_double
#include "solve.c"
#undef V

/* X = A⁻¹ B of `m` columns. The number of row i and column c of both is at i · step + c · other. `room`: (n + widest + 1)
   rows of a vector. */
FAST static void solve_in(const Shape *s, const double *l, const double *b, double *x, int64_t m, int64_t step, int64_t other,
                     double *room)
{
    const int64_t n = s->n, wide = WIDTH / sizeof(double);
    double *const y = room, *const t = y + n * wide;
    for (int64_t from = 0; from < m; from += wide) {
        const int64_t some = m - from < wide ? m - from : wide;
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < wide; c++)
                y[i * wide + c] = c < some ? b[s->node[i] * step + (from + c) * other] : 0;
        solve_Wide_double(s, l, (Wide_double *)y, (Wide_double *)t);
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < some; c++) x[s->node[i] * step + (from + c) * other] = y[i * wide + c];
    }
}

/* The same, of blocks (n, m). 0 where there is no memory. */
int64_t solve_factors(const Shape *s, const double *l, const double *b, double *x, int64_t m)
{
    double *const room = malloc((s->n + s->widest + 1) * WIDTH);
    if (!room) return 0;
    solve_in(s, l, b, x, m, m, 1, room);
    free(room);
    return 1;
}
