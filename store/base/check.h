// CHECK for programmer errors after which going on could write a wrong byte. Never for bytes that
// come from disk or from the network: those get an Error.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CAIRN_CHECK(condition)                                                           \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#ifdef NDEBUG
#define CAIRN_DCHECK(condition) \
  do {                          \
  } while (false && (condition))
#else
#define CAIRN_DCHECK(condition) CAIRN_CHECK(condition)
#endif
