#include "worker/examples/filed/local_tree.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::filed {
namespace {

constexpr mode_t kFileMode = 0666, kDirectoryMode = 0777;  // less the umask
constexpr int64_t kNanoseconds = 1'000'000'000;

std::string Quoted(std::string_view path) { return absl::StrCat("\"", View(path), "\""); }

std::string PartName(const std::string& name, const FileInfo& info) {
  return absl::StrCat(name, ".", info.size, "-", info.mtime_ns, ".baton-part");
}

// Rounds down, also before 1970.
timespec TimeOf(int64_t nanoseconds) {
  timespec time;
  time.tv_sec = nanoseconds / kNanoseconds;
  time.tv_nsec = nanoseconds % kNanoseconds;
  if (time.tv_nsec >= 0) return time;
  --time.tv_sec;
  time.tv_nsec += kNanoseconds;
  return time;
}

absl::StatusOr<struct stat> StatOf(int fd, std::string_view path) {
  struct stat status;
  if (fstat(fd, &status) != 0) return ErrnoStatus(errno, path);
  return status;
}

}  // namespace

absl::StatusOr<LocalTree> LocalTree::Open(const std::string& directory, bool make) {
  if (make && mkdir(directory.c_str(), kDirectoryMode) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("cannot make the directory ", directory));
  }
  FileDescriptor root(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) return ErrnoStatus(errno, absl::StrCat("cannot open the directory ", directory));
  return LocalTree(std::move(root));
}

// Opens the directory that has the last name of `path`.
absl::StatusOr<LocalTree::Place> LocalTree::Find(std::string_view path) const {
  if (path.empty() || !IsPlainPath(path)) {
    return absl::InvalidArgumentError("path: it is not a plain one");
  }
  const size_t slash = path.rfind('/');
  const bool is_deep = slash != std::string_view::npos;
  const std::string parent(is_deep ? path.substr(0, slash) : ".");
  open_how how = {};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  Place place;
  place.directory.Reset(
      static_cast<int>(syscall(SYS_openat2, root_.get(), parent.c_str(), &how, sizeof(how))));
  if (!place.directory) return ErrnoStatus(errno, absl::StrCat("the directory of ", Quoted(path)));
  place.name = std::string(is_deep ? path.substr(slash + 1) : path);
  return place;
}

absl::Status LocalTree::MakeDirectory(std::string_view path) {
  if (path.empty()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const Place place, Find(path));
  if (mkdirat(place.directory.get(), place.name.c_str(), kDirectoryMode) == 0) {
    return absl::OkStatus();
  }
  if (errno != EEXIST) return ErrnoStatus(errno, Quoted(path));
  struct stat status;
  if (fstatat(place.directory.get(), place.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoStatus(errno, Quoted(path));
  }
  if (S_ISDIR(status.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Quoted(path), " is here, and is no directory: move it away"));
}

absl::StatusOr<LocalTree::Part> LocalTree::OpenPart(std::string_view path, const FileInfo& info,
                                                    bool resume) {
  BATON_ASSIGN_OR_RETURN(const Place place, Find(path));
  Part part;
  part.fd.Reset(openat(place.directory.get(), PartName(place.name, info).c_str(),
                       O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, kFileMode));
  if (!part.fd) return ErrnoStatus(errno, absl::StrCat("cannot write ", Quoted(path)));
  BATON_ASSIGN_OR_RETURN(const struct stat status, StatOf(part.fd.get(), path));
  // One with another link is another file, too: it is not even emptied.
  if (!S_ISREG(status.st_mode) || status.st_nlink != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("the part of ", Quoted(path), " is not a plain file: move it away"));
  }
  if (!resume) {
    if (ftruncate(part.fd.get(), 0) != 0) return ErrnoStatus(errno, Quoted(path));
    return part;
  }
  part.length = std::min(static_cast<uint64_t>(status.st_size), info.size);
  return part;
}

absl::Status LocalTree::Finish(std::string_view path, const FileInfo& info,
                               const FileDescriptor& part) {
  BATON_ASSIGN_OR_RETURN(const Place place, Find(path));
  // A part that was there may have been longer.
  if (ftruncate(part.get(), static_cast<off_t>(info.size)) != 0) {
    return ErrnoStatus(errno, Quoted(path));
  }
  const timespec time = TimeOf(info.mtime_ns);
  const timespec times[2] = {time, time};
  if (futimens(part.get(), times) != 0) return ErrnoStatus(errno, Quoted(path));
  const int directory = place.directory.get();
  if (renameat(directory, PartName(place.name, info).c_str(), directory, place.name.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot give ", Quoted(path), " its name"));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> LocalTree::OpenFile(std::string_view path) const {
  BATON_ASSIGN_OR_RETURN(const Place place, Find(path));
  FileDescriptor file(openat(place.directory.get(), place.name.c_str(),
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file) return ErrnoStatus(errno, Quoted(path));
  BATON_ASSIGN_OR_RETURN(const struct stat status, StatOf(file.get(), path));
  if (S_ISREG(status.st_mode)) return file;
  return absl::FailedPreconditionError(absl::StrCat(Quoted(path), " is here, and is no file"));
}

bool LocalTree::Has(std::string_view path, const FileInfo& info) const {
  const absl::StatusOr<Place> place = Find(path);
  if (!place.ok()) return false;
  struct stat status;
  if (fstatat(place->directory.get(), place->name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return false;
  }
  const timespec time = TimeOf(info.mtime_ns);
  return S_ISREG(status.st_mode) && static_cast<uint64_t>(status.st_size) == info.size &&
         status.st_mtim.tv_sec == time.tv_sec && status.st_mtim.tv_nsec == time.tv_nsec;
}

absl::Status WriteAt(int fd, uint64_t offset, absl::Span<const uint8_t> bytes,
                     std::string_view path) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoStatus(written < 0 ? errno : ENOSPC, Quoted(path));
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

}  // namespace baton::filed
