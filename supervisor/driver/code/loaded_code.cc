#include "supervisor/driver/code/loaded_code.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"

namespace baton::driver_process {
namespace {

bool IsAt(const std::string& path, int descriptor) {
  struct stat there = {}, open = {};
  return stat(path.c_str(), &there) == 0 && fstat(descriptor, &open) == 0 &&
         there.st_dev == open.st_dev && there.st_ino == open.st_ino;
}

// Loads the file by its path if it is still there: debuggers look for it by that name.
void* LoadFile(const std::string& path, int descriptor) {
  if (IsAt(path, descriptor)) {
    void* const loaded = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (loaded == nullptr || IsAt(path, descriptor)) return loaded;
  }
  return dlopen(OpenFilePath(descriptor).c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

absl::StatusOr<const BatonDriverCode*> LoadDriverCode(int descriptor) {
  const std::string path = PlaceOfOpenFile(descriptor);
  void* const loaded = LoadFile(path, descriptor);
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

void PreloadDriverCode(int descriptor) { (void)LoadDriverCode(descriptor); }

}  // namespace baton::driver_process
