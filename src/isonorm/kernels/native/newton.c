/* Newton's steps and their derivative, as in roots/recurrence.py, one problem a thread.

       Z₀ = Σ/tr Σ,  P₀ = I;     Q = 3/2·I − 1/2·Z,   P ← P·Q,   Z ← Z·Q·Q          W = P_T/√tr Σ

   Q itself is never made: A·Q is 3/2·A plus the product of A with −1/2·Z. Iterates are symmetric,
   exactly, as in recurrence.py: of their products one half is made, the other is its mirror image.

   The memo, (T − 1, 2, b, d, d), has Z_k and P_k for k = 1 … T − 1.

   Index legend: b problems, d features; all matrices are (b, d, d), in here padded. */

#include <math.h>

#include "multiply.h"

/* Matrices that a thread needs room for. */
#define MATRICES 7

/* c = keep·c + a·b */
static void product(index_t wide, const REAL *a, const REAL *b, REAL *c, REAL keep)
{
    multiply(wide, wide, wide, a, wide, 1, b, wide, c, wide, keep, 0);
}

/* c = a·Q: what is not Z's share is not rounded in products. */
static void step(index_t wide, const REAL *a, const REAL *minus_half_z, REAL *c)
{
    memcpy(c, a, wide * wide * sizeof(REAL));
    product(wide, a, minus_half_z, c, (REAL)1.5);
}

/* The same of iterates, whose product is symmetric. */
static void iterate(index_t wide, const REAL *a, const REAL *minus_half_z, REAL *c)
{
    memcpy(c, a, wide * wide * sizeof(REAL));
    multiply(wide, wide, wide, a, wide, 1, minus_half_z, wide, c, wide, (REAL)1.5, 1);
    for (index_t i = 1; i < wide; i++)
        for (index_t j = 0; j < i; j++) c[i * wide + j] = c[j * wide + i];
}

static void scale(index_t size, REAL factor, const REAL *from, REAL *to)
{
    for (index_t i = 0; i < size; i++) to[i] = factor * from[i];
}

static void pad(const REAL *from, index_t d, REAL divisor, REAL *to)
{
    const index_t wide = padded(d);
    memset(to, 0, wide * wide * sizeof(REAL));
    for (index_t i = 0; i < d; i++)
        for (index_t j = 0; j < d; j++) to[i * wide + j] = from[i * d + j] / divisor;
}

static void unpad(const REAL *from, index_t d, REAL divisor, REAL *to)
{
    for (index_t i = 0; i < d; i++)
        for (index_t j = 0; j < d; j++) to[i * d + j] = from[i * padded(d) + j] / divisor;
}

static REAL trace(const REAL *sigma, index_t d)
{
    double sum = 0;
    for (index_t i = 0; i < d; i++) sum += sigma[i * d + i];
    return (REAL)sum;
}

static void solve(
    index_t d, index_t steps, const REAL *sigma, REAL *w, REAL *memo, index_t memo_step, REAL *room)
{
    const index_t wide = padded(d), size = wide * wide;
    REAL *z = room, *p = z + size, *minus_half_z = p + size, *made = minus_half_z + size, *swap;
    const REAL s = trace(sigma, d);

    pad(sigma, d, s, z);
    memset(p, 0, size * sizeof(REAL));
    for (index_t i = 0; i < d; i++) p[i * wide + i] = 1;
    for (index_t k = 0; k < steps; k++) {
        scale(size, (REAL)-0.5, z, minus_half_z);
        if (k) {
            iterate(wide, p, minus_half_z, made);
            swap = p, p = made, made = swap;
        } else /* P₀ = I, so that P₁ = Q */
            for (index_t i = 0; i < size; i++) p[i] = (REAL)1.5 * p[i] + minus_half_z[i];
        if (k + 1 == steps) break; /* the last Z is nobody's input */
        iterate(wide, z, minus_half_z, made);
        iterate(wide, made, minus_half_z, z);
        unpad(z, d, 1, memo + 2 * k * memo_step);
        unpad(p, d, 1, memo + (2 * k + 1) * memo_step);
    }
    unpad(p, d, (REAL)sqrt(s), w);
}

/* dΣ (symmetric) from dW: dots carried along the same recurrence, then the chain rule through the
   trace. */
static void differentiate(
    index_t d, index_t steps, const REAL *dw, const REAL *sigma, const REAL *w, const REAL *memo,
    index_t memo_step, REAL *dsigma, REAL *room)
{
    const index_t wide = padded(d), size = wide * wide;
    REAL *z = room, *minus_half_z = z + size, *dz = minus_half_z + size, *dp = dz + size;
    REAL *const minus_half_p = minus_half_z; /* needed before it, and not after */
    REAL *made = dp + size, *both = made + size, *normal = both + size;
    const REAL s = trace(sigma, d);

    pad(sigma, d, s, normal);
    memset(dz, 0, size * sizeof(REAL));
    memset(dp, 0, size * sizeof(REAL));
    for (index_t i = 0; i < d; i++)
        for (index_t j = 0; j < d; j++)
            dz[i * wide + j] = (dw[i * d + j] + dw[j * d + i]) * ((REAL)0.5 / (REAL)sqrt(s));
    for (index_t k = 0; k < steps; k++) {
        if (k)
            pad(memo + 2 * (k - 1) * memo_step, d, 1, z);
        else
            memcpy(z, normal, size * sizeof(REAL));
        /* dP ← dP·Q + P·dQ, with dQ = −1/2·dZ; P₀ = I does not move. */
        if (k) {
            pad(memo + (2 * (k - 1) + 1) * memo_step, d, -2, minus_half_p);
            product(wide, minus_half_p, dz, made, 0);
            scale(size, (REAL)-0.5, z, minus_half_z);
            step(wide, dp, minus_half_z, both);
            for (index_t i = 0; i < size; i++) dp[i] = both[i] + made[i];
        } else {
            scale(size, (REAL)-0.5, z, minus_half_z);
            scale(size, (REAL)-0.5, dz, dp);
        }
        if (k + 1 == steps) break;
        /* dZ ← Q·dZ·Q + Q·Z·dQ + dQ·Z·Q = X + Xᵀ: both parts of X are products of Z with dZ·Q or
           its transpose, so that one product makes it. */
        step(wide, dz, minus_half_z, made);
        for (index_t i = 0; i < wide; i++)
            for (index_t j = 0; j < wide; j++)
                both[i * wide + j] =
                    (REAL)-0.5 * made[j * wide + i] - (REAL)0.25 * made[i * wide + j];
        product(wide, z, both, made, (REAL)0.75);
        for (index_t i = 0; i < wide; i++)
            for (index_t j = 0; j < wide; j++)
                dz[i * wide + j] = made[i * wide + j] + made[j * wide + i];
    }
    double through = 0;
    for (index_t i = 0; i < d; i++)
        for (index_t j = 0; j < d; j++) {
            REAL own = (dp[i * wide + j] + dp[j * wide + i]) * (REAL)0.5;
            dsigma[i * d + j] = own / s;
            through += own * normal[i * wide + j] + (REAL)0.5 * dw[i * d + j] * w[i * d + j];
        }
    for (index_t i = 0; i < d; i++) dsigma[i * d + i] -= (REAL)(through / s);
}

/* Numbers that the functions below need room for, one thread. */
index_t newton_room(index_t d) { return MATRICES * padded(d) * padded(d); }

void newton(
    index_t b, index_t d, index_t steps, const REAL *sigma, REAL *w, REAL *memo, REAL *room,
    int threads)
{
    const index_t size = d * d;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (index_t p = 0; p < b; p++)
        solve(d, steps, sigma + p * size, w + p * size, memo + p * size, b * size,
              room + omp_get_thread_num() * newton_room(d));
}

void newton_backward(
    index_t b, index_t d, index_t steps, const REAL *dw, const REAL *sigma, const REAL *w,
    const REAL *memo, REAL *dsigma, REAL *room, int threads)
{
    const index_t size = d * d;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (index_t p = 0; p < b; p++)
        differentiate(d, steps, dw + p * size, sigma + p * size, w + p * size, memo + p * size,
                      b * size, dsigma + p * size, room + omp_get_thread_num() * newton_room(d));
}
