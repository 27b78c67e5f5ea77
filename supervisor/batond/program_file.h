// The executable files of Baton's own processes. A package may put another file at the same path at
// any time. It is not run until an operator replaces the process.
#ifndef SUPERVISOR_BATOND_PROGRAM_FILE_H_
#define SUPERVISOR_BATOND_PROGRAM_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// An open executable file, which can be run even if another file has taken its place.
class ProgramFile {
 public:
  // Opens the file that is at `path` now.
  static absl::StatusOr<ProgramFile> Open(const std::string& path);

  int descriptor() const { return file_->get(); }
  // Returns a path to the open file, for this process and its children.
  std::string Path() const;

  // Returns whether both are the same file with the same content.
  bool operator==(const ProgramFile& other) const {
    return device_ == other.device_ && inode_ == other.inode_ && changed_ns_ == other.changed_ns_;
  }

 private:
  std::shared_ptr<FileDescriptor> file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  int64_t changed_ns_ = 0;  // modification time
};

// Says why `program`, a path, was given up: "the new program ... is given up, because it ...".
std::string DescribeGivenUp(const std::string& program, const std::string& why);

// The program of a process that is started again and again. Thread-compatible.
class ReplaceableProgram {
 public:
  explicit ReplaceableProgram(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  // Returns the file to run: the one on trial, else the one that was proven last, else the first
  // one that was opened.
  absl::StatusOr<ProgramFile> ToRun();
  // Puts the file that is at the path now on trial, unless it is the file that was run before the
  // trial.
  absl::Status Replace();
  bool on_trial() const { return trial_.has_value(); }
  void Prove();
  void GiveUp() { trial_.reset(); }

 private:
  const std::string path_;
  std::optional<ProgramFile> file_, trial_;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_PROGRAM_FILE_H_
