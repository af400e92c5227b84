// power_cut MOUNTPOINT: cuts the power of an ext4 or xfs file system: nothing that was not yet on
// its device will get there, and every later call fails. What remains after the next mount is what
// an unplugged machine would find. The ioctl is FS_IOC_SHUTDOWN ('X', 125) with flag 2 (no log
// flush): linux/fs/ext4/ext4.h, EXT4_GOING_FLAGS_NOLOGFLUSH; XFS_FSOP_GOING_FLAGS_NOLOGFLUSH.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: power_cut MOUNTPOINT\n");
    return 2;
  }
  const int fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    std::perror(argv[1]);
    return 1;
  }
  uint32_t flags = 2;
  if (ioctl(fd, _IOR('X', 125, uint32_t), &flags) != 0) {
    std::perror("power_cut");
    return 1;
  }
  close(fd);
  return 0;
}
