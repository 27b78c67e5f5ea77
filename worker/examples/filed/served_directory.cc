#include "worker/examples/filed/served_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::filed {
namespace {

// A rename of a directory on the way makes openat2 give up with EAGAIN.
constexpr int kTries = 16;

int OpenBeneath(int root, const std::string& path, int flags) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC | O_NOFOLLOW);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const char* const name = path.empty() ? "." : path.c_str();
  long fd = -1;
  for (int i = 0; i < kTries; ++i) {
    fd = syscall(SYS_openat2, root, name, &how, sizeof(how));
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) break;
  }
  return static_cast<int>(fd);
}

absl::Status WhyNotOpened(int error, std::string_view path) {
  const std::string what = absl::StrCat("\"", View(path), "\"");
  if (error == ELOOP || error == EXDEV) {
    return absl::PermissionDeniedError(absl::StrCat(what, ": it leads over a symbolic link"));
  }
  if (error == ENOTDIR) return absl::NotFoundError(absl::StrCat(what, ": there is no such file"));
  return ErrnoStatus(error, what);
}

std::optional<FileInfo> InfoOf(const struct stat& status) {
  FileInfo info = {};
  if (S_ISREG(status.st_mode)) {
    info.type = static_cast<uint8_t>(FileType::kFile);
    info.size = static_cast<uint64_t>(status.st_size);
  } else if (S_ISDIR(status.st_mode)) {
    info.type = static_cast<uint8_t>(FileType::kDirectory);
  } else {
    return std::nullopt;
  }
  // In 64 bits, which a time far from now leaves.
  info.mtime_ns =
      static_cast<int64_t>(static_cast<uint64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
                           static_cast<uint64_t>(status.st_mtim.tv_nsec));
  return info;
}

absl::StatusOr<FileInfo> InfoOf(int fd, std::string_view path) {
  struct stat status;
  if (fstat(fd, &status) != 0) return ErrnoStatus(errno, path);
  const std::optional<FileInfo> info = InfoOf(status);
  if (info) return *info;
  return absl::PermissionDeniedError(
      absl::StrCat("\"", View(path), "\": it is neither a file nor a directory"));
}

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};
using OpenDirectory = std::unique_ptr<DIR, CloseDirectory>;

// Returns whether an entry may be shown, as far as the directory knows.
bool MayBeShown(const dirent& entry) {
  const bool may = entry.d_type == DT_REG || entry.d_type == DT_DIR || entry.d_type == DT_UNKNOWN;
  return may && IsPlainName(entry.d_name);
}

struct Names {
  std::set<std::string> names;
  bool more = false;
};

// Returns the first names behind `after`, as many as fit into `most_bytes`, but at least one.
absl::StatusOr<Names> FirstNames(DIR* directory, std::string_view after, size_t most_bytes) {
  Names first;
  size_t bytes = 0;
  rewinddir(directory);
  for (errno = 0; const dirent* const entry = readdir(directory); errno = 0) {
    if (!MayBeShown(*entry) || entry->d_name <= after) continue;
    const auto [place, is_new] = first.names.insert(entry->d_name);
    if (is_new) bytes += EntryBytes(*place);
    while (bytes > most_bytes && first.names.size() > 1) {
      const auto last = std::prev(first.names.end());
      bytes -= EntryBytes(*last);
      first.names.erase(last);
      first.more = true;
    }
  }
  if (errno != 0) return ErrnoStatus(errno, "cannot read a directory");
  return first;
}

}  // namespace

absl::StatusOr<ServedDirectory> ServedDirectory::Open(const std::string& path) {
  FileDescriptor root(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) {
    return ErrnoStatus(errno, absl::StrCat("cannot open the directory to serve, ", path));
  }
  const FileDescriptor probe(OpenBeneath(root.get(), "", O_PATH));
  if (!probe) {
    return ErrnoStatus(errno, absl::StrCat("cannot open files below ", path,
                                           " safely, for which the kernel and the container have "
                                           "to allow openat2"));
  }
  return ServedDirectory(std::move(root));
}

absl::StatusOr<ServedDirectory::File> ServedDirectory::OpenPath(std::string_view path,
                                                                int flags) const {
  if (!IsPlainPath(path)) return absl::InvalidArgumentError("path: it is not a plain one");
  File file;
  file.fd.Reset(OpenBeneath(root_.get(), std::string(path), flags));
  if (!file.fd) return WhyNotOpened(errno, path);
  BATON_ASSIGN_OR_RETURN(file.info, InfoOf(file.fd.get(), path));
  return file;
}

absl::StatusOr<FileInfo> ServedDirectory::Stat(std::string_view path) const {
  BATON_ASSIGN_OR_RETURN(const File file, OpenPath(path, O_PATH));
  return file.info;
}

// Looks before it opens: to open a device is an effect by itself. What takes the file's place in
// between is refused by the second look, and O_NONBLOCK keeps a FIFO from blocking.
absl::StatusOr<ServedDirectory::File> ServedDirectory::OpenFile(std::string_view path) const {
  BATON_ASSIGN_OR_RETURN(const FileInfo first, Stat(path));
  const auto is_file = [](const FileInfo& info) {
    return info.type == static_cast<uint8_t>(FileType::kFile);
  };
  if (!is_file(first)) {
    return absl::FailedPreconditionError(absl::StrCat("\"", View(path), "\" is a directory"));
  }
  BATON_ASSIGN_OR_RETURN(File file, OpenPath(path, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  if (is_file(file.info)) return file;
  return absl::FailedPreconditionError(absl::StrCat("\"", View(path), "\" is a directory"));
}

absl::StatusOr<ServedDirectory::Page> ServedDirectory::List(std::string_view path,
                                                            std::string_view after,
                                                            size_t most_bytes) const {
  BATON_ASSIGN_OR_RETURN(const FileInfo info, Stat(path));
  if (info.type != static_cast<uint8_t>(FileType::kDirectory)) {
    return absl::FailedPreconditionError(absl::StrCat("\"", View(path), "\" is no directory"));
  }
  BATON_ASSIGN_OR_RETURN(File file, OpenPath(path, O_RDONLY | O_DIRECTORY));
  const OpenDirectory directory(fdopendir(file.fd.get()));
  if (directory == nullptr) return ErrnoStatus(errno, path);
  const int fd = file.fd.Release();  // the directory's, which closes it

  Page page;
  std::string last(after);
  do {
    BATON_ASSIGN_OR_RETURN(const Names first, FirstNames(directory.get(), last, most_bytes));
    page.more = first.more;
    for (const std::string& name : first.names) {
      struct stat status;
      // One that has gone meanwhile, or is a link now, is left out.
      if (fstatat(fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
      const std::optional<FileInfo> entry = InfoOf(status);
      if (entry) page.entries.push_back({name, *entry});
    }
    if (!first.names.empty()) last = *first.names.rbegin();
  } while (page.entries.empty() && page.more);
  return page;
}

}  // namespace baton::filed
