/* A product that the vendor's library computes, as a step of a launch. Part of launcher.c, which
   includes it.

   The step's call is matmul_step() and its function a Matmul, which blaslt.py fills in. Its
   parameters are the addresses of the first and the second matrix, of the result, of the workspace
   if there is one, and of up to two operands beside the matrices. Python takes no part. */

#include <sched.h>

#define LIBRARY_STATUS (1 << 20) /* added to a library's status, so that it is no driver's */
#define STREAMS 64

/* A device's handles, as found by their streams if each stream has its own. Entries are only added,
   and counted last. */
typedef struct {
  void *stream[STREAMS], *handle[STREAMS];
  int count, each;
} Handles;

typedef struct {
  /* cublasLtMatmul and cublasLtMatmulDescSetAttribute, or hipBLASLt's: they take the same */
  int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *,
                const void *, const void *, void *, void *, void *, const uint64_t *, void *,
                size_t, void *);
  int (*set)(void *, int, const void *, size_t);
  const Handles *handles;
  void *description, *first, *second, *result;
  uint64_t algorithm[8], workspace; /* workspace: in bytes */
  uint32_t one, zero; /* as the sums' dtype has them */
  int attributes[2]; /* of the description: addresses beside the matrices; -1 for none */
  int busy;          /* the description is being changed, or used as it was changed */
} Matmul;

/* NULL for a stream that has none yet. */
static void *handle_on(const Handles *h, void *stream) {
  if (!h->each) return h->handle[0];
  int count = __atomic_load_n(&h->count, __ATOMIC_ACQUIRE);
  for (int i = 0; i < count; i++)
    if (h->stream[i] == stream) return h->handle[i];
  return NULL;
}

static int matmul_step(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
                       void **extra) {
  Matmul *m = function;
  void *address[6];
  int beside = (m->attributes[0] >= 0) + (m->attributes[1] >= 0), status = 0;
  int first = 3 + (m->workspace > 0); /* of those beside the matrices */
  for (int i = 0; i < first + beside; i++) memcpy(address + i, parameters[i], sizeof(void *));
  if (beside)
    while (__atomic_exchange_n(&m->busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
  for (int i = 0; i < beside && !status; i++)
    status = m->set(m->description, m->attributes[i], address + first + i, sizeof(void *));
  if (!status)
    status = m->matmul(handle_on(m->handles, stream), m->description, &m->one, address[0], m->first,
                       address[1], m->second, &m->zero, address[2], m->result, address[2],
                       m->result, m->algorithm, m->workspace ? address[3] : NULL, m->workspace,
                       stream);
  if (beside) __atomic_store_n(&m->busy, 0, __ATOMIC_RELEASE);
  return status ? LIBRARY_STATUS + status : 0;
}
