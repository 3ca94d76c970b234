/* Checks the compiled loops of a wheel without Python: products, eigenvalues and factors of A = L + 1, L the Laplacian
   of a ring, whose eigenvalues are 3 − 2 cos(2πj/n). `.ci/dist.py` compiles it for each platform and runs it where this
   machine can: `loops LIBRARY` prints the largest error and returns 0 if that is round-off. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#undef near /* a word of the headers of Windows */
#define OPEN(path)         (void *)LoadLibraryA(path)
#define FIND(library, name) (void *)GetProcAddress((HMODULE)(library), name)
#else
#include <dlfcn.h>
#define OPEN(path)         dlopen(path, RTLD_NOW)
#define FIND(library, name) dlsym(library, name)
#endif
#include "kernels.h"

#define N 40

static void *found(void *library, const char *name)
{
    void *const function = library ? FIND(library, name) : NULL;
    if (!function) fprintf(stderr, "%s is not there\n", name), exit(1);
    return function;
}

int main(int count, char **path)
{
    void *const library = count > 1 ? OPEN(path[1]) : NULL;
    int64_t (*const product)(Product_double *, int64_t, int64_t) = found(library, "product_double");
    int64_t (*const eigh)(Eigh *, int64_t, int64_t) = found(library, "eigh");
    SymbolicFactor *(*const symbolic)(int64_t, const int32_t *, const int32_t *, const Limits *) =
        found(library, "symbolic_factor");
    int64_t (*const numeric)(const SymbolicFactor *, const int32_t *, const int32_t *, const double *, double,
                             const double *, double *) = found(library, "numeric_factor");
    int64_t (*const solve)(const SymbolicFactor *, const double *, const double *, double *, int64_t, int64_t,
                           int64_t) = found(library, "solve_factors");
    void (*const release)(SymbolicFactor *) = found(library, "release");

    static int32_t crow[N + 1], col[2 * N];
    static double values[2 * N], diagonal[N], dense[N * N], level[N], vectors[N * N], x[N], image[N], back[N];
    int64_t is_sound = 0;
    for (int i = 0; i < N; i++) {
        const int before = (i + N - 1) % N, after = (i + 1) % N;
        crow[i + 1] = 2 * (i + 1);
        col[2 * i] = before < after ? before : after, col[2 * i + 1] = before < after ? after : before;
        values[2 * i] = values[2 * i + 1] = 1, diagonal[i] = 3, x[i] = sin(i + 1.0);
        dense[i * N + i] = 3, dense[i * N + before] = dense[i * N + after] = -1;
    }
    double error = 0;
    Product_double task = {{crow, col, values, diagonal}, 1, 0, N, 0, 1, 1, 1, 1, x, NULL, image, 1, 0, 0};
    if (!product(&task, 3, 1)) return 1;
    for (int i = 0; i < N; i++)
        error = fmax(error, fabs(image[i] - (3 * x[i] - x[(i + 1) % N] - x[(i + N - 1) % N])));

    Eigh all = {1, N, N, dense, level, vectors, &is_sound};
    if (!eigh(&all, 1, 1) || !is_sound) return 1;
    for (int j = 0; j < N; j++) error = fmax(error, fabs(level[j] - 3 + 2 * cos(2 * acos(-1.0) * ((j + 1) / 2) / N)));

    const Limits most = {1e12, 1e12};
    SymbolicFactor *const structure = symbolic(N, crow, col, &most);
    if (!structure) return 1;
    double *const l = calloc(structure->column_start[structure->supers] + N, sizeof *l);
    if (numeric(structure, crow, col, values, -1, diagonal, l) != 0 || !solve(structure, l, image, back, 1, 1, 1))
        return 1;
    for (int i = 0; i < N; i++) error = fmax(error, fabs(back[i] - x[i]));
    release(structure), free(l);
    printf("loops are right to %.1e\n", error);
    return error > 1e-12;
}
