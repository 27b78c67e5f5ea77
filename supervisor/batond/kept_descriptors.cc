#include "supervisor/batond/kept_descriptors.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/base/errno_status.h"
#include "lib/base/program_start.h"
#include "lib/base/status_text.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

constexpr char kFile[] = "file.";
constexpr char kManifest[] = "manifest.";

bool Tell(const std::string& message, const int* descriptor) {
  const int result = sd_pid_notify_with_fds(/*pid=*/0, /*unset_environment=*/0, message.c_str(),
                                            descriptor, descriptor == nullptr ? 0 : 1);
  if (result < 0) {
    spdlog::error("the service manager cannot be told what to keep: {}", strerror(-result));
  }
  return result >= 0;
}

// Whatever happens to it (FDPOLL=0: a pipe whose other end is gone is kept, too).
bool Store(const std::string& name, int descriptor) {
  return Tell(absl::StrCat("FDSTORE=1\nFDPOLL=0\nFDNAME=", name), &descriptor);
}

void Remove(const std::string& name) {
  (void)Tell(absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name), nullptr);
}

// 0: not such a name.
uint64_t NumberIn(const std::string& name, const char* kind) {
  absl::string_view rest = name;
  uint64_t number = 0;
  return absl::ConsumePrefix(&rest, kind) && absl::SimpleAtoi(rest, &number) ? number : 0;
}

bool IsSameFile(int one, int other) {
  return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, one, other) == 0;
}

std::string ReadAll(int file) {
  std::string text;
  char some[4096];
  ssize_t got;
  while ((got = pread(file, some, sizeof(some), static_cast<off_t>(text.size()))) > 0) {
    text.append(some, static_cast<size_t>(got));
  }
  return text;
}

FileDescriptor CopyOf(int descriptor) {
  return FileDescriptor(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
}

}  // namespace

// The manager keeps no file twice: we have to know whether two descriptors are of one.
absl::Status KeptDescriptors::CheckUsable() {
  const FileDescriptor file(eventfd(0, EFD_CLOEXEC));
  if (IsSameFile(file.get(), file.get())) return absl::OkStatus();
  return ErrnoStatus(errno,
                     "batond may not call kcmp(2) (allow it: "
                     "SystemCallFilter= of the unit, or the container's seccomp profile)");
}

std::vector<KeptDescriptors::Named> KeptDescriptors::GivenBack() {
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  std::vector<Named> given;
  for (int i = 0; i < count; ++i) {
    given.emplace_back(names[i], FileDescriptor(SD_LISTEN_FDS_START + i));
    free(names[i]);
  }
  free(names);
  return given;
}

KeptDescriptors::KeptDescriptors(std::vector<Named> given_back) {
  FileDescriptor manifest;
  for (Named& one : given_back) {
    const std::string& name = one.first;
    if (const uint64_t file = NumberIn(name, kFile); file != 0) {
      files_[file] = std::move(one.second);
      last_ = std::max(last_, file);
    } else if (const uint64_t number = NumberIn(name, kManifest); number != 0) {
      if (manifests_.empty() || number > *manifests_.rbegin()) manifest = std::move(one.second);
      manifests_.insert(number);
      last_ = std::max(last_, number);
    } else {
      Remove(name);
    }
  }
  if (manifest) ReadManifest(manifest.get());
  DropIncomplete();
  if (!given_back.empty()) Commit();
}

// A line is SERVICE, NAME and the numbers, with tabs between them.
void KeptDescriptors::ReadManifest(int manifest) {
  for (const absl::string_view line : absl::StrSplit(ReadAll(manifest), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    Place place;
    if (parts.size() < 3 || !absl::CUnescape(parts[0], &place.first) ||
        !absl::CUnescape(parts[1], &place.second)) {
      continue;  // no batond writes such a line
    }
    std::vector<uint64_t>& numbers = entries_[place];
    for (size_t i = 2; i < parts.size(); ++i) {
      (void)absl::SimpleAtoi(parts[i], &numbers.emplace_back());
    }
  }
}

void KeptDescriptors::DropIncomplete() {
  std::set<std::string> whole;
  std::set<std::string> incomplete;
  for (const auto& [place, numbers] : entries_) {
    const bool all = std::all_of(numbers.begin(), numbers.end(), [this](uint64_t number) {
      return files_.find(number) != files_.end();
    });
    (all ? whole : incomplete).insert(place.first);
  }
  for (const std::string& service : incomplete) {
    whole.erase(service);
    spdlog::error(
        "service {}: the service manager has not kept all that it was given, so its connections "
        "end (see FileDescriptorStoreMax=)",
        service);
  }
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    entry = whole.count(entry->first.first) != 0 ? std::next(entry) : entries_.erase(entry);
  }
}

KeptDescriptors::Entries KeptDescriptors::Of(const std::string& service) const {
  Entries found;
  for (const auto& [place, numbers] : entries_) {
    if (place.first != service) continue;
    std::vector<FileDescriptor>& descriptors = found[place.second];
    for (const uint64_t number : numbers) {
      descriptors.push_back(CopyOf(files_.at(number).get()));
    }
  }
  return found;
}

void KeptDescriptors::KeepOnly(const std::set<std::string>& services) {
  const size_t before = entries_.size();
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    entry = services.count(entry->first.first) != 0 ? std::next(entry) : entries_.erase(entry);
  }
  if (entries_.size() != before) Commit();
}

void KeptDescriptors::Put(const std::string& service, const std::string& name,
                          const std::vector<int>& descriptors) {
  std::vector<uint64_t> numbers;
  for (const int descriptor : descriptors) numbers.push_back(NumberOf(descriptor));
  if (numbers.empty()) {
    entries_.erase({service, name});
  } else {
    entries_[{service, name}] = std::move(numbers);
  }
  Commit();
}

// A file that is not kept yet gets a new number.
uint64_t KeptDescriptors::NumberOf(int descriptor) {
  for (const auto& [number, file] : files_) {
    if (IsSameFile(file.get(), descriptor)) return number;
  }
  files_[++last_] = CopyOf(descriptor);
  if (!Store(absl::StrCat(kFile, last_), descriptor)) unsent_.insert(last_);
  return last_;
}

// Whether the service manager was given all files; those that it was not are tried again.
bool KeptDescriptors::SendRest() {
  std::erase_if(unsent_, [this](uint64_t number) {
    const auto file = files_.find(number);
    return file == files_.end() || Store(absl::StrCat(kFile, number), file->second.get());
  });
  return unsent_.empty();
}

void KeptDescriptors::Commit() {
  if (!SendRest()) return;  // the former manifest stays true, and so do its files
  std::string text;
  for (const auto& [place, numbers] : entries_) {
    absl::StrAppend(&text, absl::CEscape(place.first), "\t", absl::CEscape(place.second), "\t",
                    absl::StrJoin(numbers, "\t"), "\n");
  }
  const absl::StatusOr<FileDescriptor> manifest = MemoryFileWith(text);
  if (!manifest.ok()) {  // the former one stays true, and so do its files
    spdlog::error("what the service manager keeps is out of date: {}",
                  MessageOf(manifest.status()));
    return;
  }
  if (!Store(absl::StrCat(kManifest, ++last_), manifest->get())) return;
  const std::set<uint64_t> former = std::exchange(manifests_, {last_});
  for (const uint64_t number : former) Remove(absl::StrCat(kManifest, number));
  RemoveUnused();
}

void KeptDescriptors::RemoveUnused() {
  std::set<uint64_t> used;
  for (const auto& [place, numbers] : entries_) used.insert(numbers.begin(), numbers.end());
  for (auto file = files_.begin(); file != files_.end();) {
    if (used.count(file->first) != 0) {
      ++file;
    } else {
      Remove(absl::StrCat(kFile, file->first));
      file = files_.erase(file);
    }
  }
}

}  // namespace baton
