/* The edges among some nodes of a graph, without a pass over the whole graph. */

#include "kernels.h"

/* Fill `place` and `new_crow`. Return the number of edges, or −1 where a node does not exist or comes twice. */
int64_t count_edges(Subgraph *t)
{
    int64_t edges = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t node = t->nodes[i];
        if (node < 0 || node >= t->total || t->place[node]) return -1;
        t->place[node] = i + 1;
    }
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t node = t->nodes[i];
        t->new_crow[i] = edges;
        for (int32_t e = t->crow[node]; e < t->crow[node + 1]; e++) edges += t->place[t->col[e]] > 0;
    }
    t->new_crow[t->count] = edges;
    return edges;
}

static int ascending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Fill the edges, ascending by row, then by column. */
void fill_edges(Subgraph *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        const int32_t first = t->crow[t->nodes[i]], last = t->crow[t->nodes[i] + 1];
        int64_t *key = t->edge + t->new_crow[i], n = 0; /* new column, and place in the old row */
        for (int32_t e = first; e < last; e++)
            if (t->place[t->col[e]]) key[n++] = (int64_t)(t->place[t->col[e]] - 1) << 32 | (e - first);
        if (n > 32)
            qsort(key, n, sizeof *key, ascending);
        else
            for (int64_t j = 1, at; j < n; j++) {
                const int64_t own = key[j];
                for (at = j; at > 0 && key[at - 1] > own; at--) key[at] = key[at - 1];
                key[at] = own;
            }
        for (int64_t j = 0; j < n; j++) {
            t->row[t->new_crow[i] + j] = i, t->new_col[t->new_crow[i] + j] = key[j] >> 32;
            key[j] = first + (key[j] & 0xffffffff);
        }
    }
}
