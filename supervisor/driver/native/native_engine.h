// The engine of a native service, whose workers operate the queues and move shards among
// themselves, in processes of their own.
//
// Thread-compatible: the driver process's one thread. It never waits.
#ifndef SUPERVISOR_DRIVER_NATIVE_NATIVE_ENGINE_H_
#define SUPERVISOR_DRIVER_NATIVE_NATIVE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/engine/host_engine.h"
#include "supervisor/driver/engine/service_options.h"
#include "supervisor/driver/native/native_driver.h"
#include "supervisor/driver/native/native_shards.h"

namespace baton::driver_process {

class NativeEngine final : public HostEngine {
 public:
  // `arena`, `device` and `listener` outlive it. Makes everything that workers inherit.
  static absl::StatusOr<std::unique_ptr<NativeEngine>> Create(arena::Arena* arena,
                                                              verbs::Device* device,
                                                              EngineListener* listener,
                                                              const ServiceOptions& options);

  // Returns what a worker that is about to be forked inherits.
  NativeInheritance InheritanceOf(uint32_t slot, uint64_t worker_id);

  void Turn() override;
  void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                 Standing standing) override;

 private:
  NativeEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
               const ServiceOptions& options);

  void LookAtSharedReceives();
  void Wake(uint32_t slot) const;
  void WakeDriver(uint32_t shard) override;
  void OnNews(const News& news) override;

  const ServiceOptions options_;
  std::vector<FileDescriptor> wakes_;  // eventfds, by worker slot
  NativeShards shards_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_NATIVE_ENGINE_H_
