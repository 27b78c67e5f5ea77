#include "supervisor/inspect/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/arena/arena.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "supervisor/config/state_files.h"

namespace baton::inspect {
namespace {

constexpr char kMemfd[] = "/memfd:";
constexpr char kDeleted[] = " (deleted)";  // as /proc calls every memfd

// Calls `visit` with each name in a directory that is a number.
absl::Status ForEachNumber(const std::string& path, const std::function<void(int)>& visit) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    int number = 0;
    if (absl::SimpleAtoi(entry->path().filename().string(), &number)) visit(number);
  }
  return error ? ErrnoStatus(error.value(), path) : absl::OkStatus();
}

std::string LinkAt(const std::string& path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

std::string DescriptorPath(int pid, int fd) { return absl::StrCat("/proc/", pid, "/fd/", fd); }

// The number of an open descriptor for each name that /proc shows.
absl::StatusOr<std::map<std::string, int>> OpenFiles(int pid) {
  std::map<std::string, int> files;
  const absl::Status status = ForEachNumber(absl::StrCat("/proc/", pid, "/fd"), [&](int fd) {
    files.emplace(LinkAt(DescriptorPath(pid, fd)), fd);
  });
  if (absl::IsNotFound(status)) {
    return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  }
  if (absl::IsPermissionDenied(status)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the descriptors of process ", pid,
        " may not be read: run this as root, or as the user that the process runs as"));
  }
  BATON_RETURN_IF_ERROR(status);
  return files;
}

// ---------------------------------------------------------------- arenas of a process

constexpr size_t kMemories = 4;

// Descriptors of one arena's memories; -1 where there is none.
struct OpenArena {
  std::array<int, kMemories> descriptors = {-1, -1, -1, -1};
  bool complete() const { return descriptors[0] >= 0 && descriptors[1] >= 0; }
};
struct Names {  // of arena::MemoryNames, without those of other files
  std::string_view service;
  uint64_t instance;  // grows: the later arena has the greater one
  auto operator<=>(const Names&) const = default;
};
using ServiceArenas = std::map<uint64_t, OpenArena>;  // by instance
using Arenas = std::map<std::string, ServiceArenas>;  // by service

// "/memfd:baton-driver-log-kv.1234 (deleted)"
bool ParseName(std::string_view link, size_t* memory, Names* names) {
  if (!link.starts_with(kMemfd) || !link.ends_with(kDeleted)) return false;
  link.remove_prefix(sizeof(kMemfd) - 1);
  link.remove_suffix(sizeof(kDeleted) - 1);
  for (size_t i = 0; i < kMemories; ++i) {
    const std::string_view prefix = arena::kMemoryNames[i];
    if (!link.starts_with(prefix)) continue;
    const std::string_view rest = link.substr(prefix.size());
    const size_t dot = rest.rfind('.');
    if (dot == std::string_view::npos) return false;
    const std::string_view number = rest.substr(dot + 1);
    const auto [end, error] = std::from_chars(number.begin(), number.end(), names->instance);
    names->service = rest.substr(0, dot);
    *memory = i;
    return error == std::errc() && end == number.end();
  }
  return false;
}

absl::StatusOr<Arenas> ArenasOf(int pid) {
  BATON_ASSIGN_OR_RETURN(const auto files, OpenFiles(pid));
  Arenas arenas;
  for (const auto& [link, fd] : files) {
    size_t memory;
    Names names;
    if (!ParseName(link, &memory, &names)) continue;
    arenas[std::string(names.service)][names.instance].descriptors[memory] = fd;
  }
  for (auto& [service, of_service] : arenas) {
    std::erase_if(of_service, [](const auto& one) { return !one.second.complete(); });
  }
  std::erase_if(arenas, [](const auto& one) { return one.second.empty(); });
  return arenas;
}

std::string ProgramOf(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

// Without a trace in the file's access time where that may be.
int OpenForReading(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME);
  return fd >= 0 || errno != EPERM ? fd : open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

absl::StatusOr<Memory> OpenMemory(int pid, int fd, size_t memory, const std::string& service,
                                  uint64_t instance) {
  if (fd < 0) return Memory();
  const std::string path = DescriptorPath(pid, fd);
  auto file = std::make_shared<FileDescriptor>(OpenForReading(path));
  if (!*file) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  // The number may have become another file's since its name was read.
  size_t found;
  Names names;
  const std::string link = LinkAt(DescriptorPath(getpid(), file->get()));
  if (!ParseName(link, &found, &names) || found != memory || names != Names{service, instance}) {
    return absl::AbortedError(absl::StrCat("process ", pid, " has just closed its arena"));
  }
  struct stat info = {};
  if (fstat(file->get(), &info) != 0) return ErrnoStatus(errno, path);
  return Memory(std::move(file), 0, static_cast<uint64_t>(info.st_size),
                arena::kMemoryTitles[memory]);
}

struct Candidate {
  int pid;
  uint64_t instance;
  OpenArena arena;
};

absl::StatusOr<ArenaFiles> Open(const Candidate& candidate, const std::string& service) {
  std::array<Memory, kMemories> memories;
  for (size_t i = 0; i < kMemories; ++i) {
    BATON_ASSIGN_OR_RETURN(memories[i], OpenMemory(candidate.pid, candidate.arena.descriptors[i], i,
                                                   service, candidate.instance));
  }
  ArenaFiles files;
  files.worker_log = memories[arena::kWorkerLogMemory];
  files.driver_log = memories[arena::kDriverLogMemory];
  files.recovery = memories[arena::kRecoveryMemory];
  files.buffers = memories[arena::kBuffersMemory];
  files.pid = candidate.pid;
  files.program = ProgramOf(candidate.pid);
  return files;
}

// ---------------------------------------------------------------- batond and its drivers

std::vector<int> Processes() {
  std::vector<int> pids;
  (void)ForEachNumber("/proc", [&](int pid) { pids.push_back(pid); });
  return pids;
}

// Returns the process that has the lock file `path` and is named in it. 0: there is none.
absl::StatusOr<int> HolderOf(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return 0;
  if (!file) {
    return ErrnoStatus(errno, absl::StrCat(path, " (run this as root, or as batond's user)"));
  }
  char text[32] = {};
  const ssize_t got = pread(file.get(), text, sizeof(text) - 1, 0);
  const int pid = got > 0 ? std::atoi(text) : 0;
  if (pid <= 0) return 0;
  // A process that got the former holder's pid does not have the file open.
  const std::string name = LinkAt(DescriptorPath(getpid(), file.get()));
  const auto files = OpenFiles(pid);
  if (absl::IsNotFound(files.status())) return 0;
  BATON_RETURN_IF_ERROR(files.status());
  return files->contains(name) ? pid : 0;
}

std::vector<Candidate> CandidatesOf(int pid, const std::string& service) {
  std::vector<Candidate> candidates;
  const auto arenas = ArenasOf(pid);
  if (!arenas.ok()) return candidates;
  const auto found = arenas->find(service);
  if (found == arenas->end()) return candidates;
  for (const auto& [instance, arena] : found->second) candidates.push_back({pid, instance, arena});
  return candidates;
}

// The services that have a driver, joined.
std::string DriversIn(const std::string& state_dir) {
  std::set<std::string> services;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(state_dir, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.ends_with(kKeeperLockEnding) || HolderOf(entry->path().string()).value_or(0) == 0) {
      continue;
    }
    name.resize(name.size() - kKeeperLockEnding.size());
    services.insert(std::move(name));
  }
  return absl::StrJoin(services, ", ");
}

// Workers that end because their driver is gone, or a debugger's process.
absl::StatusOr<ArenaFiles> FindAnywhere(const std::string& state_dir, const std::string& service) {
  std::map<uint64_t, Candidate> arenas;
  for (const int pid : Processes()) {
    for (const Candidate& one : CandidatesOf(pid, service)) arenas.emplace(one.instance, one);
  }
  if (arenas.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "no batond runs with state directory ", state_dir, ", and no process",
        geteuid() == 0 ? "" : " that this user may look into", " has an arena of service \"",
        service, "\" any more: --offline reads what `baton snapshot` has saved, --state-dir ",
        "chooses another batond"));
  }
  if (arenas.size() > 1) {
    const std::string pids = absl::StrJoin(arenas, ", ", [](std::string* text, const auto& one) {
      absl::StrAppend(text, one.second.pid);
    });
    return absl::FailedPreconditionError(
        absl::StrCat("no batond runs with state directory ", state_dir, ", and processes ", pids,
                     " have different arenas of service \"", service, "\": choose with --pid"));
  }
  return Open(arenas.begin()->second, service);
}

}  // namespace

absl::StatusOr<ArenaFiles> FindArena(const std::string& state_dir, const std::string& service) {
  BATON_ASSIGN_OR_RETURN(const int driver, HolderOf(KeeperLockPath(state_dir, service)));
  const std::vector<Candidate> candidates = CandidatesOf(driver, service);
  if (!candidates.empty()) return Open(candidates.back(), service);
  BATON_ASSIGN_OR_RETURN(const int batond, HolderOf(BatondLockPath(state_dir)));
  if (batond == 0) return FindAnywhere(state_dir, service);
  const std::string others = DriversIn(state_dir);
  return absl::NotFoundError(
      absl::StrCat("no driver of batond (process ", batond, ") has an arena of service \"", service,
                   "\"", others.empty() ? "" : absl::StrCat("; there are drivers of ", others)));
}

absl::StatusOr<ArenaFiles> ArenaOfProcess(int pid, const std::string& service) {
  BATON_ASSIGN_OR_RETURN(const Arenas arenas, ArenasOf(pid));
  if (arenas.empty()) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has no arena open"));
  }
  auto found = arenas.begin();
  if (!service.empty()) found = arenas.find(service);
  if (found == arenas.end() || (service.empty() && arenas.size() > 1)) {
    const std::string names = absl::StrJoin(
        arenas, ", ", [](std::string* text, const auto& one) { absl::StrAppend(text, one.first); });
    return absl::NotFoundError(
        absl::StrCat("process ", pid, " has the arenas of ", names,
                     service.empty() ? ": name one of them" : absl::StrCat(", not of ", service)));
  }
  const auto& [instance, arena] = *found->second.rbegin();
  return Open({pid, instance, arena}, found->first);
}

}  // namespace baton::inspect
