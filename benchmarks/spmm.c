/* Sparse times dense in plain C: Z = A H, or Z += A H. The competitor that benchmarks/spmm.py measures and compiles,
   once for each type of values and of columns:

     gcc -O3 -march=native -fopenmp -shared -fPIC -DCOLUMN=int32_t -DVALUE=float spmm.c
                                                  -DCOLUMN=int64_t -DVALUE=double

   A tile of a row of Z stays in vector registers while the entries of the row are added in order. The last vector of a
   tile ends at the tile's last column and may overlap the vector before, so that neither masks nor a scalar remainder
   are needed. Rows narrower than a vector use the widest vectors that fit; rows of more than MOST vectors need several
   tiles. Rows of H are prefetched if H is too large for the cache. Threads have shares of about equally many rows and entries. */

#ifndef LANES

#include <stdint.h>

#ifdef __AVX512F__
#define BYTES 64 /* of a vector of sums */
#define MOST 16  /* vectors in a tile */
#else
#define BYTES 32
#define MOST 8
#endif
#define FAR (8 << 20)   /* bytes of an H that is too large for the cache */
#define LINE 64         /* bytes */
#define LINES_AHEAD 192 /* lines of H between the prefetch of a row and its use */

#define FULL (BYTES / (int64_t)sizeof(VALUE))
#define UNROLLED _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))
#define JOINED_(name, lanes) name##_##lanes
#define JOINED(name, lanes) JOINED_(name, lanes)
#define OF_LANES(name) JOINED(name, LANES)

typedef struct {
  const int64_t *rowptr;
  const COLUMN *col;
  const VALUE *val, *H;
  VALUE *Z;
  int64_t rows, f, ahead; /* ahead: entries between the prefetch of a row of H and its use; 0: none is prefetched */
  int add;
} Product;

/* Everything below for vectors of one width. */

#define LANES 2
#include "spmm.c"
#define LANES 4
#include "spmm.c"
#define LANES 8
#include "spmm.c"
#ifdef __AVX512F__
#define LANES 16
#include "spmm.c"
#endif

/* Rows first .. last - 1 of one column. */
static void rows_1(const Product *p, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i++) {
    VALUE s = p->add ? p->Z[i] : 0;
    for (int64_t e = p->rowptr[i]; e < p->rowptr[i + 1]; e++) s += p->val[e] * p->H[p->col[e]];
    p->Z[i] = s;
  }
}

static void rows(const Product *p, int64_t first, int64_t last) {
#ifdef __AVX512F__
  if (p->f >= 16 && FULL == 16)
    rows_16(p, first, last);
  else
#endif
  if (p->f >= 8 && FULL >= 8)
    rows_8(p, first, last);
  else if (p->f >= 4)
    rows_4(p, first, last);
  else if (p->f >= 2)
    rows_2(p, first, last);
  else
    rows_1(p, first, last);
}

static int64_t first_row(const Product *p, int64_t share, int64_t shares) {
  int64_t target = (p->rows + p->rowptr[p->rows]) * share / shares, low = 0, high = p->rows;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (middle + p->rowptr[middle] < target)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void spmm(const int64_t *rowptr, const COLUMN *col, const VALUE *val, const VALUE *H, VALUE *Z, int64_t rows_of_A,
          int64_t cols, int64_t f, int add, int threads) {
  int64_t bytes = f * (int64_t)sizeof(VALUE), lines = (bytes + LINE - 1) / LINE;
  int64_t ahead = lines < LINES_AHEAD ? LINES_AHEAD / lines : 1;
  Product p = {rowptr, col, val, H, Z, rows_of_A, f, cols * bytes >= FAR ? ahead : 0, add};
  if (threads == 1)
    rows(&p, 0, p.rows);
  else {
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int share = 0; share < threads; share++)
      rows(&p, first_row(&p, share, threads), first_row(&p, share + 1, threads));
  }
}

#else

#define Sums OF_LANES(Sums)
#define Stored OF_LANES(Stored)
typedef VALUE __attribute__((vector_size(LANES * sizeof(VALUE)))) Sums;
typedef VALUE __attribute__((vector_size(LANES * sizeof(VALUE)), aligned(sizeof(VALUE)), may_alias)) Stored;

/* One row of a tile of n vectors: at columns `at`, at + LANES, ..., and the last one at column `tail`. */
INLINE void OF_LANES(tile)(int n, const Product *p, int64_t i, int64_t at, int64_t tail) {
#define PLACE(v) ((v) < n - 1 ? at + (v) * LANES : tail)
  VALUE *z = p->Z + i * p->f;
  int64_t end = p->rowptr[i + 1], last = p->rowptr[p->rows] - 1;
  Sums s[MOST];
  UNROLLED for (int v = 0; v < n; v++) s[v] = p->add ? *(const Stored *)(z + PLACE(v)) : (Stored){0};
  for (int64_t e = p->rowptr[i]; e < end; e++) {
    if (p->ahead) {
      const char *ahead = (const char *)(p->H + p->col[e + p->ahead < last ? e + p->ahead : last] * p->f + at);
      UNROLLED for (int byte = 0; byte < n * LANES * (int)sizeof(VALUE); byte += LINE) __builtin_prefetch(ahead + byte);
      __builtin_prefetch(ahead + (tail - at + LANES) * (int64_t)sizeof(VALUE) - 1); /* rows may begin within a line */
    }
    const VALUE *h = p->H + p->col[e] * p->f;
    UNROLLED for (int v = 0; v < n; v++) s[v] += p->val[e] * *(const Stored *)(h + PLACE(v));
  }
  UNROLLED for (int v = 0; v < n; v++) *(Stored *)(z + PLACE(v)) = s[v];
}

/* Rows first .. last - 1, at least LANES wide. The compiler knows the n of each case. */
static void OF_LANES(rows)(const Product *p, int64_t first, int64_t last) {
  int64_t n = (p->f + LANES - 1) / LANES;
#define CASE(n) \
  case n: \
    for (int64_t i = first; i < last; i++) OF_LANES(tile)(n, p, i, 0, p->f - LANES); \
    return;
#define PART(n) \
  case n: \
    OF_LANES(tile)(n, p, i, at, part == tiles - 1 ? p->f - LANES : at + (n - 1) * LANES); \
    break;
  switch (n) {
    CASE(1) CASE(2)
#if LANES * 4 >= BYTES / 2
    CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#if MOST == 16
    CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(15) CASE(16)
#endif
  default:;
    int64_t tiles = (n + MOST - 1) / MOST;
    for (int64_t i = first; i < last; i++)
      for (int64_t part = 0; part < tiles; part++) {
        int64_t at = n * part / tiles * LANES;
        switch (n * (part + 1) / tiles - n * part / tiles) {
          PART(4) PART(5) PART(6) PART(7) PART(8)
#if MOST == 16
          PART(9) PART(10) PART(11) PART(12) PART(13) PART(14) PART(15) PART(16)
#endif
        }
      }
#endif
  }
}
#undef PLACE
#undef CASE
#undef PART
#undef LANES
#undef Sums
#undef Stored

#endif
