#include "supervisor/driver/keeper/keeper_image.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"

namespace baton::driver_process {

absl::StatusOr<KeeperImage> KeeperImage::Open(const std::string& path) {
  KeeperImage image;
  image.file_ = std::make_shared<FileDescriptor>(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat file = {};
  if (!*image.file_ || fstat(image.file_->get(), &file) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot open the keeper's program ", path));
  }
  image.device_ = file.st_dev;
  image.inode_ = file.st_ino;
  image.changed_ns_ = int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
  return image;
}

// Not by /proc/self: a child closes the descriptor before it enters the program.
std::string KeeperImage::Path() const {
  return absl::StrCat("/proc/", getpid(), "/fd/", file_->get());
}

}  // namespace baton::driver_process
