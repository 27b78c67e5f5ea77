#include "supervisor/batond/program_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton {

absl::StatusOr<ProgramFile> ProgramFile::Open(const std::string& path) {
  ProgramFile program;
  program.file_ = std::make_shared<FileDescriptor>(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat file = {};
  if (!*program.file_ || fstat(program.file_->get(), &file) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot run ", path));
  }
  program.device_ = file.st_dev;
  program.inode_ = file.st_ino;
  program.changed_ns_ = int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
  return program;
}

// Not /proc/self, because a child closes the descriptor before it enters the program.
std::string ProgramFile::Path() const {
  return absl::StrCat("/proc/", getpid(), "/fd/", descriptor());
}

std::string DescribeGivenUp(const std::string& program, const std::string& why) {
  return absl::StrCat("the new program ", program, " is given up, because ", why,
                      ": the program before it runs");
}

absl::StatusOr<ProgramFile> ReplaceableProgram::ToRun() {
  if (trial_) return *trial_;
  if (!file_) {
    BATON_ASSIGN_OR_RETURN(file_, ProgramFile::Open(path_));
  }
  return *file_;
}

absl::Status ReplaceableProgram::Replace() {
  BATON_ASSIGN_OR_RETURN(ProgramFile found, ProgramFile::Open(path_));
  trial_.reset();
  if (!file_ || !(*file_ == found)) trial_ = std::move(found);
  return absl::OkStatus();
}

void ReplaceableProgram::Prove() {
  if (trial_) file_ = std::exchange(trial_, std::nullopt);
}

}  // namespace baton
