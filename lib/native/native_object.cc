#include "lib/native/native_object.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"
#include "lib/base/version.h"
#include "lib/native/host.h"

namespace baton::native {
namespace {

// The last handler of exit(), because it is registered first. The object stays mapped, because its
// libraries may have threads that run to the very end.
void EndHere(int status, void*) {
  fflush(nullptr);
  _exit(status);
}

absl::Status Unfit(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, " cannot be run as a native worker: ", why));
}

// Returns the last error of dlopen or dlsym.
std::string LoaderError() {
  const char* error = dlerror();
  return error != nullptr ? error : "the dynamic linker does not say why";
}

absl::Status CheckDeclaration(const std::string& path, const BatonNativeObject* object) {
  if (object == nullptr) {
    return Unfit(path, absl::StrCat("it exports no ", BATON_NATIVE_OBJECT_SYMBOL,
                                    ": link it with Baton's worker library and with baton_service "
                                    "(worker/service.bzl)"));
  }
  if (object->version == BATON_NATIVE_VERSION && object->bytes >= sizeof(BatonNativeObject)) {
    return absl::OkStatus();
  }
  return Unfit(path,
               absl::StrCat("its worker library (release ", object->baton_release, ") has version ",
                            object->version, " of the native interface with ", object->bytes,
                            " bytes, this driver (release ", kRelease, ") needs version ",
                            BATON_NATIVE_VERSION, " with ", sizeof(BatonNativeObject),
                            ": build it with the driver's release of the worker library"));
}

// Takes the name that a started program would have, for messages, ps and top.
void TakeName(const std::string& path) {
  program_invocation_name = const_cast<char*>(path.c_str());
  program_invocation_short_name = program_invocation_name + path.rfind('/') + 1;
  prctl(PR_SET_NAME, program_invocation_short_name);
}

}  // namespace

absl::StatusOr<NativeObject> NativeObject::Load(const std::string& path) {
  if (path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("the native worker's object is \"", path, "\": give its absolute path"));
  }
  if (on_exit(EndHere, nullptr) != 0) return absl::ResourceExhaustedError("on_exit: no memory");
  // RTLD_NOW binds all symbols: a missing one is an error here, and does not kill the worker later.
  void* const object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    return Unfit(path, absl::StrCat(LoaderError(),
                                    " (the file and the libraries that it needs have to be "
                                    "readable for the worker's user)"));
  }
  absl::Status fits = CheckDeclaration(
      path, static_cast<const BatonNativeObject*>(dlsym(object, BATON_NATIVE_OBJECT_SYMBOL)));
  if (!fits.ok()) return fits;
  const auto main_function = reinterpret_cast<Main>(dlsym(object, "main"));
  if (main_function == nullptr) {
    return Unfit(path,
                 absl::StrCat(LoaderError(), ": define main, and export it (baton_service does)"));
  }
  return NativeObject(path, main_function);
}

void NativeObject::Run(const std::vector<std::string>& arguments) const {
  // These are never freed, because the object may keep pointers to them.
  auto& strings = *new std::vector<std::string>{path_};
  strings.insert(strings.end(), arguments.begin(), arguments.end());
  auto& pointers = *new std::vector<char*>(PointersTo(strings));
  TakeName(strings[0]);
  exit(main_(static_cast<int>(strings.size()), pointers.data(), environ));
}

}  // namespace baton::native
