// System calls of this whole process, libibverbs and libmlx5 among it. Those that concern a
// UverbsDevice are answered by it, all others by the kernel.
#include <fcntl.h>
#include <linux/netlink.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

#include "tests/lib/nic/oracle/uverbs_device.h"

namespace baton::nic::oracle {
namespace {

int Describe(struct stat* about) {
  *about = {};
  about->st_mode = S_IFCHR | 0666;
  about->st_rdev = makedev(231, 192);
  return 0;
}

}  // namespace

// The names in quotes are what a caller is linked with. C++ has other ones, for the C library's
// headers declare the same functions with attributes that are not ours to repeat.
extern "C" {

int OpenCalled(const char* path, int flags, mode_t mode) __asm__("open");
int OpenCalled(const char* path, int flags, mode_t mode) {
  if (UverbsDevice::IsPath(path)) return UverbsDevice::Current()->OpenDescriptor();
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int Open64Called(const char* path, int flags, mode_t mode) __asm__("open64");
int Open64Called(const char* path, int flags, mode_t mode) { return OpenCalled(path, flags, mode); }

int StatCalled(const char* path, struct stat* about) __asm__("stat");
int StatCalled(const char* path, struct stat* about) {
  if (UverbsDevice::IsPath(path)) return Describe(about);
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, about, 0));
}
int Stat64Called(const char* path, struct stat* about) __asm__("stat64");
int Stat64Called(const char* path, struct stat* about) { return StatCalled(path, about); }

int FstatCalled(int fd, struct stat* about) __asm__("fstat");
int FstatCalled(int fd, struct stat* about) {
  if (UverbsDevice::OfDescriptor(fd) != nullptr) return Describe(about);
  return static_cast<int>(syscall(SYS_fstat, fd, about));
}
int Fstat64Called(int fd, struct stat* about) __asm__("fstat64");
int Fstat64Called(int fd, struct stat* about) { return FstatCalled(fd, about); }

int IoctlCalled(int fd, unsigned long request, void* argument) __asm__("ioctl");
int IoctlCalled(int fd, unsigned long request, void* argument) {
  UverbsDevice* const device = UverbsDevice::OfDescriptor(fd);
  if (device != nullptr) return device->Control(request, argument);
  return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
}

ssize_t ReadCalled(int fd, void* to, size_t size) __asm__("read");
ssize_t ReadCalled(int fd, void* to, size_t size) {
  UverbsDevice* const device = UverbsDevice::Current();
  if (device != nullptr && device->HasEvents(fd)) return device->ReadEvent(fd, to, size);
  return syscall(SYS_read, fd, to, size);
}

// Without RDMA's netlink libibverbs reads SYSFS_PATH.
int SocketCalled(int family, int type, int protocol) __asm__("socket");
int SocketCalled(int family, int type, int protocol) {
  if (family == AF_NETLINK && protocol == NETLINK_RDMA && UverbsDevice::Current() != nullptr) {
    errno = EPROTONOSUPPORT;
    return -1;
  }
  return static_cast<int>(syscall(SYS_socket, family, type, protocol));
}

}  // extern "C"

}  // namespace baton::nic::oracle
