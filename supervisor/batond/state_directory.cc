#include "supervisor/batond/state_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/audit_chain.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

// The kernel frees a killed keeper's memory at some 3 GB/s.
constexpr uint64_t kLeftoversWaitNs = 10'000'000'000;

absl::Status LetPass(const std::string& path, bool shared) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  constexpr mode_t kPass = S_IXGRP | S_IXOTH;
  if (!shared || (info.st_mode & kPass) == kPass) return absl::OkStatus();
  if (chmod(path.c_str(), (info.st_mode & 07777) | kPass) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("chmod go+x ", path));
}

absl::Status MakeDirectory(const std::string& path, bool shared) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("cannot make the state directory ", path,
                                           " (make its parent directory, or choose another "
                                           "state directory)"));
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state directory ", path, " is not a directory; remove it"));
  }
  // A user who may write there could put a socket in the place of batond's.
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("the state directory ", path, " is writable by others; chmod go-w ", path));
  }
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the state directory ", path, " belongs to uid ", info.st_uid, " and batond runs as uid ",
        geteuid(), "; run it as its owner, or choose another state directory"));
  }
  return LetPass(path, shared);
}

absl::Status TakeLock(ChildLock* lock, const std::string& directory) {
  const absl::Status taken = lock->Take();
  if (!absl::IsUnavailable(taken)) return taken.ok() ? lock->NameHolder(kPaddedLockBytes) : taken;
  std::string pid;
  std::getline(std::ifstream(lock->path()), pid);
  return absl::AlreadyExistsError(absl::StrCat(
      "another batond, pid ", pid.empty() ? "unknown" : pid, ", has the state directory ",
      directory, "; stop it, or choose another state directory"));
}

// The processes that may have the lock of a child.
struct Holders {
  std::vector<std::string> programs;
  std::function<bool(pid_t)> stays;
  const char* why;  // why one that does not stay has to end
};

// Returns true once nobody has the lock at `path`. If a living process of `holders` has it, returns
// false if it stays; otherwise asks it to end, and kills it after half of the time. Tries again and
// again, because flock has no time limit, and this happens only during a start.
absl::StatusOr<bool> AwaitLock(const std::string& path, const Holders& holders) {
  const uint64_t start = MonotonicNanoseconds();
  int sent = 0;
  for (;;) {
    ChildLock lock(path);
    const absl::Status taken = lock.Take();
    if (taken.ok()) return true;
    if (!absl::IsUnavailable(taken)) return taken;
    const std::optional<SpawnedProcess> holder = lock.Holder(holders.programs);
    if (holder && holders.stays(holder->pid)) return false;
    const uint64_t waited = MonotonicNanoseconds() - start;
    if (waited > kLeftoversWaitNs) return absl::DeadlineExceededError(taken.message());
    const int signal = waited > kLeftoversWaitNs / 2 ? SIGKILL : SIGTERM;
    if (holder && std::exchange(sent, signal) != signal) {
      spdlog::warn("process {} {} (lock {}): it is {}", holder->pid, holders.why, path,
                   signal == SIGTERM ? "told to end" : "killed");
      (void)SendSignal(holder->pidfd.get(), signal);
    }
    const timespec moment = {0, 5'000'000};
    nanosleep(&moment, nullptr);
  }
}

absl::StatusOr<bool> AwaitDriver(const std::string& path, bool stays) {
  return AwaitLock(path, {{"baton-driver", "baton-keeper"},
                          [stays](pid_t) { return stays; },
                          "keeps a service that is not configured any more"});
}

bool RunsAs(pid_t process, uid_t user) {
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  for (std::string word; status >> word;) {
    uid_t real = 0;
    if (word == "Uid:") return status >> real && real == user;
  }
  return false;
}

// Returns whether control's sockets are nobody's. A control that can neither be found nor has ended
// keeps no batond from the services.
bool AwaitControl(const std::string& path, uid_t user) {
  const absl::StatusOr<bool> is_free =
      AwaitLock(ControlLockPath(path), {{"baton-control"},
                                        [user](pid_t process) { return RunsAs(process, user); },
                                        "is control of another user"});
  if (!is_free.ok()) spdlog::error("control cannot be started: {}", MessageOf(is_free.status()));
  return is_free.value_or(false);
}

std::vector<std::string> SocketsOfBatond(const std::string& directory) {
  return {RejoinSocketPath(directory), ControlRejoinSocketPath(directory)};
}

std::vector<std::string> SocketsOfControl(const std::string& directory) {
  return {OperatorSocketPath(directory), ControlSocketPath(directory)};
}

void RemoveSocketsAt(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    struct stat info = {};
    if (lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) unlink(path.c_str());
  }
}

// Returns the services that were served here before and are not among `services`.
std::vector<std::string> FormerServices(const std::string& directory,
                                        const std::vector<std::string>& services) {
  std::vector<std::string> former;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    std::string name = entry.path().filename();
    if (!name.ends_with(kKeeperLockEnding)) continue;
    name.resize(name.size() - kKeeperLockEnding.size());
    if (std::find(services.begin(), services.end(), name) == services.end()) {
      former.push_back(std::move(name));
    }
  }
  return former;
}

std::vector<std::string> SocketsOfKeeper(const std::string& directory, const std::string& service) {
  return {WorkerSocketPath(directory, service), ManagementSocketPath(directory, service)};
}

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

bool ServesOthers(const v1::Config& config) {
  return config.operator_uids_size() > 0 || config.operator_gids_size() > 0 ||
         config.viewer_uids_size() > 0 || config.viewer_gids_size() > 0 ||
         std::any_of(config.services().begin(), config.services().end(), [](const auto& service) {
           return service.worker_uids_size() > 0 ||
                  (service.native().has_uid() && service.native().uid() != geteuid());
         });
}

absl::Status StateDirectory::Share(bool shared) const { return LetPass(path_, shared); }

absl::StatusOr<StateDirectory> StateDirectory::Open(const std::string& path,
                                                    const std::vector<std::string>& services,
                                                    bool shared, std::optional<uid_t> control) {
  BATON_RETURN_IF_ERROR(MakeDirectory(path, shared));
  ChildLock lock(BatondLockPath(path));
  BATON_RETURN_IF_ERROR(TakeLock(&lock, path));
  StateDirectory directory(path, std::move(lock));
  for (const std::string& service : FormerServices(path, services)) {
    BATON_RETURN_IF_ERROR(AwaitDriver(KeeperLockPath(path, service), /*stays=*/false).status());
    directory.RemoveFilesOf(service);
  }
  RemoveSocketsAt(SocketsOfBatond(path));
  if (AwaitControl(path, control.value_or(geteuid()))) RemoveSocketsAt(SocketsOfControl(path));
  for (const std::string& service : services) {
    BATON_ASSIGN_OR_RETURN(const bool is_free,
                           AwaitDriver(KeeperLockPath(path, service), /*stays=*/true));
    if (is_free) RemoveSocketsAt(SocketsOfKeeper(path, service));
  }
  return directory;
}

void StateDirectory::RemoveSockets(const std::vector<std::string>& services,
                                   bool control_has_ended) const {
  RemoveSocketsAt(SocketsOfBatond(path_));
  if (control_has_ended) RemoveSocketsAt(SocketsOfControl(path_));
  for (const std::string& service : services) RemoveSocketsAt(SocketsOfKeeper(path_, service));
}

void StateDirectory::RemoveFilesOf(const std::string& service) const {
  RemoveSocketsAt(SocketsOfKeeper(path_, service));
  (void)unlink(WorkersLockPath(path_, service).c_str());
  (void)unlink(KeeperLockPath(path_, service).c_str());
}

std::vector<std::string> ServiceNames(const v1::Config& config) {
  std::vector<std::string> names;
  for (const v1::ServiceConfig& service : config.services()) names.push_back(service.name());
  return names;
}

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
