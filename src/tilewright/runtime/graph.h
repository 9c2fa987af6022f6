/* What cuDNN computes, as a step of a launch: a graph of operations. Part of launcher.c, which
   includes it.

   The step's call is graph_step() and its function a Graph, which cudnn.py fills in. Its parameters
   are what the graph is given, in the order of its numbers: addresses, and numbers, which the library
   reads where they lie; and the address of the workspace if there is one. The library takes them in a
   descriptor that is finished before it is used, so each call makes one. Python takes no part. */

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
  uint64_t workspace; /* in bytes */
  /* values: which of those given are numbers, a bit for each; positive: which of these are fp32 and
     above 0 */
  int given, values, positive;
} Graph;

enum { PACK = 16, INT64 = 3, POINTERS = 6 }; /* cudnnBackendDescriptorType_t, …AttributeType_t */
enum { MOST_GIVEN = 20 };                    /* as in cudnn_graphs.py */
#define NOT_POSITIVE (1 << 16)               /* a status of ours, as in prepared.py */

static int graph_step(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
                      void **extra) {
  Graph *g = function;
  int64_t uid[MOST_GIVEN];
  void *address[MOST_GIVEN], *workspace = NULL, *pack = NULL;
  for (int i = 0; i < g->given; i++) {
    uid[i] = i + 1;
    if (g->positive >> i & 1 && !(*(float *)parameters[i] > 0))
      return LIBRARY_STATUS + NOT_POSITIVE;
    if (g->values >> i & 1)
      address[i] = parameters[i];
    else
      memcpy(address + i, parameters[i], sizeof(void *));
  }
  if (g->workspace) memcpy(&workspace, parameters[g->given], sizeof(void *));
  int status = g->create(PACK, &pack);
  if (!status) status = g->set(pack, 1000, INT64, g->given, uid);
  if (!status) status = g->set(pack, 1001, POINTERS, g->given, address);
  if (!status) status = g->set(pack, 1003, POINTERS, 1, &workspace);
  if (!status) status = g->finalize(pack);
  if (!status) {
    while (__atomic_exchange_n(&g->shared->busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
    status = g->set_stream(g->shared->handle, stream);
    if (!status) status = g->execute(g->shared->handle, g->plan, pack);
    __atomic_store_n(&g->shared->busy, 0, __ATOMIC_RELEASE);
  }
  if (pack) g->destroy(pack);
  return status ? LIBRARY_STATUS + status : 0;
}
