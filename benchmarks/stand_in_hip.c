/* A libamdhip64 without a GPU, for benchmarks/hipblaslt_offers.py. It pretends to be one device of the
   architecture in STAND_IN_ARCH with STAND_IN_UNITS compute units, keeps memory on the host, and
   writes launches down in place of running them. */

#include <hip/hip_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCHES = 16, NAME = 2048, ARGUMENTS = 4096 };

typedef struct {
  char file[NAME], name[NAME];
  uint32_t threads[3], block[3], shared, bytes;
  uint8_t arguments[ARGUMENTS];
} Launch; /* threads: of the whole grid. */

/* What the command reads. `stand_in_allocations` counts requests for memory. */
Launch stand_in_launch[LAUNCHES];
uint32_t stand_in_launches, stand_in_allocations;

struct ihipModule_t {
  char file[NAME];
};
struct ihipModuleSymbol_t {
  char file[NAME], name[NAME];
};

static const char *said(const char *name, const char *otherwise) {
  const char *found = getenv(name);
  return found ? found : otherwise;
}

hipError_t hipInit(unsigned flags) { return hipSuccess; }
hipError_t hipGetDeviceCount(int *count) { return *count = 1, hipSuccess; }
hipError_t hipGetDevice(int *device) { return *device = 0, hipSuccess; }
hipError_t hipSetDevice(int device) { return device ? hipErrorInvalidDevice : hipSuccess; }
hipError_t hipRuntimeGetVersion(int *version) { return *version = HIP_VERSION, hipSuccess; }
hipError_t hipGetLastError(void) { return hipSuccess; }
const char *hipGetErrorName(hipError_t error) { return error ? "hipError" : "hipSuccess"; }
const char *hipGetErrorString(hipError_t error) { return hipGetErrorName(error); }
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode) { return hipSuccess; }

hipError_t hipGetDeviceProperties(hipDeviceProp_t *p, int device) {
  int cdna = !strncmp(said("STAND_IN_ARCH", ""), "gfx9", 4);
  memset(p, 0, sizeof(*p));
  strcpy(p->name, "stand-in");
  strncpy(p->gcnArchName, said("STAND_IN_ARCH", ""), sizeof(p->gcnArchName) - 1);
  p->multiProcessorCount = atoi(said("STAND_IN_UNITS", "0"));
  p->warpSize = cdna ? 64 : 32;
  p->sharedMemPerBlock = p->maxSharedMemoryPerMultiProcessor = 65536;
  p->maxThreadsPerBlock = 1024;
  p->totalGlobalMem = (size_t)64 << 30;
  p->clockRate = 1700000;
  return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t which, int device) {
  hipDeviceProp_t p;
  hipGetDeviceProperties(&p, device);
  if (which == hipDeviceAttributeMultiprocessorCount) *value = p.multiProcessorCount;
  else if (which == hipDeviceAttributeWarpSize) *value = p.warpSize;
  else *value = 0;
  return hipSuccess;
}

hipError_t hipMalloc(void **at, size_t bytes) {
  stand_in_allocations++;
  return (*at = calloc(1, bytes ? bytes : 1)) ? hipSuccess : hipErrorOutOfMemory;
}
hipError_t hipHostMalloc(void **at, size_t bytes, unsigned flags) { return hipMalloc(at, bytes); }
hipError_t hipFree(void *at) { return free(at), hipSuccess; }
hipError_t hipMemset(void *at, int value, size_t bytes) { return memset(at, value, bytes), hipSuccess; }
hipError_t hipMemsetD8Async(hipDeviceptr_t at, unsigned char value, size_t count, hipStream_t stream) {
  return hipMemset(at, value, count);
}
hipError_t hipMemcpy(void *to, const void *from, size_t bytes, hipMemcpyKind kind) {
  return memcpy(to, from, bytes), hipSuccess;
}
hipError_t hipMemcpyAsync(void *to, const void *from, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
  return hipMemcpy(to, from, bytes, kind);
}
hipError_t hipDeviceSynchronize(void) { return hipSuccess; }
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) { return hipSuccess; }

hipError_t hipModuleLoad(hipModule_t *made, const char *file) {
  *made = calloc(1, sizeof(**made));
  const char *last = strrchr(file, '/');
  strncpy((*made)->file, last ? last + 1 : file, NAME - 1);
  return hipSuccess;
}
hipError_t hipModuleLoadData(hipModule_t *made, const void *binary) { return hipModuleLoad(made, ""); }
hipError_t hipModuleUnload(hipModule_t module) { return free(module), hipSuccess; }
hipError_t hipModuleGetFunction(hipFunction_t *made, hipModule_t module, const char *name) {
  *made = calloc(1, sizeof(**made));
  strcpy((*made)->file, module->file);
  strncpy((*made)->name, name, NAME - 1);
  return hipSuccess;
}

hipError_t hipExtModuleLaunchKernel(hipFunction_t function, uint32_t gx, uint32_t gy, uint32_t gz,
                                    uint32_t bx, uint32_t by, uint32_t bz, size_t shared,
                                    hipStream_t stream, void **parameters, void **extra,
                                    hipEvent_t start, hipEvent_t stop, uint32_t flags) {
  Launch *to = stand_in_launch + stand_in_launches++ % LAUNCHES;
  memset(to, 0, sizeof(*to));
  strcpy(to->file, function->file), strcpy(to->name, function->name);
  uint32_t threads[] = {gx, gy, gz}, block[] = {bx, by, bz};
  memcpy(to->threads, threads, sizeof(threads)), memcpy(to->block, block, sizeof(block));
  to->shared = shared;
  if (extra && extra[0] == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
    to->bytes = *(size_t *)extra[3];
    memcpy(to->arguments, extra[1], to->bytes < ARGUMENTS ? to->bytes : ARGUMENTS);
  }
  return hipSuccess;
}

/* The drivers of Tilewright name these; a library's product does not go through them. */
hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned shared, hipStream_t stream,
                                 void **parameters, void **extra) {
  return hipErrorNotSupported;
}
