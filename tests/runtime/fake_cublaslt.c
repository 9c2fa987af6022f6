/* A library with cuBLASLt's functions, for tests without a GPU. It keeps what it is told, writes
   down its calls, and computes products of fp32 matrices in memory of the host. */

#include <stdint.h>
#include <stddef.h>

typedef struct {
  int32_t number;
  uint32_t tile;
  int32_t parts;
  uint32_t meeting, swizzle, custom, stages;
  uint16_t inner, cluster;
  uint32_t types[6];
  uint32_t padding[2];
} Algorithm; /* 64 bytes */

#define F(name) cublasLt##name
enum { INVALID = 7, UNSUPPORTED = 15 };
enum { COMPUTE = 0, SUMS = 1, TRANSPOSE_FIRST = 3, TRANSPOSE_SECOND = 4, CHAIN = 7, BIAS = 8 };
enum { TYPE = 0, ROWS = 2, COLUMNS = 3, LD = 4, BATCH_COUNT = 5, BATCH_STRIDE = 6, TRANSPOSED = 1 };

#include "fake_blaslt.h"

typedef struct {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} Result;

int fake_version = 130001;

size_t cublasLtGetVersion(void) { return (size_t)fake_version; }
const char *cublasLtGetStatusName(int status) { return status == UNSUPPORTED ? "NOT_SUPPORTED" : "ERROR"; }
int cublasLtCreate(void **handle) { return *handle = &fake_version, fake_creating; }

static void *field(Algorithm *a, int at, size_t *size) {
  void *of[] = {&a->number, &a->tile,   &a->parts, &a->meeting, &a->swizzle,
                &a->custom, &a->stages, &a->inner, &a->cluster};
  *size = at < 7 ? 4 : 2;
  return at >= 0 && at < 9 ? of[at] : NULL;
}

int cublasLtMatmulAlgoConfigSetAttribute(Algorithm *a, int at, const void *from, size_t size) {
  size_t wanted;
  void *to = field(a, at, &wanted);
  if (!to || at == 0 || size != wanted) return INVALID;
  memcpy(to, from, size);
  return OK;
}
int cublasLtMatmulAlgoConfigGetAttribute(Algorithm *a, int at, void *to, size_t size, size_t *written) {
  size_t wanted;
  void *from = field(a, at, &wanted);
  if (!from || size != wanted) return INVALID;
  memcpy(to, from, size);
  return *written = size, OK;
}
int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int number,
                           Algorithm *made) {
  if (handle != &fake_version) return NOT_INITIALISED;
  if (number == 404) return UNSUPPORTED;
  int types[] = {compute, scale, a, b, c, d};
  memset(made, 0, sizeof(*made));
  memcpy(made->types, types, sizeof(types));
  made->number = number;
  return OK;
}
int cublasLtMatmulAlgoCheck(void *handle, Object *desc, Object *a, Object *b, Object *c, Object *d,
                            Algorithm *algorithm, Result *result) {
  if (desc->kind != 1 || a->kind != 2 || b->kind != 2 || c != d) return INVALID;
  if (algorithm->tile == 404) return UNSUPPORTED;
  return result->workspace = fake_need, OK;
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, Object *desc, Object *a, Object *b, Object *c, Object *d,
                                   Object *preference, int count, Result *results, int *found) {
  fake_preference = *preference, fake_question = *desc, fake_asked = count;
  if (!fake_offers) return UNSUPPORTED;
  for (*found = 0; *found < count && *found < fake_offers; ++*found) {
    memset(results + *found, 0, sizeof(Result));
    results[*found].algorithm = fake_offer[*found];
    results[*found].workspace = fake_offer_workspace[*found];
    results[*found].state = fake_offer[*found].tile == 404 ? UNSUPPORTED : OK;
  }
  return OK;
}
int cublasLtMatmul(void *handle, Object *desc, const float *alpha, const void *a, Object *al, const void *b,
                   Object *bl, const float *beta, const void *c, Object *cl, void *d, Object *dl,
                   const Algorithm *algorithm, void *workspace, size_t bytes, void *stream) {
  if (handle != &fake_version) return NOT_INITIALISED;
  return called(handle, desc, alpha, a, al, b, bl, beta, c, cl, d, dl, algorithm, workspace, bytes, stream);
}
