// The driver of a native worker's shards: it is in the worker's own process, behind the interface
// that `baton-driver`'s executable offers to the objects which it loads (lib/native/host.h).
//
// Thread-compatible: the worker's thread.
#ifndef WORKER_NATIVE_HOST_H_
#define WORKER_NATIVE_HOST_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/native/host.h"

namespace baton {

class NativeHost {
 public:
  // Returns null if this process is no native worker. kFailedPrecondition: the versions do not fit;
  // the message names both.
  static absl::StatusOr<std::unique_ptr<NativeHost>> Find();

  // Returns the session that was made for this worker with the keeper. The second call fails.
  absl::StatusOr<FileDescriptor> TakeSession();
  int event_fd() const { return host_->event_fd; }

  // Returns the first error. After it the functions below do nothing, and the process has to end.
  const absl::Status& status() const { return status_; }

  void Attend() {
    if (status_.ok()) Check("attend", host_->attend(host_->context));
  }
  void Adopt(uint32_t shard, uint64_t epoch) {
    if (status_.ok()) Check("adopt", host_->adopt(host_->context, shard, epoch));
  }
  void Apply(uint32_t shard) {
    if (status_.ok()) Check("apply", host_->apply(host_->context, shard));
  }
  void Poll(uint32_t shard) {
    if (status_.ok()) Check("poll", host_->poll(host_->context, shard));
  }
  void RequestNotification(uint32_t shard) {
    if (status_.ok()) {
      Check("request_notification", host_->request_notification(host_->context, shard));
    }
  }
  void Release(uint32_t shard, uint64_t epoch) {
    if (status_.ok()) Check("release", host_->release(host_->context, shard, epoch));
  }

 private:
  explicit NativeHost(BatonNativeHost* host) : host_(host) {}
  void Check(const char* what, int result) {
    if (result != 0) Fail(what, result);
  }
  void Fail(const char* what, int result);

  BatonNativeHost* const host_;  // owned by the executable; valid while the process lives
  absl::Status status_;
};

}  // namespace baton

#endif  // WORKER_NATIVE_HOST_H_
