#include "supervisor/driver/code/loaded_code.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"

namespace baton::driver_process {
namespace {

// A file that this process, or one that it was forked from, has loaded.
struct Loaded {
  dev_t device;
  ino_t inode;
  timespec changed;
  void* handle;

  bool IsOf(const struct stat& file) const {
    return device == file.st_dev && inode == file.st_ino && changed.tv_sec == file.st_mtim.tv_sec &&
           changed.tv_nsec == file.st_mtim.tv_nsec;
  }
};

std::vector<Loaded>& AllLoaded() {
  static auto& all = *new std::vector<Loaded>;
  return all;
}

// Returns a name of the open file that no file was loaded by before: dlopen(3) compares names
// first, and another file may have been in the same place, or had the same descriptor. The first
// one is its path, where debuggers look for it.
std::string NewNameOf(const std::string& path, int descriptor, const struct stat& file) {
  struct stat there = {};
  if (AllLoaded().empty() && stat(path.c_str(), &there) == 0 && there.st_dev == file.st_dev &&
      there.st_ino == file.st_ino) {
    return path;
  }
  std::string name = "/proc/self/fd/";
  for (size_t i = 0; i < AllLoaded().size(); ++i) name += "./";
  return absl::StrCat(name, descriptor);
}

absl::StatusOr<void*> LoadFile(const std::string& path, int descriptor) {
  struct stat file = {};
  if (fstat(descriptor, &file) != 0) return ErrnoStatus(errno, path);
  for (const Loaded& one : AllLoaded()) {
    if (one.IsOf(file)) return one.handle;
  }
  void* const handle = dlopen(NewNameOf(path, descriptor, file).c_str(), RTLD_NOW | RTLD_LOCAL);
  AllLoaded().push_back({file.st_dev, file.st_ino, file.st_mtim, handle});
  return handle;
}

}  // namespace

absl::StatusOr<const BatonDriverCode*> LoadDriverCode(int descriptor) {
  const std::string path = PlaceOfOpenFile(descriptor);
  BATON_ASSIGN_OR_RETURN(void* const loaded, LoadFile(path, descriptor));
  const auto* const code =
      loaded == nullptr
          ? nullptr
          : static_cast<const BatonDriverCode*>(dlsym(loaded, BATON_DRIVER_CODE_SYMBOL));
  if (code == nullptr) {
    const char* const why = dlerror();
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no code of drivers: ", why != nullptr ? why : "it exports none"));
  }
  if (code->version != BATON_DRIVER_CODE_VERSION || code->bytes < sizeof(*code)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " (release ", code->baton_release, ") has version ", code->version,
        " of what drivers and baton-driver have between them, and this baton-driver ",
        BATON_DRIVER_CODE_VERSION, ": it comes into use with the service's next start"));
  }
  return code;
}

}  // namespace baton::driver_process
