// A directory of its own directly under /tmp, removed with everything in it at the end: the paths
// of UNIX sockets may have at most 107 bytes, and test runners' directories are longer.
#ifndef TESTS_HARNESS_TEMP_DIRECTORY_H_
#define TESTS_HARNESS_TEMP_DIRECTORY_H_

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/status.h"

namespace baton::harness {

class TempDirectory {
 public:
  static absl::StatusOr<TempDirectory> Create() {
    char path[] = "/tmp/baton-XXXXXX";
    if (mkdtemp(path) == nullptr) return ErrnoStatus(errno, "cannot make a directory in /tmp");
    return TempDirectory(path);
  }
  TempDirectory(TempDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDirectory& operator=(TempDirectory&&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit TempDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_TEMP_DIRECTORY_H_
