#include "supervisor/config/socket_link.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton {
namespace {

absl::Status MakeDirectory(const std::string& path) {
  constexpr mode_t kPassable = 0711;
  if (mkdir(path.c_str(), kPassable) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("mkdir ", path));
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is in the way: it is no directory of this user's; remove it"));
  }
  // chmod, so that the umask does not matter.
  if (chmod(path.c_str(), kPassable) != 0) return ErrnoStatus(errno, absl::StrCat("chmod ", path));
  return absl::OkStatus();
}

}  // namespace

absl::Status LinkSocket(const std::string& socket, const std::string& link) {
  BATON_RETURN_IF_ERROR(MakeDirectory(link.substr(0, link.rfind('/'))));
  const std::string made = link + ".new";
  unlink(made.c_str());
  if (::link(socket.c_str(), made.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("link ", socket, " to ", made));
  }
  if (rename(made.c_str(), link.c_str()) == 0) return absl::OkStatus();
  absl::Status status = ErrnoStatus(errno, absl::StrCat("rename ", made, " to ", link));
  unlink(made.c_str());
  return status;
}

}  // namespace baton
