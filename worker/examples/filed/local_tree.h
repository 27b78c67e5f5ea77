// Where baton-get writes: files and directories below one directory, by names that a server has
// sent. Nothing outside of it is written, and no symbolic link below it is followed.
#ifndef WORKER_EXAMPLES_FILED_LOCAL_TREE_H_
#define WORKER_EXAMPLES_FILED_LOCAL_TREE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "worker/examples/filed/filed_protocol.h"

namespace baton::filed {

// A file is written under a name of its own, NAME.SIZE-TIME.baton-part, and gets its name when it
// is complete. The part of another version has another name, so none is taken for this one's.
//
// Thread-compatible. Paths are as IsPlainPath() says (kInvalidArgument).
class LocalTree {
 public:
  // `make`: makes the directory if it is missing, but not those above it.
  static absl::StatusOr<LocalTree> Open(const std::string& directory, bool make = true);

  // Does nothing if it is there. kFailedPrecondition: something else is.
  absl::Status MakeDirectory(std::string_view path);

  struct Part {
    FileDescriptor fd;
    uint64_t length = 0;  // bytes that are there already
  };
  // Opens the part of a file of that size and time for writing. Without `resume` it is empty.
  absl::StatusOr<Part> OpenPart(std::string_view path, const FileInfo& info, bool resume);
  // The part is complete: gives it the file's time and name. What had the name before is replaced,
  // unless it is a directory.
  absl::Status Finish(std::string_view path, const FileInfo& info, const FileDescriptor& part);

  // Opens a regular file for reading. kNotFound, or kFailedPrecondition: it is something else.
  absl::StatusOr<FileDescriptor> OpenFile(std::string_view path) const;
  // Returns whether a file is there with that size and time.
  bool Has(std::string_view path, const FileInfo& info) const;

 private:
  struct Place {
    FileDescriptor directory;
    std::string name;
  };

  explicit LocalTree(FileDescriptor root) : root_(std::move(root)) {}
  absl::StatusOr<Place> Find(std::string_view path) const;

  FileDescriptor root_;
};

// Writes all of it. The message names `path`.
absl::Status WriteAt(int fd, uint64_t offset, absl::Span<const uint8_t> bytes,
                     std::string_view path);

}  // namespace baton::filed

#endif  // WORKER_EXAMPLES_FILED_LOCAL_TREE_H_
