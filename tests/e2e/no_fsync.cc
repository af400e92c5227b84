// Loaded into cairnd with LD_PRELOAD by the crash test that must fail: every call that makes data
// durable says it did, and does nothing.
#include <sys/types.h>

extern "C" {
int fsync(int) { return 0; }
int fdatasync(int) { return 0; }
int syncfs(int) { return 0; }
void sync(void) {}
int sync_file_range(int, off64_t, off64_t, unsigned) { return 0; }
int msync(void*, size_t, int) { return 0; }
}
