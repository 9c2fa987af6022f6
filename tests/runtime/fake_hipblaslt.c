/* A library with hipBLASLt's functions, those of C and the three of C++ that the binding calls, for
   tests without a GPU. It keeps what it is told, writes down its calls, and computes products of fp32
   matrices in memory of the host. */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
  int32_t index;
  uint8_t rest[12];
  size_t most_workspace;
} Algorithm; /* 24 bytes */

#define F(name) hipblasLt##name
enum { INVALID = 3, UNSUPPORTED = 7 };
enum { COMPUTE = 38, SUMS = 39, TRANSPOSE_FIRST = 0, TRANSPOSE_SECOND = 1, CHAIN = 2, BIAS = 3 };
enum { TYPE = 2, ROWS = 4, COLUMNS = 5, LD = 6, BATCH_COUNT = 0, BATCH_STRIDE = 1, TRANSPOSED = 112 };

#include "fake_blaslt.h"

typedef struct {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} Result;

typedef struct {
  void *begin, *end, *room;
} Vector;

typedef struct {
  char *begin;
  size_t length;
  char inside[16];
} String;

enum { HANDLES = 100 };
int fake_version = 100100, fake_handles, fake_build, fake_result_bytes = sizeof(Result);
static int handle_of[HANDLES];

static int is_handle(void *handle) { return (int *)handle >= handle_of && (int *)handle < handle_of + fake_handles; }

int hipblasLtCreate(void **handle) { return *handle = handle_of + fake_handles++, fake_creating; }
int hipblasLtGetVersion(void *handle, int *version) {
  return is_handle(handle) ? *version = fake_version, OK : NOT_INITIALISED;
}

int hipblasLtMatmulAlgoGetHeuristic(void *handle, Object *desc, Object *a, Object *b, Object *c, Object *d,
                                    Object *preference, int count, Result *results, int *found) {
  if (!is_handle(handle)) return NOT_INITIALISED;
  fake_preference = *preference, fake_question = *desc, fake_asked = count;
  for (*found = 0; *found < count && *found < fake_offers; ++*found) {
    memset(results + *found, 0, sizeof(Result));
    results[*found].algorithm = fake_offer[*found];
    results[*found].algorithm.most_workspace = preference->value[1];
    results[*found].workspace = fake_offer_workspace[*found];
    results[*found].state = fake_offer[*found].index == 404 ? UNSUPPORTED : OK;
  }
  return OK;
}

/* getAlgosFromIndex */
int _ZN13hipblaslt_ext17getAlgosFromIndexEPvRSt6vectorIiSaIiEERS1_I33_hipblasLtMatmulHeuristicResult_tSaIS5_EE(
    void *handle, Vector *wanted, Vector *made) {
  if (!is_handle(handle) || (char *)wanted->end - (char *)wanted->begin != 4) return INVALID;
  int32_t index = *(int32_t *)wanted->begin;
  if (index == 404) return INVALID;
  Result *one = calloc(2, sizeof(Result));
  one->algorithm.index = index, one->algorithm.most_workspace = (size_t)-1;
  *made = (Vector){one, (char *)one + fake_result_bytes, one + 2};
  return OK;
}

/* matmulIsAlgoSupported */
int _ZN13hipblaslt_ext21matmulIsAlgoSupportedEPvP27hipblasLtMatmulDescOpaque_tPKvP29hipblasLtMatrixLayoutOpaque_tS6_S4_S6_S6_R22_hipblasLtMatmulAlgo_tRm(
    void *handle, Object *desc, const float *alpha, Object *a, Object *b, const float *beta, Object *c,
    Object *d, Algorithm *algorithm, size_t *need) {
  if (!is_handle(handle) || desc->kind != 1 || a->kind != 2 || b->kind != 2 || c != d) return INVALID;
  if (*alpha != 1 || *beta != 0 || algorithm->index == 405) return UNSUPPORTED;
  return *need = fake_need, OK;
}

/* getSolutionNameFromAlgo. A short name lies in the string itself. */
void _ZN13hipblaslt_ext23getSolutionNameFromAlgoB5cxx11EPvR22_hipblasLtMatmulAlgo_t(String *made, void *handle,
                                                                                      Algorithm *algorithm) {
  char *to = made->begin = algorithm->index < 10 ? made->inside : malloc(100);
  sprintf(to, algorithm->index < 10 ? "s%d" : "solution %d of build %d", algorithm->index, fake_build);
  made->length = strlen(to);
}

int hipblasLtMatmul(void *handle, Object *desc, const float *alpha, const void *a, Object *al, const void *b,
                    Object *bl, const float *beta, const void *c, Object *cl, void *d, Object *dl,
                    const Algorithm *algorithm, void *workspace, size_t bytes, void *stream) {
  if (!is_handle(handle)) return NOT_INITIALISED;
  return called(handle, desc, alpha, a, al, b, bl, beta, c, cl, d, dl, algorithm, workspace, bytes, stream);
}
