/* What the stand-ins for cuBLASLt and hipBLASLt share: descriptions that keep what they are told, and
   products of fp32 matrices in memory of the host. The including file defines F(name), a function
   with the library's prefix, and the numbers of attributes and values that are used here. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ATTRIBUTES = 40, OK = 0, NOT_INITIALISED = 1 };

typedef struct {
  int kind; /* 1: a description, 2: a layout, 3: a preference */
  uint64_t value[ATTRIBUTES], size[ATTRIBUTES];
} Object;

typedef struct {
  Object desc, a, b, c, d;
  Algorithm algorithm;
  uint64_t first, second, result, out, workspace, bytes, stream, handle;
  float alpha, beta;
} Call;

/* What a test sets and reads. */
int fake_status, fake_creating, fake_living, fake_calls, fake_offers, fake_asked;
size_t fake_need; /* of workspace, what a check says */
Algorithm fake_offer[16];
size_t fake_offer_workspace[16];
Call fake_call;
Object fake_preference, fake_question;

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

int F(MatmulDescCreate)(void **made, int compute, int scale) {
  make(made, 1);
  set(*made, COMPUTE, &compute, 4), set(*made, SUMS, &scale, 4);
  return OK;
}
int F(MatrixLayoutCreate)(void **made, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  make(made, 2);
  set(*made, TYPE, &type, 4), set(*made, ROWS, &rows, 8), set(*made, COLUMNS, &columns, 8);
  return set(*made, LD, &ld, 8);
}
int F(MatmulPreferenceCreate)(void **made) { return make(made, 3); }
int F(MatmulDescDestroy)(void *o) { return destroy(o); }
int F(MatrixLayoutDestroy)(void *o) { return destroy(o); }
int F(MatmulPreferenceDestroy)(void *o) { return destroy(o); }
int F(MatmulDescSetAttribute)(void *o, int at, const void *v, size_t n) {
  int status = set(o, at, v, n);
  if (at == BIAS) usleep(20); /* so that another thread comes between, if it may */
  return status;
}
int F(MatrixLayoutSetAttribute)(void *o, int at, const void *v, size_t n) { return set(o, at, v, n); }
int F(MatmulPreferenceSetAttribute)(void *o, int at, const void *v, size_t n) { return set(o, at, v, n); }

static void compute(Call *call) {
  int turned_a = call->desc.value[TRANSPOSE_FIRST] == TRANSPOSED;
  int turned_b = call->desc.value[TRANSPOSE_SECOND] == TRANSPOSED;
  uint64_t chain = call->desc.value[CHAIN], rows = call->d.value[ROWS], columns = call->d.value[COLUMNS];
  uint64_t inner = call->a.value[turned_a ? ROWS : COLUMNS];
  uint64_t count = call->d.value[BATCH_COUNT] ? call->d.value[BATCH_COUNT] : 1;
  const float *bias = (const float *)call->desc.value[BIAS];
  for (uint64_t n = 0; n < count; n++) {
    const float *a = (const float *)call->first + n * call->a.value[BATCH_STRIDE];
    const float *b = (const float *)call->second + n * call->b.value[BATCH_STRIDE];
    float *d = (float *)call->out + n * call->d.value[BATCH_STRIDE];
    uint64_t lda = call->a.value[LD], ldb = call->b.value[LD];
    for (uint64_t j = 0; j < columns; j++)
      for (uint64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (uint64_t k = 0; k < inner; k++)
          sum += (double)a[turned_a ? k + i * lda : i + k * lda] * b[turned_b ? j + k * ldb : k + j * ldb];
        if (chain & 4) sum += bias[i];
        if (chain & 32) sum *= 0.5 * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        d[i + j * call->d.value[LD]] = call->alpha * (float)sum;
      }
  }
}

static int called(void *handle, Object *desc, const float *alpha, const void *a, Object *al, const void *b,
                  Object *bl, const float *beta, const void *c, Object *cl, void *d, Object *dl,
                  const Algorithm *algorithm, void *workspace, size_t bytes, void *stream) {
  fake_call = (Call){*desc,       *al,         *bl,         *cl,         *dl,         *algorithm,
                     (uint64_t)a, (uint64_t)b, (uint64_t)c, (uint64_t)d, (uint64_t)workspace,
                     bytes,       (uint64_t)stream, (uint64_t)handle, *alpha, *beta};
  fake_calls++;
  if (fake_status) return fake_status;
  if (al->value[TYPE] == 0 && bl->value[TYPE] == 0) compute(&fake_call);
  return OK;
}
