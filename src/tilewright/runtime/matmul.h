/* A product that the vendor's library computes, as a step of a launch. Part of launcher.c, which
   includes it.

   The step's call is matmul_step() and its function a Matmul, which cublaslt.py fills in. Its
   parameters are the addresses of the first and the second matrix, of the result, of the workspace
   if there is one, and of the operand beside the matrices if there is one. Python takes no part. */

#include <sched.h>

#define LIBRARY_STATUS (1 << 20) /* added to the library's status, so that it is no driver's */

typedef struct {
  /* cublasLtMatmul and cublasLtMatmulDescSetAttribute */
  int (*matmul)(void *, void *, const float *, const void *, void *, const void *, void *,
                const float *, const void *, void *, void *, void *, const uint64_t *, void *,
                size_t, void *);
  int (*set)(void *, int, const void *, size_t);
  void *handle, *description, *first, *second, *result;
  uint64_t algorithm[8], workspace; /* workspace: in bytes */
  float one, zero;
  int attribute; /* of the description: the address beside the matrices; -1 for none */
  int busy;      /* the description is being changed, or used as it was changed */
} Matmul;

static int matmul_step(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
                       void **extra) {
  Matmul *m = function;
  void *address[5];
  int count = 3 + (m->workspace > 0) + (m->attribute >= 0), status = 0;
  for (int i = 0; i < count; i++) memcpy(address + i, parameters[i], sizeof(void *));
  if (m->attribute >= 0) {
    while (__atomic_exchange_n(&m->busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
    status = m->set(m->description, m->attribute, address + count - 1, sizeof(void *));
  }
  if (!status)
    status = m->matmul(m->handle, m->description, &m->one, address[0], m->first, address[1],
                       m->second, &m->zero, address[2], m->result, address[2], m->result,
                       m->algorithm, m->workspace ? address[3] : NULL, m->workspace, stream);
  if (m->attribute >= 0) __atomic_store_n(&m->busy, 0, __ATOMIC_RELEASE);
  return status ? LIBRARY_STATUS + status : 0;
}
