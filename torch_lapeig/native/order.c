/* An order of elimination with little fill: approximate minimum degree (Amestoy, Davis & Duff 1996, AMD below). SciPy's
   `splu` orders columns so that any row may hold the pivot (COLAMD); here pivots stay on the diagonal. For each pivot,
   a variable of least degree:
     1. Its elements and its other neighbours become one new element (element absorption).
     2. Count what every other element holds outside the new one (AMD, Algorithm 2).
     3. Remove from the lists of the neighbours what the new element covers; bound their degrees by sums over elements,
        not by unions. A neighbour that has nothing else is eliminated with the pivot (mass elimination).
     4. Neighbours with equal lists become one variable; a hash finds them.
     5. Neighbours return to the lists of their degrees.
   `eliminate` does this; `structure.c` goes on with its supernodes. */

#include "kernels.h"

/* The graph that elimination leaves. A variable stands for nodes that have become indistinguishable. An element is
   what an eliminated variable leaves: all of its variables are linked, so that their links need no list. */
typedef struct {
    int64_t nodes, used, room, sparse, gone;   /* `sparse` nodes are ordered by degree, `gone` are eliminated */
    int64_t lowest, largest, tag;              /* no degree is lower; weight of the largest element; see `mark` */
    int32_t *list, *start, *length, *elements; /* of a variable: elements, so many, then variables outside of them */
    int32_t *weight;                      /* nodes of a variable, 0 where it is gone; negative in the new element */
    int32_t *degree, *head, *next, *last; /* variables of each degree, linked both ways */
    int32_t *into;                        /* of a variable that is gone, what it went into, or −1 */
    int32_t *pool, *size;                 /* the variables of elements, and how many these have */
    int64_t *place, *mark; /* of an element: in the pool; 0 where it is gone, above `tag` by its weight outside */
    int32_t *bucket;       /* first variable of each hash */
    uint64_t *hash;        /* of the lists of a variable */
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

/* Step 1. Return the weight of the new element, at the end of the pool; −1 where memory is not enough. */
INLINE int64_t absorb(Quotient *graph, int32_t pivot)
{
    const int32_t *list = graph->list + graph->start[pivot], elements = graph->elements[pivot];
    int64_t weight = 0, most = graph->length[pivot];
    for (int32_t k = 0; k < elements; k++) most += graph->size[list[k]];
    if (!make_room(&graph->pool, &graph->room, graph->used, most)) return -1;
    for (int32_t k = 0; k < elements; k++) {
        weight += gather(graph, graph->pool + graph->place[list[k]], graph->size[list[k]]);
        graph->mark[list[k]] = 0;
    }
    return weight + gather(graph, list + elements, graph->length[pivot] - elements);
}

/* Step 2. Mark each element of the new element's variables, from `begin` on in the pool, with its weight outside. */
INLINE void count_outside(Quotient *graph, int64_t begin)
{
    for (int64_t k = begin; k < graph->used; k++) {
        const int32_t i = graph->pool[k], *list = graph->list + graph->start[i];
        for (int32_t j = 0; j < graph->elements[i]; j++) {
            const int32_t element = list[j];
            if (graph->mark[element] > graph->tag)
                graph->mark[element] += graph->weight[i];
            else if (graph->mark[element])
                graph->mark[element] = graph->tag + graph->degree[element] + graph->weight[i];
        }
    }
}

/* Remove from the lists of variable i everything that the new element covers; live elements with other variables, and
   variables outside, stay. Return the bound of its degree outside the new element, and write the hash of its lists. */
INLINE int64_t pruned(Quotient *graph, int32_t i, int32_t pivot)
{
    int32_t *const list = graph->list + graph->start[i];
    int32_t kept = 0, to, old = graph->elements[i];
    int64_t degree = 0;
    uint64_t sum = 0;
    for (int32_t k = 0; k < old; k++) {
        const int32_t element = list[k];
        if (graph->mark[element] <= graph->tag) {
            graph->mark[element] = 0; /* all of its variables are in the new element */
            continue;
        }
        degree += graph->mark[element] - graph->tag, sum += element, list[kept++] = element;
    }
    to = kept;
    for (int32_t k = old; k < graph->length[i]; k++) {
        const int32_t j = list[k];
        if (graph->weight[j] <= 0) continue;
        degree += graph->weight[j], sum += j, list[to++] = j;
    }
    /* There is room: the pivot itself, or an element of it, was in the lists. */
    list[to] = list[kept], list[kept] = list[0], list[0] = pivot;
    graph->elements[i] = kept + 1, graph->length[i] = to + 1, graph->hash[i] = sum % graph->nodes;
    return degree;
}

/* Step 3. Return the weight of what is eliminated with the pivot. */
INLINE int64_t prune(Quotient *graph, int64_t begin, int32_t pivot)
{
    int64_t weight = 0;
    for (int64_t k = begin; k < graph->used; k++) {
        const int32_t i = graph->pool[k];
        const int64_t degree = pruned(graph, i, pivot);
        if (degree == 0) {
            weight -= graph->weight[i], graph->weight[i] = 0, graph->into[i] = pivot;
            continue;
        }
        graph->degree[i] = degree < graph->degree[i] ? degree : graph->degree[i];
        graph->next[i] = graph->bucket[graph->hash[i]], graph->bucket[graph->hash[i]] = i;
    }
    return weight;
}

/* Return whether the lists of two variables are equal but for their first elements; those of i are marked by the tag. */
INLINE int is_like(const Quotient *graph, int32_t i, int32_t j)
{
    if (graph->length[i] != graph->length[j] || graph->elements[i] != graph->elements[j]) return 0;
    const int32_t *list = graph->list + graph->start[j];
    for (int32_t k = 1; k < graph->length[j]; k++)
        if (graph->mark[list[k]] != graph->tag) return 0;
    return 1;
}

/* Step 4. */
INLINE void merge(Quotient *graph, int64_t begin)
{
    for (int64_t k = begin; k < graph->used; k++) {
        int32_t i = graph->pool[k];
        if (graph->weight[i] == 0) continue;
        const uint64_t hash = graph->hash[i];
        i = graph->bucket[hash], graph->bucket[hash] = -1;
        for (; i >= 0 && graph->next[i] >= 0; i = graph->next[i], graph->tag++) {
            const int32_t *list = graph->list + graph->start[i];
            for (int32_t j = 1; j < graph->length[i]; j++) graph->mark[list[j]] = graph->tag;
            for (int32_t before = i, j; (j = graph->next[before]) >= 0;) {
                if (!is_like(graph, i, j)) {
                    before = j;
                    continue;
                }
                graph->weight[i] += graph->weight[j], graph->weight[j] = 0, graph->into[j] = i;
                graph->next[before] = graph->next[j];
            }
        }
    }
}

/* Step 5: with degrees that count the new element, of weight `outside`. */
INLINE void finish(Quotient *graph, int64_t begin, int32_t pivot, int64_t outside)
{
    int64_t end = begin;
    for (int64_t k = begin; k < graph->used; k++) {
        const int32_t i = graph->pool[k], weight = -graph->weight[i];
        if (weight == 0) continue;
        const int64_t bound = graph->degree[i] + outside - weight, left = graph->sparse - graph->gone - weight;
        const int64_t degree = bound < left ? bound : left;
        graph->weight[i] = weight, graph->pool[end++] = i;
        put_in(graph, i, degree);
        if (degree < graph->lowest) graph->lowest = degree;
    }
    graph->place[pivot] = begin, graph->size[pivot] = end - begin, graph->degree[pivot] = outside;
    graph->mark[pivot] = end > begin, graph->used = end;
}

/* Eliminate all variables. Write the supernode of each node to `super`, numbered in the order of elimination. Return
   how many there are; −1 where factors would cost more than `most`, or memory is not enough. */
static int64_t eliminate(Quotient *graph, const Limits *most, int32_t *super)
{
    const int32_t dense = fmax(16, 10 * sqrt((double)graph->nodes)); /* nodes of more links come last, as they are */
    int64_t supers = 0;
    Limits cost = {0};
    graph->tag = 1;
    for (int64_t i = 0; i < graph->nodes; i++) {
        if (graph->length[i] > dense)
            graph->weight[i] = 0;
        else
            graph->sparse++, put_in(graph, i, graph->length[i]);
    }
    while (graph->gone < graph->sparse) {
        while (graph->head[graph->lowest] < 0) graph->lowest++;
        const int32_t pivot = graph->head[graph->lowest];
        const int64_t begin = graph->used, own = graph->weight[pivot];
        take_out(graph, pivot);
        graph->weight[pivot] = 0, super[pivot] = supers++;
        int64_t outside = absorb(graph, pivot);
        if (outside < 0) return -1;
        count_outside(graph, begin);
        const int64_t others = prune(graph, begin, pivot), weight = own + others;
        outside -= others, graph->gone += weight;
        graph->largest = outside > graph->largest ? outside : graph->largest, graph->tag += graph->largest + 1;
        merge(graph, begin);
        finish(graph, begin, pivot, outside);
        for (int64_t height = outside + 1; height <= outside + weight; height++)
            cost.work += (double)height * height, cost.entries += height;
        /* The rest of the new element is a clique, whose columns will hold it whole: they cost at least that much. */
        const double clique = outside;
        if (cost.work + clique * clique * clique / 3 > most->work) return -1;
        if (cost.entries + clique * clique / 2 > most->entries) return -1;
    }
    for (int64_t i = 0; i < graph->nodes; i++)
        if (super[i] < 0 && graph->into[i] < 0) super[i] = supers++; /* dense ones */
    for (int64_t i = 0; i < graph->nodes; i++) {
        int32_t root = i;
        while (super[root] < 0) root = graph->into[root];
        for (int32_t j = i, next; super[j] < 0; j = next) next = graph->into[j], super[j] = super[root];
    }
    return supers;
}
