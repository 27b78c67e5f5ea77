#include "supervisor/inspect/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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
#include "lib/base/status.h"
#include "supervisor/config/state_files.h"

namespace baton::inspect {
namespace {

constexpr char kMemfd[] = "/memfd:";
constexpr char kDeleted[] = " (deleted)";  // the end of every memfd's name in /proc

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

// Returns, for each name that /proc shows, the number of an open descriptor.
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

constexpr size_t kMemories = arena::kMemoryNames.size();

// The parts of a memory's file name (arena::kMemoryNames).
struct MemoryName {
  size_t memory;  // arena::MemoryKind
  std::string service;
  uint64_t instance;  // grows: a later arena has a greater one
  bool operator==(const MemoryName&) const = default;
};

// "/memfd:baton-driver-log-kv.1234 (deleted)"
std::optional<MemoryName> ParseName(std::string_view link) {
  if (!link.starts_with(kMemfd) || !link.ends_with(kDeleted)) return std::nullopt;
  link.remove_prefix(sizeof(kMemfd) - 1);
  link.remove_suffix(sizeof(kDeleted) - 1);
  for (size_t i = 0; i < kMemories; ++i) {
    const std::string_view prefix = arena::kMemoryNames[i];
    if (!link.starts_with(prefix)) continue;
    const std::string_view rest = link.substr(prefix.size());
    const size_t dot = rest.rfind('.');
    if (dot == std::string_view::npos) return std::nullopt;
    const std::string_view number = rest.substr(dot + 1);
    MemoryName name = {i, std::string(rest.substr(0, dot)), 0};
    const auto [end, error] = std::from_chars(number.begin(), number.end(), name.instance);
    if (error != std::errc() || end != number.end()) return std::nullopt;
    return name;
  }
  return std::nullopt;
}

struct OpenArena {
  int pid;
  std::string service;
  uint64_t instance;
  std::array<int, kMemories> descriptors;  // by arena::MemoryKind; -1: none
};

// Returns the process's arenas that have their logs, by service and instance.
absl::StatusOr<std::vector<OpenArena>> ArenasOf(int pid) {
  BATON_ASSIGN_OR_RETURN(const auto files, OpenFiles(pid));
  std::map<std::pair<std::string, uint64_t>, OpenArena> all;
  for (const auto& [link, fd] : files) {
    const std::optional<MemoryName> name = ParseName(link);
    if (!name) continue;
    const OpenArena none = {pid, name->service, name->instance, {-1, -1, -1, -1}};
    OpenArena& arena = all.try_emplace({name->service, name->instance}, none).first->second;
    arena.descriptors[name->memory] = fd;
  }
  std::vector<OpenArena> arenas;
  for (const auto& [key, arena] : all) {
    if (arena.descriptors[0] >= 0 && arena.descriptors[1] >= 0) arenas.push_back(arena);
  }
  return arenas;
}

// Returns none if the process may not be looked into.
std::vector<OpenArena> ArenasOf(int pid, const std::string& service) {
  std::vector<OpenArena> arenas = ArenasOf(pid).value_or(std::vector<OpenArena>());
  std::erase_if(arenas, [&](const OpenArena& one) { return one.service != service; });
  return arenas;
}

std::string ProgramOf(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

// Leaves the file's access time unchanged, if that is allowed.
int OpenForReading(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME);
  return fd >= 0 || errno != EPERM ? fd : open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

absl::StatusOr<Memory> OpenMemory(const OpenArena& arena, size_t memory) {
  if (arena.descriptors[memory] < 0) return Memory();
  const std::string path = DescriptorPath(arena.pid, arena.descriptors[memory]);
  auto file = std::make_shared<FileDescriptor>(OpenForReading(path));
  if (!*file) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  // Another file may have got the number since the name was read.
  const std::string link = LinkAt(DescriptorPath(getpid(), file->get()));
  if (ParseName(link) != MemoryName{memory, arena.service, arena.instance}) {
    return absl::AbortedError(absl::StrCat("process ", arena.pid, " has just closed its arena"));
  }
  struct stat info = {};
  if (fstat(file->get(), &info) != 0) return ErrnoStatus(errno, path);
  return Memory(std::move(file), 0, static_cast<uint64_t>(info.st_size),
                arena::kMemoryTitles[memory]);
}

absl::StatusOr<ArenaFiles> Open(const OpenArena& arena) {
  ArenaFiles files;
  for (size_t i = 0; i < kMemories; ++i) {
    BATON_ASSIGN_OR_RETURN(files.memories[i], OpenMemory(arena, i));
  }
  files.pid = arena.pid;
  files.program = ProgramOf(arena.pid);
  return files;
}

// ---------------------------------------------------------------- batond and its drivers

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

// Returns the names of the services that have a driver, joined.
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

// The process may be a worker that ends because its driver is gone, or a debugger's.
absl::StatusOr<ArenaFiles> FindAnywhere(const std::string& state_dir, const std::string& service) {
  std::map<uint64_t, OpenArena> arenas;  // by instance
  (void)ForEachNumber("/proc", [&](int pid) {
    for (const OpenArena& one : ArenasOf(pid, service)) arenas.emplace(one.instance, one);
  });
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
  return Open(arenas.begin()->second);
}

}  // namespace

absl::StatusOr<ArenaFiles> FindArena(const std::string& state_dir, const std::string& service) {
  BATON_ASSIGN_OR_RETURN(const int driver, HolderOf(KeeperLockPath(state_dir, service)));
  const std::vector<OpenArena> arenas = ArenasOf(driver, service);
  if (!arenas.empty()) return Open(arenas.back());
  BATON_ASSIGN_OR_RETURN(const int batond, HolderOf(BatondLockPath(state_dir)));
  if (batond == 0) return FindAnywhere(state_dir, service);
  const std::string others = DriversIn(state_dir);
  return absl::NotFoundError(
      absl::StrCat("no driver of batond (process ", batond, ") has an arena of service \"", service,
                   "\"", others.empty() ? "" : absl::StrCat("; there are drivers of ", others)));
}

absl::StatusOr<ArenaFiles> ArenaOfProcess(int pid, const std::string& service) {
  BATON_ASSIGN_OR_RETURN(std::vector<OpenArena> arenas, ArenasOf(pid));
  if (arenas.empty()) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has no arena open"));
  }
  std::set<std::string> services;
  for (const OpenArena& one : arenas) services.insert(one.service);
  if (service.empty() ? services.size() > 1 : !services.contains(service)) {
    return absl::NotFoundError(
        absl::StrCat("process ", pid, " has the arenas of ", absl::StrJoin(services, ", "),
                     service.empty() ? ": name one of them" : absl::StrCat(", not of ", service)));
  }
  std::erase_if(arenas,
                [&](const OpenArena& one) { return !service.empty() && one.service != service; });
  return Open(arenas.back());
}

}  // namespace baton::inspect
