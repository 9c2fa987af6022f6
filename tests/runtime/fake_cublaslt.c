/* A library with cuBLASLt's functions, for tests without a GPU. It keeps what it is told, writes
   down its calls, and computes products of fp32 matrices in memory of the host. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ATTRIBUTES = 40, OK = 0, NOT_INITIALISED = 1, INVALID = 7, UNSUPPORTED = 15 };

typedef struct {
  int kind; /* 1: a description, 2: a layout, 3: a preference */
  uint64_t value[ATTRIBUTES], size[ATTRIBUTES];
} Object;

typedef struct {
  int32_t number;
  uint32_t tile;
  int32_t parts;
  uint32_t meeting, swizzle, custom, stages;
  uint16_t inner, cluster;
  uint32_t types[6];
  uint32_t padding[2];
} Algorithm; /* 64 bytes */

typedef struct {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} Result;

typedef struct {
  Object desc, a, b, c, d;
  Algorithm algorithm;
  uint64_t first, second, result, out, workspace, bytes, stream;
  float alpha, beta;
} Call;

/* What a test sets and reads. */
int fake_version = 130001, fake_status, fake_creating, fake_living, fake_calls, fake_offers, fake_asked;
size_t fake_need; /* of workspace, what AlgoCheck says */
Algorithm fake_offer[16];
size_t fake_offer_workspace[16];
Call fake_call;
Object fake_preference, fake_question;

size_t cublasLtGetVersion(void) { return (size_t)fake_version; }
const char *cublasLtGetStatusName(int status) { return status == UNSUPPORTED ? "NOT_SUPPORTED" : "ERROR"; }
int cublasLtCreate(void **handle) { return *handle = &fake_version, fake_creating; }

static int make(void **made, int kind) {
  Object *o = calloc(1, sizeof(Object));
  o->kind = kind, *made = o, fake_living++;
  return OK;
}

static int destroy(Object *o) { return free(o), fake_living--, OK; }

static int set(Object *o, int at, const void *from, size_t size) {
  if (at < 0 || at >= ATTRIBUTES || size > 8) return INVALID;
  o->value[at] = 0, o->size[at] = size;
  memcpy(o->value + at, from, size);
  return OK;
}

int cublasLtMatmulDescCreate(void **made, int compute, int scale) {
  make(made, 1);
  set(*made, 0, &compute, 4), set(*made, 1, &scale, 4);
  return OK;
}
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  make(made, 2);
  set(*made, 0, &type, 4), set(*made, 2, &rows, 8), set(*made, 3, &columns, 8), set(*made, 4, &ld, 8);
  return OK;
}
int cublasLtMatmulPreferenceCreate(void **made) { return make(made, 3); }
int cublasLtMatmulDescDestroy(void *o) { return destroy(o); }
int cublasLtMatrixLayoutDestroy(void *o) { return destroy(o); }
int cublasLtMatmulPreferenceDestroy(void *o) { return destroy(o); }
int cublasLtMatmulDescSetAttribute(void *o, int at, const void *v, size_t n) {
  int status = set(o, at, v, n);
  if (at == 8) usleep(20); /* so that another thread comes between, if it may */
  return status;
}
int cublasLtMatrixLayoutSetAttribute(void *o, int at, const void *v, size_t n) { return set(o, at, v, n); }
int cublasLtMatmulPreferenceSetAttribute(void *o, int at, const void *v, size_t n) { return set(o, at, v, n); }

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

static void compute(Call *call) {
  int turned_a = (int)call->desc.value[3], turned_b = (int)call->desc.value[4];
  uint64_t chain = call->desc.value[7], rows = call->d.value[2], columns = call->d.value[3];
  uint64_t inner = call->a.value[turned_a ? 2 : 3];
  uint64_t count = call->d.value[5] ? call->d.value[5] : 1;
  const float *bias = (const float *)call->desc.value[8];
  for (uint64_t n = 0; n < count; n++) {
    const float *a = (const float *)call->first + n * call->a.value[6];
    const float *b = (const float *)call->second + n * call->b.value[6];
    float *d = (float *)call->out + n * call->d.value[6];
    for (uint64_t j = 0; j < columns; j++)
      for (uint64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (uint64_t k = 0; k < inner; k++)
          sum += (double)a[turned_a ? k + i * call->a.value[4] : i + k * call->a.value[4]] *
                 b[turned_b ? j + k * call->b.value[4] : k + j * call->b.value[4]];
        if (chain & 4) sum += bias[i];
        if (chain & 32) sum *= 0.5 * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        d[i + j * call->d.value[4]] = call->alpha * (float)sum;
      }
  }
}

int cublasLtMatmul(void *handle, Object *desc, const float *alpha, const void *a, Object *al, const void *b,
                   Object *bl, const float *beta, const void *c, Object *cl, void *d, Object *dl,
                   const Algorithm *algorithm, void *workspace, size_t bytes, void *stream) {
  if (handle != &fake_version) return NOT_INITIALISED;
  fake_call = (Call){*desc, *al, *bl, *cl, *dl, *algorithm, (uint64_t)a, (uint64_t)b, (uint64_t)c,
                     (uint64_t)d, (uint64_t)workspace, bytes, (uint64_t)stream, *alpha, *beta};
  fake_calls++;
  if (fake_status) return fake_status;
  if (al->value[0] == 0 && bl->value[0] == 0) compute(&fake_call);
  return OK;
}
