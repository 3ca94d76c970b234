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

INLINE void take_out(Quotient *graph, int32_t i)
{
    const int32_t next = graph->next[i], last = graph->last[i];
    if (next >= 0) graph->last[next] = last;
    if (last >= 0)
        graph->next[last] = next;
    else
        graph->head[graph->degree[i]] = next;
}

INLINE void put_in(Quotient *graph, int32_t i, int32_t degree)
{
    const int32_t next = graph->head[degree];
    graph->degree[i] = degree, graph->next[i] = next, graph->last[i] = -1, graph->head[degree] = i;
    if (next >= 0) graph->last[next] = i;
}

/* Move the live variables of a list into the new element. Return their weight. */
INLINE int64_t gather(Quotient *graph, const int32_t *list, int64_t count)
{
    int64_t weight = 0;
    for (int64_t k = 0; k < count; k++) {
        const int32_t i = list[k];
        if (graph->weight[i] <= 0) continue;
        weight += graph->weight[i], graph->weight[i] = -graph->weight[i];
        graph->pool[graph->used++] = i;
        take_out(graph, i);
    }
    return weight;
}

/* Keep in the lists of variable i what the new element p does not hold: live elements with other variables, and
   variables outside. Marks above `tag` say how much an element holds outside p. Return the degree outside p, and a
   hash of the lists in `like`. */
INLINE int64_t pruned(Quotient *graph, int32_t i, int32_t p, int64_t tag, uint64_t *like)
{
    int32_t *const own = graph->list + graph->start[i];
    int32_t kept = 0, to, old = graph->elements[i];
    int64_t degree = 0;
    *like = 0;
    for (int32_t k = 0; k < old; k++) {
        const int32_t other = own[k];
        if (graph->mark[other] <= tag) {
            graph->mark[other] = 0; /* all of its variables are in p */
            continue;
        }
        degree += graph->mark[other] - tag, *like += other, own[kept++] = other;
    }
    to = kept;
    for (int32_t k = old; k < graph->length[i]; k++) {
        const int32_t j = own[k];
        if (graph->weight[j] <= 0) continue;
        degree += graph->weight[j], *like += j, own[to++] = j;
    }
    /* There is room: p itself, or an element of it, was in the lists. */
    own[to] = own[kept], own[kept] = own[0], own[0] = p;
    graph->elements[i] = kept + 1, graph->length[i] = to + 1;
    return degree;
}

/* Return whether the lists of two variables are equal but for their first elements; those of i are marked with `tag`.
   */
INLINE int is_like(const Quotient *graph, int32_t i, int32_t j, int64_t tag)
{
    if (graph->length[i] != graph->length[j] || graph->elements[i] != graph->elements[j]) return 0;
    const int32_t *list = graph->list + graph->start[j];
    for (int32_t k = 1; k < graph->length[j]; k++)
        if (graph->mark[list[k]] != tag) return 0;
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
   how many there are; −1 where factors would cost more than `most`, or memory is not enough. */
static int64_t eliminate(Quotient *graph, const Limits *most, int32_t *super, int32_t *bucket, uint64_t *like)
{
    const int64_t n = graph->nodes;
    int64_t count = 0, done = 0, tag = 1, largest = 0;
    const int32_t dense = fmax(16, 10 * sqrt((double)n)); /* nodes of more links come last, without a look at them */
    Limits now = {0};
    for (int64_t i = 0; i < n; i++) {
        if (graph->length[i] > dense)
            graph->weight[i] = 0, done++;
        else
            put_in(graph, i, graph->length[i]);
    }
    const int64_t last = n - done;
    for (int64_t lowest = 0, gone = 0; gone < last;) {
        while (graph->head[lowest] < 0) lowest++;
        const int32_t p = graph->head[lowest], *own = graph->list + graph->start[p];
        int64_t weight = graph->weight[p], outside = 0, from = graph->used, bound = graph->length[p], to;
        take_out(graph, p);
        for (int32_t k = 0; k < graph->elements[p]; k++) bound += graph->size[own[k]];
        if (!make_room(&graph->pool, &graph->room, graph->used, bound)) return -1;
        graph->weight[p] = 0, super[p] = count++;
        for (int32_t k = 0; k < graph->elements[p]; k++) {
            outside += gather(graph, graph->pool + graph->place[own[k]], graph->size[own[k]]);
            graph->mark[own[k]] = 0;
        }
        outside += gather(graph, own + graph->elements[p], graph->length[p] - graph->elements[p]);
        for (int64_t k = from; k < graph->used; k++) { /* what each element has outside the new one */
            const int32_t i = graph->pool[k], *list = graph->list + graph->start[i];
            for (int32_t j = 0; j < graph->elements[i]; j++) {
                const int32_t other = list[j];
                if (graph->mark[other] > tag)
                    graph->mark[other] += graph->weight[i];
                else if (graph->mark[other])
                    graph->mark[other] = tag + graph->degree[other] + graph->weight[i];
            }
        }
        for (int64_t k = from; k < graph->used; k++) {
            const int32_t i = graph->pool[k];
            const int64_t degree = pruned(graph, i, p, tag, like + i);
            if (degree == 0) { /* of no degree outside: it is eliminated with p */
                weight -= graph->weight[i], outside += graph->weight[i];
                graph->weight[i] = 0, graph->into[i] = p;
                continue;
            }
            graph->degree[i] = degree < graph->degree[i] ? degree : graph->degree[i];
            like[i] %= n;
            graph->next[i] = bucket[like[i]], bucket[like[i]] = i;
        }
        gone += weight;
        tag += largest = outside > largest ? outside : largest;
        tag++;
        for (int64_t k = from; k < graph->used; k++) { /* variables of equal lists become one */
            int32_t i = graph->pool[k];
            if (graph->weight[i] == 0) continue;
            const int64_t of = like[i];
            i = bucket[of], bucket[of] = -1;
            for (; i >= 0 && graph->next[i] >= 0; i = graph->next[i], tag++) {
                const int32_t *list = graph->list + graph->start[i];
                for (int32_t j = 1; j < graph->length[i]; j++) graph->mark[list[j]] = tag;
                for (int32_t before = i, j; (j = graph->next[before]) >= 0;) {
                    if (!is_like(graph, i, j, tag)) {
                        before = j;
                        continue;
                    }
                    graph->weight[i] += graph->weight[j], graph->weight[j] = 0, graph->into[j] = i;
                    graph->next[before] = graph->next[j];
                }
            }
        }
        to = from;
        for (int64_t k = from; k < graph->used; k++) {
            const int32_t i = graph->pool[k], own_weight = -graph->weight[i];
            if (own_weight == 0) continue;
            graph->weight[i] = own_weight;
            const int64_t whole = graph->degree[i] + outside - own_weight, left = last - gone - own_weight;
            const int64_t degree = whole < left ? whole : left;
            put_in(graph, i, degree);
            lowest = degree < lowest ? degree : lowest;
            graph->pool[to++] = i;
        }
        graph->place[p] = from, graph->size[p] = to - from, graph->degree[p] = outside, graph->mark[p] = to > from;
        graph->used = to;
        for (int64_t height = outside + 1; height <= outside + weight; height++)
            now.work += (double)height * height, now.entries += height;
        /* The rest of the new element is a clique, whose columns will hold it whole: they cost at least that much. */
        const double clique = outside;
        if (now.work + clique * clique * clique / 3 > most->work) return -1;
        if (now.entries + clique * clique / 2 > most->entries) return -1;
    }
    for (int64_t i = 0; i < n; i++)
        if (super[i] < 0 && graph->into[i] < 0) super[i] = count++; /* dense ones */
    for (int64_t i = 0; i < n; i++) {
        int32_t root = i;
        while (super[root] < 0) root = graph->into[root];
        for (int32_t j = i, next; super[j] < 0; j = next) next = graph->into[j], super[j] = super[root];
    }
    return count;
}
