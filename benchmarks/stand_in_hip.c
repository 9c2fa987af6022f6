/* A libamdhip64 without a GPU, for benchmarks/miopen_emulated.py. It pretends to be one device of the
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


#include <stdio.h>
static int dumped;
static void dump(hipModule_t m, const char *image) {
  const char *folder = getenv("STAND_IN_LOADED");
  uint64_t size, n, at;
  if (!folder) return;
  if (!memcmp(image, "__CLANG_OFFLOAD_BUNDLE__", 24)) {
    const char *p = image + 32;
    memcpy(&n, image + 24, 8);
    for (uint64_t i = 0; i < n; i++) {
      uint64_t e[3];
      memcpy(e, p, 24), p += 24 + e[2];
      if (e[1]) at = e[0], size = e[1];
    }
    image += at;
  } else {
    uint64_t sh; uint16_t each, count;
    memcpy(&sh, image + 40, 8), memcpy(&each, image + 58, 2), memcpy(&count, image + 60, 2);
    size = sh + (uint64_t)each * count;
  }
  snprintf(m->file, NAME, "%s/%d.o", folder, dumped++);
  FILE *f = fopen(m->file, "wb");
  fwrite(image, 1, size, f), fclose(f);
}
hipError_t hipModuleLoadData(hipModule_t *made, const void *binary) {
  *made = calloc(1, sizeof(**made));
  return dump(*made, binary), hipSuccess;
}
hipError_t hipModuleLoad(hipModule_t *made, const char *file) {
  *made = calloc(1, sizeof(**made));
  FILE *f = fopen(file, "rb");
  if (!f) return hipErrorFileNotFound;
  char *all = malloc(1 << 26);
  fread(all, 1, 1 << 26, f), fclose(f);
  return dump(*made, all), free(all), hipSuccess;
}
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

hipError_t hipEventCreateWithFlags(hipEvent_t *e, unsigned f) { *e = (hipEvent_t)calloc(1, 8); return hipSuccess; }
hipError_t hipEventCreate(hipEvent_t *e) { return hipEventCreateWithFlags(e, 0); }
hipError_t hipEventDestroy(hipEvent_t e) { return hipSuccess; }
hipError_t hipEventSynchronize(hipEvent_t e) { return hipSuccess; }
hipError_t hipEventElapsedTime(float *t, hipEvent_t a, hipEvent_t b) { *t = 1; return hipSuccess; }
hipError_t hipStreamCreateWithFlags(hipStream_t *s, unsigned f) { *s = (hipStream_t)calloc(1, 8); return hipSuccess; }
hipError_t hipStreamDestroy(hipStream_t s) { return hipSuccess; }
uint32_t stand_in_waits;
hipError_t hipStreamSynchronize(hipStream_t s) { stand_in_waits++; return hipSuccess; }
hipError_t hipStreamWaitEvent(hipStream_t s, hipEvent_t e, unsigned f) { return hipSuccess; }
hipError_t hipDeviceTotalMem(size_t *b, hipDevice_t d) { *b = (size_t)64 << 30; return hipSuccess; }
hipError_t hipMemGetInfo(size_t *f, size_t *t) { *f = *t = (size_t)64 << 30; return hipSuccess; }
hipError_t hipMemPtrGetInfo(void *p, size_t *b) { *b = 0; return hipErrorInvalidValue; }
hipError_t hipMemsetAsync(void *d, int v, size_t b, hipStream_t s) { return hipMemset(d, v, b); }
hipError_t hipMemcpyWithStream(void *d, const void *s, size_t b, hipMemcpyKind k, hipStream_t q) { return hipMemcpy(d, s, b, k); }
hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, hipStream_t s, void **p) { return hipErrorNotSupported; }
