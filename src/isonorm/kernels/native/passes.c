/* The passes of the explicit path over an activation, on a CPU: steps 1, 3, 4 and 6 of explicit.py.

   A task is a chunk of a problem's samples; threads take tasks as they come. How samples are cut
   into chunks and in which order sums are added depends on the shapes alone, so that the number of
   threads does not change a bit of the results.

   Index legend: b problems, d features, m samples. */

#include "tile.h"

/* Numbers in a chunk, at least, and rows of the d × d sums it leaves that it has at least. */
#define CHUNK 16384
#define CHUNK_ROWS 16
/* Rows of sums that a thread merges before the next one's turn. */
#define ROWS_AT_ONCE 4

static index_t samples_of(const struct view *v) { return v->examples * v->samples; }

static index_t chunk_of(const struct shape *s)
{
    index_t numbers = CHUNK_ROWS * s->d * s->d;
    if (numbers < CHUNK) numbers = CHUNK;
    return (numbers / s->d + s->samples - 1) / s->samples * s->samples;
}

/* How many chunks each problem is cut into. */
static index_t chunks(const struct view *v, const struct shape *s)
{
    return (samples_of(v) + chunk_of(s) - 1) / chunk_of(s);
}

/* The samples of a task. */
struct range { index_t problem, start, stop; };

static struct range range_of(const struct view *v, const struct shape *s, index_t task)
{
    index_t each = chunks(v, s), start = task % each * chunk_of(s);
    return (struct range){task / each, start, least(start + chunk_of(s), samples_of(v))};
}

/* What a chunk leaves of sums: two vectors and a matrix. */
static index_t part_size(const struct shape *s) { return 2 * s->d + s->d * s->d; }

/* What a thread works in: tiles, and matrices to multiply by. */
static index_t thread_size(const struct shape *s) { return 3 * ROOM + 2 * s->d * s->d; }

/* Numbers that a pass needs room for: what its chunks leave, if they leave sums, and its threads'
   own. */
index_t room_of(const struct view *v, int leaves_sums, int threads)
{
    const struct shape s = shape_of(v);
    index_t parts = leaves_sums ? v->outer * v->inner * chunks(v, &s) * part_size(&s) : 0;
    return parts + threads * thread_size(&s);
}

/* The running thread's part of that. */
static REAL *own(REAL *room, const struct shape *s)
{
    return room + omp_get_thread_num() * thread_size(s);
}

/* The mean of what is not centered. */
static const REAL nothing[MOST_FEATURES];

#define FOR_TILES(r, s, start, count)                                                       \
    for (index_t start = (r).start, count;                                                  \
         start < (r).stop && (count = least((s).samples, (r).stop - start)); start += count)

/* ---- step 1 -------------------------------------------------------------------------------- */

/* Of a chunk: a pivot, the sums of deviations from it, and of their products. */
static void chunk_moments(
    const REAL *x, const struct view *v, const struct shape *s, struct range r, REAL *part,
    REAL *lying)
{
    REAL *turned = lying + ROOM;
    REAL *pivot = part, *total = part + s->d, *square = total + s->d;
    const REAL *problem = x + offset(v, r.problem);
    memset(part, 0, part_size(s) * sizeof(REAL));

    index_t first = least(s->samples, r.stop - r.start);
    gather(problem, v, s, r.start, first, total, lying); /* total is zero so far */
    (s->by_columns ? add_columns : add_rows)(lying, s->width, s->d, s->samples, pivot);
    for (index_t f = 0; f < s->d; f++) pivot[f] /= first;

    FOR_TILES(r, *s, start, count) {
        const REAL *tile = lying;
        gather(problem, v, s, start, count, pivot, lying);
        if (!s->by_columns) turn(lying, s, turned), tile = turned;
        add_columns(tile, s->d, s->d, s->samples, total);
        add_products(s->d, s->samples, tile, 1, s->d, tile, square, 1);
    }
}

/* Row ``i`` of a problem's covariance, on and right of the diagonal, and its mirror image; and the
   mean, with the rest that its rounding leaves out. Chunks merge (Chan) in float64, relative to the
   first pivot: means far from zero would be rounded before they are compared. */
static void merge_row(
    const struct view *v, const struct shape *s, const REAL *parts, index_t i, REAL *mean,
    REAL *rest, REAL *cov)
{
    const index_t m = samples_of(v), size = part_size(s), chunk = chunk_of(s), d = v->features;
    double sum[MOST_FEATURES], center[MOST_FEATURES];
    for (index_t j = i; j < d; j++) sum[j] = center[j] = 0;
    const REAL *pivot = parts, *total = pivot + s->d, *row = total + s->d + i * s->d;
    for (index_t start = 0; start < m; start += chunk, pivot += size, total += size) {
        double count = least(chunk, m - start);
        for (index_t j = i; j < d; j++)
            center[j] += (count * ((double)pivot[j] - parts[j]) + total[j]) / m;
    }
    pivot = parts, total = pivot + s->d;
    for (index_t start = 0; start < m;
         start += chunk, pivot += size, total += size, row += size) {
        double count = least(chunk, m - start);
        double own_i = total[i] / count, away_i = (double)pivot[i] - parts[i] + own_i - center[i];
        for (index_t j = i; j < d; j++) {
            double own_j = total[j] / count;
            double away_j = (double)pivot[j] - parts[j] + own_j - center[j];
            sum[j] += row[j] + count * (away_i * away_j - own_i * own_j);
        }
    }
    mean[i] = (REAL)(parts[i] + center[i]);
    rest[i] = (REAL)(center[i] - ((double)mean[i] - parts[i]));
    for (index_t j = i; j < d; j++) cov[i * d + j] = cov[j * d + i] = (REAL)(sum[j] / m);
}

/* Step 1: mean (b, d), its rest (b, d) and biased covariance (b, d, d); zeros for problems without
   samples. */
void moments(
    const REAL *x, const struct view *v, REAL *mean, REAL *rest, REAL *cov, REAL *room, int threads)
{
    const struct shape s = shape_of(v);
    const index_t problems = v->outer * v->inner, each = chunks(v, &s), d = v->features;
    const index_t size = part_size(&s);
    REAL *parts = room + threads * thread_size(&s);
    if (!problems) return;
    if (!each) {
        memset(mean, 0, problems * d * sizeof(REAL));
        memset(rest, 0, problems * d * sizeof(REAL));
        memset(cov, 0, problems * d * d * sizeof(REAL));
        return;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic)
        for (index_t task = 0; task < problems * each; task++)
            chunk_moments(x, v, &s, range_of(v, &s, task), parts + task * size, own(room, &s));
#pragma omp for schedule(static, ROWS_AT_ONCE)
        for (index_t row = 0; row < problems * d; row++) {
            index_t p = row / d;
            merge_row(v, &s, parts + p * each * size, row % d, mean + p * d, rest + p * d,
                      cov + p * d * d);
        }
    }
}

/* ---- step 4 -------------------------------------------------------------------------------- */

static void chunk_sums(
    const REAL *x, const struct view *v, const REAL *dy, const struct view *g,
    const struct shape *s, struct range r, const REAL *mean, REAL *part, REAL *lying)
{
    REAL *turned = lying + ROOM, *slopes = turned + ROOM;
    REAL *total = part, *outer = part + 2 * s->d;
    memset(part, 0, part_size(s) * sizeof(REAL));
    x += offset(v, r.problem), dy += offset(g, r.problem);
    FOR_TILES(r, *s, start, count) {
        const REAL *tile = lying;
        gather(x, v, s, start, count, mean, lying);
        gather(dy, g, s, start, count, nothing, slopes);
        if (!s->by_columns) turn(lying, s, turned), tile = turned;
        (s->by_columns ? add_columns : add_rows)(slopes, s->width, s->d, s->samples, total);
        add_products(s->d, s->samples, slopes, s->by_columns ? 1 : s->width,
                     s->by_columns ? s->width : 1, tile, outer, 0);
    }
}

/* Step 4: f = Σ dy (b, d) and M = Σ dy(x − μ)ᵀ (b, d, d); of μ the rest is taken off sums. */
void sums(
    const REAL *x, const struct view *v, const REAL *dy, const struct view *g, const REAL *mean,
    const REAL *rest, REAL *f, REAL *outer, REAL *room, int threads)
{
    const struct shape s = shape_of(v);
    const index_t problems = v->outer * v->inner, each = chunks(v, &s), d = v->features;
    const index_t size = part_size(&s);
    REAL *parts = room + threads * thread_size(&s);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic)
        for (index_t task = 0; task < problems * each; task++) {
            struct range r = range_of(v, &s, task);
            chunk_sums(x, v, dy, g, &s, r, mean + r.problem * d, parts + task * size,
                       own(room, &s));
        }
#pragma omp for schedule(static, ROWS_AT_ONCE)
        for (index_t row = 0; row < problems * d; row++) {
            const REAL *part = parts + row / d * each * size;
            double total = 0, sum[MOST_FEATURES];
            for (index_t j = 0; j < d; j++) sum[j] = 0;
            for (index_t t = 0; t < each; t++, part += size) {
                total += part[row % d];
                for (index_t j = 0; j < d; j++) sum[j] += part[2 * s.d + row % d * s.d + j];
            }
            f[row] = (REAL)total;
            for (index_t j = 0; j < d; j++)
                outer[row * d + j] = (REAL)(sum[j] - total * rest[row / d * d + j]);
        }
    }
}

/* ---- steps 3 and 6 ------------------------------------------------------------------------- */

/* A matrix (d, d) with this row and column stride, padded, for products from the left; turned for
   those by columns, from the right. Beside another, or below it, its rows are ``width`` apart. */
static void lay_matrix(
    const REAL *matrix, index_t row, index_t column, index_t features, const struct shape *s,
    index_t width, REAL *to)
{
    for (index_t i = 0; i < s->d; i++)
        for (index_t j = 0; j < s->d; j++) {
            REAL value = i < features && j < features ? matrix[i * row + j * column] : 0;
            to[s->by_columns ? j * s->d + i : i * width + j] = value;
        }
}

/* y = A(x − μ) + shift; or, with dy, dx = Aᵀdy + S(x − μ) + shift, as one product of [Aᵀ S] with
   [dy; x − μ]. What the rest of μ adds to every sample is taken off the shift. */
static void chunk_apply(
    const REAL *x, const struct view *v, const REAL *dy, const struct view *g, REAL *out,
    const struct view *w, const struct shape *s, struct range r, const REAL *mean,
    const REAL *rest, const REAL *a, const REAL *slope, const REAL *shift, REAL *tiles)
{
    REAL moved[MOST_FEATURES];
    REAL *made = tiles + 2 * ROOM, *matrix = made + ROOM;
    const index_t d = v->features, depth = dy ? 2 * s->d : s->d;
    struct shape wide = *s; /* by columns, x − μ stands beside dy */
    if (s->by_columns) wide.width = depth;
    REAL *centered = tiles + (!dy ? 0 : s->by_columns ? s->d : s->d * s->width);
    REAL *beside = matrix + (!dy ? 0 : s->by_columns ? s->d * s->d : s->d);

    for (index_t i = 0; i < d; i++) {
        const REAL *row = (dy ? slope : a) + i * d;
        REAL shared = 0;
#pragma omp simd reduction(+ : shared)
        for (index_t j = 0; j < d; j++) shared += row[j] * rest[j];
        moved[i] = shift[i] - shared;
    }
    if (dy) {
        lay_matrix(a, 1, d, d, s, depth, matrix);
        lay_matrix(slope, d, 1, d, s, depth, beside);
        dy += offset(g, r.problem);
    } else
        lay_matrix(a, d, 1, d, s, depth, matrix);
    x += offset(v, r.problem), out += offset(w, r.problem);

    FOR_TILES(r, *s, start, count) {
        gather(x, v, &wide, start, count, mean, centered);
        if (dy) gather(dy, g, &wide, start, count, nothing, tiles);
        if (s->by_columns)
            multiply(s->samples, s->d, depth, tiles, depth, 1, matrix, s->d, made, s->d, 0, 0);
        else
            multiply(s->d, s->samples, depth, matrix, depth, 1, tiles, s->width, made, s->width, 0,
                     0);
        scatter(made, s, out, w, start, count, moved);
    }
}

/* Step 3 without dy, step 6 with it. */
void apply(
    const REAL *x, const struct view *v, const REAL *dy, const struct view *g, REAL *out,
    const struct view *w, const REAL *mean, const REAL *rest, const REAL *a, const REAL *slope,
    const REAL *shift, REAL *room, int threads)
{
    const struct shape s = shape_of(v);
    const index_t tasks = v->outer * v->inner * chunks(v, &s), d = v->features;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (index_t task = 0; task < tasks; task++) {
        struct range r = range_of(v, &s, task);
        index_t p = r.problem;
        chunk_apply(x, v, dy, g, out, w, &s, r, mean + p * d, rest + p * d, a + p * d * d,
                    slope ? slope + p * d * d : 0, shift + p * d, own(room, &s));
    }
}
