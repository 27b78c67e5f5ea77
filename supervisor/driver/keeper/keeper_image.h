// The executable file of keepers. Whoever has it open can run it after the file was replaced.
#ifndef SUPERVISOR_DRIVER_KEEPER_KEEPER_IMAGE_H_
#define SUPERVISOR_DRIVER_KEEPER_KEEPER_IMAGE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

class KeeperImage {
 public:
  // Opens the file that is at `path` now.
  static absl::StatusOr<KeeperImage> Open(const std::string& path);

  // A path to the open file, for this process and its children.
  std::string Path() const;

  // Returns whether both are the same file with the same content.
  bool operator==(const KeeperImage& other) const {
    return device_ == other.device_ && inode_ == other.inode_ && changed_ns_ == other.changed_ns_;
  }

 private:
  std::shared_ptr<FileDescriptor> file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  int64_t changed_ns_ = 0;  // modification time
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_KEEPER_KEEPER_IMAGE_H_
