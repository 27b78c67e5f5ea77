#include "lib/base/holdable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton {
namespace {

constexpr size_t kMostMountinfoBytes = 1 << 20;
// They are on a disk, or in this machine's memory.
constexpr std::array<std::string_view, 12> kLocalTypes = {
    "bcachefs", "btrfs",     "erofs", "ext2",     "ext3",  "ext4",
    "f2fs",     "hugetlbfs", "ramfs", "squashfs", "tmpfs", "xfs"};
// Is made of other file systems, and so is only as good as who mounted it.
constexpr std::string_view kOverlay = "overlay";

bool IsLocal(std::string_view type) {
  return std::find(kLocalTypes.begin(), kLocalTypes.end(), type) != kLocalTypes.end();
}

absl::Status Refuse(std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("descriptor: ", View(why),
                   ": only memfds and regular files on a local file system can be held"));
}

// Returns true if the kernel names the file by a path, and not as "socket:[5]" or
// "anon_inode:[eventpoll]". It asks nobody for the path.
bool HasPath(int descriptor) {
  char first = 0;
  const std::string link = absl::StrCat("/proc/self/fd/", descriptor);
  return readlink(link.c_str(), &first, 1) == 1 && first == '/';
}

// Returns the number of the mount that the file is in; -1: unknown.
// REQUIRES: HasPath(). The kernel takes an epoll set's lock to say what is in it, and a process
// keeps that lock as long as a fault in its epoll_wait(2) lasts.
int MountOf(int descriptor) {
  std::ifstream file(absl::StrCat("/proc/self/fdinfo/", descriptor));
  for (std::string word; file >> word;) {
    int mount = -1;
    if (word == "mnt_id:" && file >> mount) return mount;
  }
  return -1;
}

// Any user may mount an overlay of file systems that are the user's own, in a namespace of mounts
// that is the user's own. So an overlay that is not among our mounts counts as its like only if the
// same overlay is.
bool IsOurs(const std::string& device) {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string mount, parent, its_device;
    if (words >> mount >> parent >> its_device && its_device == device) return true;
  }
  return false;
}

absl::Status CheckFileSystem(int descriptor, pid_t sender) {
  const int mount = MountOf(descriptor);
  std::ifstream ours("/proc/self/mountinfo");
  std::optional<MountedAt> found = FindMount(ours, mount);
  if (found && (IsLocal(found->type) || found->type == kOverlay)) return absl::OkStatus();
  if (!found) {
    std::ifstream theirs(absl::StrCat("/proc/", sender, "/mountinfo"));
    found = FindMount(theirs, mount);
    if (found && IsLocal(found->type)) return absl::OkStatus();
    if (found && found->type == kOverlay && IsOurs(found->device)) return absl::OkStatus();
  }
  return Refuse(found ? absl::StrCat("its file system is ", found->type,
                                     ", or is not one of the keeper's own mounts")
                      : "its file system is unknown here");
}

}  // namespace

std::optional<MountedAt> FindMount(std::istream& mountinfo, int mount) {
  size_t bytes = 0;
  for (std::string line; bytes < kMostMountinfoBytes && std::getline(mountinfo, line);) {
    bytes += line.size() + 1;
    std::istringstream words(line);
    int number = -1;
    std::string parent, word;
    MountedAt at;
    if (!(words >> number >> parent >> at.device) || number != mount) continue;
    // "-" alone ends the optional fields. Blanks in paths are written as \040.
    while (words >> word && word != "-") {
    }
    if (words >> at.type) return at;
  }
  return std::nullopt;
}

absl::Status CheckHoldable(int descriptor, pid_t sender) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0) return ErrnoStatus(errno, "descriptor");
  if ((flags & O_PATH) != 0) return Refuse("it was opened with O_PATH");
  // Only files in memory have seals.
  if (fcntl(descriptor, F_GET_SEALS) >= 0) return absl::OkStatus();
  if (!HasPath(descriptor)) return Refuse("it has no path, such as a socket or a pipe");
  BATON_RETURN_IF_ERROR(CheckFileSystem(descriptor, sender));
  struct statx info = {};
  if (statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) != 0) {
    return ErrnoStatus(errno, "statx of the descriptor");
  }
  return S_ISREG(info.stx_mode) ? absl::OkStatus() : Refuse("it is no regular file");
}

}  // namespace baton
