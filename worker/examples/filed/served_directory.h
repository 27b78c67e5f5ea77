// The files and directories below one directory, for clients that are not trusted: no path leads
// out of it, and no symbolic link is followed, below it or to it from within.
#ifndef WORKER_EXAMPLES_FILED_SERVED_DIRECTORY_H_
#define WORKER_EXAMPLES_FILED_SERVED_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "worker/examples/filed/filed_protocol.h"

namespace baton::filed {

// Thread-compatible. Paths are as IsPlainPath() says (kInvalidArgument). Functions return
//   kNotFound: there is no such file.
//   kPermissionDenied: no permission, a symbolic link, or neither a regular file nor a directory.
//   kFailedPrecondition: a directory where a file is meant, or a file where a directory is.
class ServedDirectory {
 public:
  struct File {
    FileDescriptor fd;
    FileInfo info = {};
  };
  struct Page {
    std::vector<NamedEntry> entries;  // in ascending order of names, as bytes
    bool more = false;
  };

  // `path` is the operator's, and may lead over symbolic links.
  static absl::StatusOr<ServedDirectory> Open(const std::string& path);

  // Opens a regular file for reading. A FIFO or a device is not opened, so nothing blocks.
  absl::StatusOr<File> OpenFile(std::string_view path) const;
  absl::StatusOr<FileInfo> Stat(std::string_view path) const;
  // Returns entries whose names are behind `after`, with at most `most_bytes` of messages
  // (EntryBytes), but at least one if there is any. Entries that are neither files nor directories
  // are left out. It reads the whole directory for each page, with memory for one page.
  absl::StatusOr<Page> List(std::string_view path, std::string_view after, size_t most_bytes) const;

 private:
  explicit ServedDirectory(FileDescriptor root) : root_(std::move(root)) {}
  absl::StatusOr<File> OpenPath(std::string_view path, int flags) const;

  FileDescriptor root_;
};

}  // namespace baton::filed

#endif  // WORKER_EXAMPLES_FILED_SERVED_DIRECTORY_H_
