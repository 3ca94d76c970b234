/* The edges among some nodes of a graph, without a pass over the whole graph. */

#include "kernels.h"

/* Fill `place` and `new_crow`. Return the number of edges, or −1 where a node does not exist or comes twice. */
int64_t count_edges(Subgraph *task)
{
    int64_t edges = 0;
    for (int64_t i = 0; i < task->count; i++) {
        const int64_t node = task->nodes[i];
        if (node < 0 || node >= task->total || task->place[node]) return -1;
        task->place[node] = i + 1;
    }
    for (int64_t i = 0; i < task->count; i++) {
        const int64_t node = task->nodes[i];
        task->new_crow[i] = edges;
        for (int32_t edge = task->crow[node]; edge < task->crow[node + 1]; edge++)
            edges += task->place[task->col[edge]] > 0;
    }
    task->new_crow[task->count] = edges;
    return edges;
}

static int ascending(const void *left, const void *right)
{
    const int64_t first = *(const int64_t *)left, second = *(const int64_t *)right;
    return (first > second) - (first < second);
}

/* Fill the edges, ascending by row, then by column. */
void fill_edges(Subgraph *task)
{
    for (int64_t i = 0; i < task->count; i++) {
        const int32_t first = task->crow[task->nodes[i]], last = task->crow[task->nodes[i] + 1];
        int64_t *key = task->edge + task->new_crow[i], found = 0; /* new column, and place in the old row */
        for (int32_t edge = first; edge < last; edge++)
            if (task->place[task->col[edge]])
                key[found++] = (int64_t)(task->place[task->col[edge]] - 1) << 32 | (edge - first);
        if (found > 32)
            qsort(key, found, sizeof *key, ascending);
        else
            for (int64_t j = 1, at; j < found; j++) {
                const int64_t own = key[j];
                for (at = j; at > 0 && key[at - 1] > own; at--) key[at] = key[at - 1];
                key[at] = own;
            }
        for (int64_t j = 0; j < found; j++) {
            task->row[task->new_crow[i] + j] = i, task->new_col[task->new_crow[i] + j] = key[j] >> 32;
            key[j] = first + (key[j] & 0xffffffff);
        }
    }
}
