/* Products of matrices of some kilobytes, in vectors of the running CPU.

   The compiler is told REAL, float or double; LANES, how many are in a vector; PAD, what sizes are
   padded to, a multiple of LANES and of the rows that ``multiply`` takes at once; and MOST_FEATURES,
   the largest group there is (see build.py). */

#pragma once

#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#endif

typedef int64_t index_t;
/* Wherever it may lie in memory. */
typedef REAL vec __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

/* Sums in registers: ROWS × VECTORS of them, so that each loaded vector serves several products,
   and enough are under way to hide a product's latency. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define ROWS 8
#else
#define ROWS 4
#endif
#define VECTORS 2

static inline index_t padded(index_t n) { return (n + PAD - 1) / PAD * PAD; }
static inline index_t least(index_t a, index_t b) { return a < b ? a : b; }

/* c = keep·c + Σ over k of a(row, k)·b(k, column) for ``rows`` rows and ``vectors`` vectors of
   columns; with keep = 0 c is only written. What is kept is added last, so that it is the rounding
   of the sum that counts, not of each step. rows and vectors are constants where this is inlined:
   the sums then are registers. */
static inline __attribute__((always_inline)) void block(
    const int rows, const int vectors, index_t depth, const REAL *a, index_t a_row, index_t a_step,
    const REAL *b, index_t b_step, REAL *c, index_t c_row, REAL keep)
{
    vec sum[2 * ROWS][VECTORS] = {0};
    for (index_t k = 0; k < depth; k++, a += a_step, b += b_step) {
        vec right[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) right[v] = *(const vec *)(b + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[r][v] += a[r * a_row] * right[v];
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            vec *to = (vec *)(c + r * c_row + v * LANES);
            if (keep) sum[r][v] += keep * *to;
            *to = sum[r][v];
        }
}

/* c (rows × columns) = keep·c + a·b. a lies in any way; the columns of b and c are next to each
   other. Of a symmetric product only blocks that reach the diagonal or lie above it. */
static void multiply(
    index_t rows, index_t columns, index_t depth, const REAL *a, index_t a_row, index_t a_step,
    const REAL *b, index_t b_step, REAL *c, index_t c_row, REAL keep, int symmetric)
{
    index_t j = 0;
    for (; j + VECTORS * LANES <= columns; j += VECTORS * LANES)
        for (index_t i = 0; i < rows && !(symmetric && i >= j + VECTORS * LANES); i += ROWS)
            block(ROWS, VECTORS, depth, a + i * a_row, a_row, a_step, b + j, b_step,
                  c + i * c_row + j, c_row, keep);
    for (; j < columns; j += LANES)
        for (index_t i = 0; i < rows && !(symmetric && i >= j + LANES); i += 2 * ROWS)
            block(2 * ROWS, 1, depth, a + i * a_row, a_row, a_step, b + j, b_step,
                  c + i * c_row + j, c_row, keep);
}
