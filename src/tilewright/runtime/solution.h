/* What MIOpen computes, as a step of a launch: a convolution or one of its gradients. Part of
   launcher.c, which includes it.

   The step's call is solution_step() and its function a Solution, which miopen.py fills in. Its
   parameters are the addresses of the tensors, in the order of the library's function, and that of
   the workspace if there is one. Python takes no part. */

#include <pthread.h>

typedef struct {
  const Handles *handles; /* those that the solution is compiled for */
  /* miopenConvolutionForwardImmediate, …BackwardDataImmediate or …BackwardWeightsImmediate: they
     take the same */
  int (*compute)(void *, void *, const void *, void *, const void *, void *, void *, void *, void *,
                 size_t, uint64_t);
  pthread_mutex_t *used; /* held while a handle is used: it is for one thread at a time */
  void *first, *second, *convolution, *made;
  uint64_t number, workspace; /* workspace: in bytes */
} Solution;

static int solution_step(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                         unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
                         void **extra) {
  Solution *s = function;
  void *address[4] = {NULL};
  for (int i = 0; i < 3 + (s->workspace > 0); i++)
    memcpy(address + i, parameters[i], sizeof(void *));
  pthread_mutex_lock(s->used);
  int status = s->compute(handle_on(s->handles, stream), s->first, address[0], s->second, address[1],
                          s->convolution, s->made, address[2], address[3], s->workspace, s->number);
  pthread_mutex_unlock(s->used);
  return status ? LIBRARY_STATUS + status : 0;
}
