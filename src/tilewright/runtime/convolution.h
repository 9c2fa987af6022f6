/* A convolution that cuDNN computes, as a step of a launch. Part of launcher.c, which includes it.

   The step's call is convolution_step() and its function a Convolution, which cudnn.py fills in. Its
   parameters are the addresses of x, w and y, and of the workspace if there is one. The library
   takes addresses in a descriptor that is finished before it is used, so each call makes one.
   Python takes no part. */

typedef struct {
  void *handle;
  int busy; /* the handle has the stream of a call that is being made */
} Shared;

typedef struct {
  int (*set_stream)(void *, void *);
  int (*create)(int, void **);
  int (*set)(void *, int, int, int64_t, const void *);
  int (*finalize)(void *);
  int (*execute)(void *, void *, void *);
  int (*destroy)(void *);
  Shared *shared;
  void *plan;
  int64_t uids[3];
  uint64_t workspace; /* in bytes */
} Convolution;

enum { PACK = 16, INT64 = 3, POINTERS = 6 }; /* cudnnBackendDescriptorType_t, …AttributeType_t */

static int convolution_step(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, void *stream,
                            void **parameters, void **extra) {
  Convolution *c = function;
  void *address[4] = {NULL}, *pack = NULL;
  for (int i = 0; i < 3 + (c->workspace > 0); i++)
    memcpy(address + i, parameters[i], sizeof(void *));
  int status = c->create(PACK, &pack);
  if (!status) status = c->set(pack, 1000, INT64, 3, c->uids);
  if (!status) status = c->set(pack, 1001, POINTERS, 3, address);
  if (!status) status = c->set(pack, 1003, POINTERS, 1, address + 3);
  if (!status) status = c->finalize(pack);
  if (!status) {
    while (__atomic_exchange_n(&c->shared->busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
    status = c->set_stream(c->shared->handle, stream);
    if (!status) status = c->execute(c->shared->handle, c->plan, pack);
    __atomic_store_n(&c->shared->busy, 0, __ATOMIC_RELEASE);
  }
  if (pack) c->destroy(pack);
  return status ? LIBRARY_STATUS + status : 0;
}
