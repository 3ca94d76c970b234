/* An order of elimination with little fill, by approximate minimum degree (Amestoy, Davis & Duff 1996). */

#include "kernels.h"

/* The graph that elimination leaves. A variable stands for nodes that have become indistinguishable. An element is
   what an eliminated variable leaves: all of its variables are linked, so that their links need no list. */
typedef struct {
    int64_t nodes, used, room;
    int32_t *list, *start, *length,
        *elements;                        /* of a variable: elements, so many, then variables that no element has */
    int32_t *weight;                      /* nodes of a variable, 0 where it is gone; negative in the new element */
    int32_t *degree, *head, *next, *last; /* variables of each degree, linked both ways */
    int32_t *into;                        /* of a variable that is gone, what it went into, or −1 */
    int32_t *pool, *size;                 /* the variables of elements, and how many these have */
    int64_t *place, *mark;                /* of an element in the pool; 0 where it is gone */
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

/* Move the live variables of a list into the new element. Return their weight. */
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

/* Keep in the lists of variable i what the new element p does not hold: live elements with other variables, and
   variables outside. Marks above `tag` say how much an element holds outside p. Return the degree outside p, and a
   hash of the lists in `like`; −1 where nothing was dropped that p could replace, as in a pattern that is not
   symmetric. */
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

/* Return whether the lists of two variables are equal but for their first elements; those of i are marked with `tag`.
   */
INLINE int is_like(const Quotient *q, int32_t i, int32_t j, int64_t tag)
{
    if (q->length[i] != q->length[j] || q->elements[i] != q->elements[j]) return 0;
    const int32_t *list = q->list + q->start[j];
    for (int32_t a = 1; a < q->length[j]; a++)
        if (q->mark[list[a]] != tag) return 0;
    return 1;
}

/* Make room for so many more in the pool. Return 0 where memory is not enough. */
INLINE int make_room(int32_t **pool, int64_t *room, int64_t used, int64_t more)
{
    if (used + more <= *room) return 1;
    const int64_t wanted = 2 * (used + more);
    int32_t *found = realloc(*pool, wanted * sizeof *found);
    if (!found) return 0;
    *pool = found, *room = wanted;
    return 1;
}

/* Eliminate all variables. Write the supernode of each node to `super`, numbered in the order of elimination. Return
   how many there are; −1 where factors would cost more than `most`, or where the pattern is not symmetric. */
static int64_t eliminate(Quotient *q, const Limits *most, int32_t *super, int32_t *bucket, uint64_t *like)
{
    const int64_t n = q->nodes;
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
        /* The rest of the new element is a clique, whose columns will hold it whole: they cost at least that much. */
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
