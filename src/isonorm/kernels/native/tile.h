/* Tiles: some samples of one problem, centered, in memory that stays in cache.

   A tile lies as its tensor does: by rows, each feature's samples next to each other (NCHW), or by
   columns, each sample's features next to each other (channels_last). Features and samples are
   padded with zeros to whole vectors, so that products need no remainders.

   Index legend: d features, m samples. */

#pragma once

#include "multiply.h"

/* Numbers in a tile, about what a core's first cache holds; and with the padding between rows. */
#define TILE 8192
#define ROOM (TILE + PAD * MOST_FEATURES)
_Static_assert(PAD * MOST_FEATURES <= TILE, "a tile has at least PAD samples");

/* The problems of a tensor as it lies: outer × inner of them, each with the samples of some
   examples. */
struct view {
    index_t outer, inner, examples, features, samples;
    index_t outer_step, inner_step, example_step, feature_step, sample_step;
};

static inline index_t offset(const struct view *v, index_t problem)
{
    return problem / v->inner * v->outer_step + problem % v->inner * v->inner_step;
}

/* How all of a pass's tiles lie. */
struct shape {
    int by_columns;
    index_t d;       /* features, padded */
    index_t samples; /* of a tile */
    index_t width;   /* from one row, or column, to the next; rows are padded so that it is not a
                        power of two, which would put them all into the same few places of the
                        cache */
};

static inline struct shape shape_of(const struct view *v)
{
    struct shape s;
    s.by_columns = v->feature_step == 1 && (v->samples == 1 || v->sample_step != 1);
    s.d = padded(v->features);
    s.samples = least(TILE / s.d / PAD * PAD, padded(v->examples * v->samples));
    if (!s.samples) s.samples = PAD; /* of problems without samples */
    s.width = s.by_columns ? s.d : s.samples + PAD;
    return s;
}

/* ---- between tensors and tiles ------------------------------------------------------------ */

static inline void subtract(REAL *to, const REAL *from, index_t step, index_t n, REAL shift)
{
    if (step == 1)
        for (index_t i = 0; i < n; i++) to[i] = from[i] - shift;
    else
        for (index_t i = 0; i < n; i++) to[i] = from[i * step] - shift;
}

static inline void subtract_each(
    REAL *to, const REAL *from, index_t step, index_t n, const REAL *shift)
{
    if (step == 1)
        for (index_t i = 0; i < n; i++) to[i] = from[i] - shift[i];
    else
        for (index_t i = 0; i < n; i++) to[i] = from[i * step] - shift[i];
}

static inline void add_each(REAL *to, const REAL *from, index_t step, index_t n, const REAL *shift)
{
    if (step == 1)
        for (index_t i = 0; i < n; i++) to[i] = from[i] + shift[i];
    else
        for (index_t i = 0; i < n; i++) to[i * step] = from[i] + shift[i];
}

/* ``count`` samples of a problem, from ``start`` on, less ``mean``; zeros up to the tile's size. */
static void gather(
    const REAL *problem, const struct view *v, const struct shape *s, index_t start, index_t count,
    const REAL *mean, REAL *tile)
{
    index_t n = start / v->samples, at = start % v->samples, run;
    for (index_t t = 0; t < count; t += run, n++, at = 0) {
        const REAL *from = problem + n * v->example_step + at * v->sample_step;
        run = least(count - t, v->samples - at);
        if (s->by_columns)
            for (index_t i = 0; i < run; i++) {
                REAL *to = tile + (t + i) * s->width;
                subtract_each(to, from + i * v->sample_step, v->feature_step, v->features, mean);
                for (index_t f = v->features; f < s->d; f++) to[f] = 0;
            }
        else
            for (index_t f = 0; f < v->features; f++)
                subtract(tile + f * s->width + t, from + f * v->feature_step, v->sample_step, run,
                         mean[f]);
    }
    if (s->by_columns)
        for (index_t t = count; t < s->samples; t++)
            memset(tile + t * s->width, 0, s->d * sizeof(REAL));
    else
        for (index_t f = 0; f < s->d; f++) {
            index_t used = f < v->features ? count : 0;
            memset(tile + f * s->width + used, 0, (s->samples - used) * sizeof(REAL));
        }
}

/* A tile plus ``shift`` to where its samples belong. */
static void scatter(
    const REAL *tile, const struct shape *s, REAL *problem, const struct view *v, index_t start,
    index_t count, const REAL *shift)
{
    index_t n = start / v->samples, at = start % v->samples, run;
    for (index_t t = 0; t < count; t += run, n++, at = 0) {
        REAL *to = problem + n * v->example_step + at * v->sample_step;
        run = least(count - t, v->samples - at);
        if (s->by_columns)
            for (index_t i = 0; i < run; i++)
                add_each(to + i * v->sample_step, tile + (t + i) * s->width, v->feature_step,
                         v->features, shift);
        else
            for (index_t f = 0; f < v->features; f++) {
                const REAL *from = tile + f * s->width + t;
                REAL *row = to + f * v->feature_step;
                if (v->sample_step == 1)
                    for (index_t i = 0; i < run; i++) row[i] = from[i] + shift[f];
                else
                    for (index_t i = 0; i < run; i++) row[i * v->sample_step] = from[i] + shift[f];
            }
    }
}

/* ---- by rows to by columns ---------------------------------------------------------------- */

typedef __typeof__((vec){0} == (vec){0}) lanes;

/* LANES vectors as a matrix, transposed: 2 × 2 blocks of single numbers first, then of pairs, … */
static inline __attribute__((always_inline)) void transpose(vec *row)
{
#pragma GCC unroll 4
    for (int h = 1; h < LANES; h *= 2) {
        lanes low, high;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            low[i] = i & h ? LANES + i - h : i;
            high[i] = i & h ? LANES + i : i + h;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & h)) {
                vec upper = row[i], lower = row[i + h];
                row[i] = __builtin_shuffle(upper, lower, low);
                row[i + h] = __builtin_shuffle(upper, lower, high);
            }
    }
}

/* The tile by columns, (samples, d) without gaps, from one by rows. */
static void turn(const REAL *by_rows, const struct shape *s, REAL *by_columns)
{
    for (index_t t = 0; t < s->samples; t += LANES)
        for (index_t f = 0; f < s->d; f += LANES) {
            vec square[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                square[i] = *(const vec *)(by_rows + (f + i) * s->width + t);
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                *(vec *)(by_columns + (t + i) * s->d + f) = square[i];
        }
}

/* ---- sums of a tile's samples -------------------------------------------------------------- */

static void add_rows(const REAL *tile, index_t width, index_t d, index_t samples, REAL *total)
{
    for (index_t f = 0; f < d; f++) {
        vec sum = {0};
        for (index_t t = 0; t < samples; t += LANES) sum += *(const vec *)(tile + f * width + t);
        REAL all = 0;
        for (int i = 0; i < LANES; i++) all += sum[i];
        total[f] += all;
    }
}

static void add_columns(const REAL *tile, index_t width, index_t d, index_t samples, REAL *total)
{
    for (index_t f = 0; f < d; f += LANES) {
        vec all = {0};
        for (index_t start = 0; start < samples; start += PAD) {
            vec sum = {0};
            for (index_t t = start; t < start + PAD; t++)
                sum += *(const vec *)(tile + t * width + f);
            all += sum;
        }
        *(vec *)(total + f) += all;
    }
}

/* Samples whose products are added to one sum before sums are added: rounding grows with them. */
#define RUN 64

/* c (d × d) += a·b over a tile's samples. a lies in any way; b has them by columns, without gaps. */
static void add_products(
    index_t d, index_t samples, const REAL *a, index_t a_row, index_t a_step, const REAL *b,
    REAL *c, int symmetric)
{
    for (index_t t = 0; t < samples; t += RUN)
        multiply(d, d, least(RUN, samples - t), a + t * a_step, a_row, a_step, b + t * d, d, c, d,
                 1, symmetric);
}
