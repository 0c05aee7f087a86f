// SPDX-License-Identifier: MIT OR Apache-2.0
// The part of each instrumented program and library that connects it with the runtime.
//
// The wrapper links it once into everything that it links. It is compiled twice: for programs,
// which contain the runtime, and with OVERHEAR_RANGES_LIBRARY for shared libraries, which use the
// runtime of their program if there is one. crates/overhear-ranges/src/layout.rs mirrors the
// structs.
#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))

// The variables and functions of an object file, written by the pass.
struct object {
  uint64_t version;
  char *block;
  uint64_t block_bytes, functions, variables, segments;
  const char *text;
  uint64_t text_bytes;
};

// A program or library. The runtime keeps the pointer from `register` to `unregister`.
struct module {
  uint64_t version;
  char *image_start, *image_end;
  const struct object *objects_start, *objects_end;
  // Number that the runtime has given; negative if it does not know the module.
  int64_t slot;
};

#ifdef OVERHEAR_RANGES_LIBRARY
#define RUNTIME __attribute__((weak))
#else
#define RUNTIME
#endif
void overhear_ranges_register(struct module *module) RUNTIME;
void overhear_ranges_unregister(struct module *module) RUNTIME;
int overhear_ranges_pass(const struct module *module, ptrdiff_t *delta, const struct object *object,
                         uint32_t function) RUNTIME;

extern HIDDEN char image_start[] __asm__("__start_overhear_ranges_block") __attribute__((weak));
extern HIDDEN char image_end[] __asm__("__stop_overhear_ranges_block") __attribute__((weak));
extern HIDDEN const struct object objects_start[] __asm__("__start_overhear_ranges_object")
    __attribute__((weak));
extern HIDDEN const struct object objects_end[] __asm__("__stop_overhear_ranges_object")
    __attribute__((weak));

// Distance from the image to the memory of this thread.
HIDDEN _Thread_local ptrdiff_t __overhear_ranges_delta
    __attribute__((tls_model("initial-exec"))) = 0;

static struct module this_module = {.version = 1, .slot = -1};

// The distance of the words of a function that the runtime also knows.
enum { CREDIT = 0, CREDIT_LIMIT = 1, WORDS = 8 };

static int pass(const struct object *object, uint32_t function) {
#ifdef OVERHEAR_RANGES_LIBRARY
  if (!overhear_ranges_pass) {
    // A program without the runtime: plain code for as long as it lives.
    volatile int64_t *words = (int64_t *)object->block + (size_t)function * WORDS;
    words[CREDIT_LIMIT] = -1;
    words[CREDIT] = INT64_MAX;
    return 0;
  }
#endif
  return overhear_ranges_pass(&this_module, &__overhear_ranges_delta, object, function);
}

// Called by instrumented code when a function's credit is used up. The convention keeps the
// registers of the caller, so that the call costs the code around it nothing.
HIDDEN __attribute__((preserve_most, cold)) int
__overhear_ranges_pass(const struct object *object, uint32_t function) {
  return pass(object, function);
}

// Before the constructors of the program, which may be instrumented.
__attribute__((constructor(101))) static void start(void) {
  this_module.image_start = image_start;
  this_module.image_end = image_end;
  this_module.objects_start = objects_start;
  this_module.objects_end = objects_end;
#ifdef OVERHEAR_RANGES_LIBRARY
  if (!overhear_ranges_register)
    return;
#endif
  overhear_ranges_register(&this_module);
}

#ifdef OVERHEAR_RANGES_LIBRARY
// Programs are not unloaded: at their exit, handlers that run later may still be instrumented.
__attribute__((destructor(101))) static void end(void) {
  if (overhear_ranges_unregister)
    overhear_ranges_unregister(&this_module);
}
#endif
