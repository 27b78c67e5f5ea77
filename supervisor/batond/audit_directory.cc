#include "supervisor/batond/audit_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/audit_chain.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

mode_t TypeOf(const std::string& path) {
  struct stat status = {};
  return lstat(path.c_str(), &status) == 0 ? status.st_mode & S_IFMT : 0;
}

// Control may have put anything in the place of a file, so only a file without another name is
// given. kNotFound: there is no file.
absl::Status GiveFile(const std::string& path, const ProgramUser& user) {
  const FileDescriptor file(
      open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status = {};
  if (!file || fstat(file.get(), &status) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(status.st_mode) || status.st_nlink != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a file with one name; move it away"));
  }
  if (status.st_uid == user.uid || fchown(file.get(), user.uid, user.gid) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("chown ", path));
}

// The directory's owner changes last, so that a run that was ended in the middle is repeated.
absl::Status GiveDirectory(const std::string& path, const ProgramUser& user) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, path);
  const FileDescriptor directory(
      open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status = {};
  if (!directory || fstat(directory.get(), &status) != 0) return ErrnoStatus(errno, path);
  if (status.st_uid == user.uid) return absl::OkStatus();
  for (int age = 0; age < kAuditFiles; ++age) {
    absl::Status given = GiveFile(AuditFile(AuditTrailPath(path), age), user);
    if (!given.ok() && !absl::IsNotFound(given)) return given;
  }
  if (fchown(directory.get(), user.uid, user.gid) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("chown ", path));
}

// Moves the newest file last, for the same reason.
absl::Status MoveTrail(const std::string& from, const std::string& to, const ProgramUser& user) {
  if (TypeOf(AuditTrailPath(from)) != S_IFREG) return absl::OkStatus();
  if (TypeOf(AuditTrailPath(to)) == S_IFREG) {
    return absl::AlreadyExistsError(
        absl::StrCat("the trail in ", from, " stays there, since ", to, " has one, too"));
  }
  for (int age = kAuditFiles - 1; age >= 0; --age) {
    const std::string file = AuditFile(AuditTrailPath(from), age);
    const absl::Status given = GiveFile(file, user);
    if (absl::IsNotFound(given)) continue;
    BATON_RETURN_IF_ERROR(given);
    if (std::rename(file.c_str(), AuditFile(AuditTrailPath(to), age).c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("moving ", file, " to ", to));
    }
  }
  return absl::OkStatus();
}

absl::Status LinkTrail(const std::string& state_dir, const std::string& directory) {
  const std::string usual = AuditTrailPath(state_dir);
  const std::string next = usual + ".next";
  (void)unlink(next.c_str());
  if (TypeOf(usual) == S_IFREG) (void)std::rename(usual.c_str(), (usual + ".before").c_str());
  if (symlink(AuditTrailPath(directory).c_str(), next.c_str()) == 0 &&
      std::rename(next.c_str(), usual.c_str()) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat(usual, " does not lead to ", directory, ": symlink"));
}

// Keeps a trail that is older than LogsDirectory=, or that a former user of control had.
absl::Status Prepare(const std::string& base, const std::string& state_dir,
                     const std::optional<ProgramUser>& user) {
  const std::string own = ControlDirectoryPath(base);
  if (user) {
    BATON_RETURN_IF_ERROR(GiveDirectory(own, *user));
    BATON_RETURN_IF_ERROR(MoveTrail(base, own, *user));
    return LinkTrail(state_dir, own);
  }
  BATON_RETURN_IF_ERROR(MoveTrail(own, base, {geteuid(), getegid()}));
  if (base != state_dir) return LinkTrail(state_dir, base);
  // A former start may have left a link, which leads to where this batond may not write.
  if (TypeOf(AuditTrailPath(base)) == S_IFLNK) (void)unlink(AuditTrailPath(base).c_str());
  return absl::OkStatus();
}

}  // namespace

std::string MakeAuditDirectory(const std::string& state_dir,
                               const std::optional<ProgramUser>& user) {
  const char* const directories = std::getenv("LOGS_DIRECTORY");
  const std::string first = absl::StrCat(directories == nullptr ? "" : directories, ":");
  const std::string base = first.front() == '/' ? first.substr(0, first.find(':')) : state_dir;
  const absl::Status status = Prepare(base, state_dir, user);
  if (!status.ok()) spdlog::error("what operators do may not be on record: {}", MessageOf(status));
  return user ? ControlDirectoryPath(base) : base;
}

}  // namespace baton
