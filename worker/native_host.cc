#include "worker/native_host.h"

#include <dlfcn.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/base/version.h"

// The driver reads this before it runs the object.
extern "C" const BatonNativeObject baton_native_object = {
    BATON_NATIVE_VERSION, sizeof(BatonNativeObject), baton::kRelease};

namespace baton {

absl::StatusOr<std::unique_ptr<NativeHost>> NativeHost::Find() {
  // Looked up at run time, because a brokered worker's executable has no such function.
  const auto find =
      reinterpret_cast<decltype(&baton_native_host)>(dlsym(RTLD_DEFAULT, BATON_NATIVE_HOST_SYMBOL));
  BatonNativeHost* host = find != nullptr ? find() : nullptr;
  if (host == nullptr) return nullptr;
  if (host->version != BATON_NATIVE_VERSION || host->bytes < sizeof(BatonNativeHost)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the driver (release ", host->baton_release, ") has version ", host->version,
        " of the native interface with ", host->bytes, " bytes, this object's worker library (",
        kRelease, ") needs version ", BATON_NATIVE_VERSION, " with ", sizeof(BatonNativeHost),
        ": build the object with the driver's release of the worker library"));
  }
  return std::unique_ptr<NativeHost>(new NativeHost(host));
}

absl::StatusOr<FileDescriptor> NativeHost::TakeSession() {
  const int socket = std::exchange(host_->socket, -1);
  if (socket >= 0) return FileDescriptor(socket);
  return absl::FailedPreconditionError(
      "a native worker attaches once, in the process that the driver forked: its session was used "
      "before, or this process was forked by the object, which must not go to the background");
}

void NativeHost::Fail(const char* what, int result) {
  const absl::Status cause = result < 0 ? ErrnoStatus(-result, host_->last_error(host_->context))
                                        : absl::InternalError(absl::StrCat("it returned ", result));
  status_ = absl::Status(
      cause.code(), absl::StrCat("the native driver cannot go on (", what, "): ", cause.message()));
}

}  // namespace baton
