// These types own what libibverbs allocates, and memory that forked processes share.
#ifndef LIB_VERBS_RDMA_OBJECTS_H_
#define LIB_VERBS_RDMA_OBJECTS_H_

#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "absl/status/status.h"
#include "lib/base/mapped_memory.h"
#include "lib/base/status.h"

namespace baton::verbs::rdma {

template <auto kDestroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    (void)kDestroy(object);
  }
};

using DeviceList = std::unique_ptr<ibv_device*, Destroyer<ibv_free_device_list>>;
using VerbsContext = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using ProtectionDomain = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using CompletionChannel = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using VerbsRegion = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using VerbsQueue = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using VerbsSharedQueue = std::unique_ptr<ibv_srq, Destroyer<ibv_destroy_srq>>;
using VerbsQueuePair = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;

// An object that a process shares with those that are forked from it.
template <typename Object>
class SharedPage {
 public:
  static_assert(std::is_trivially_destructible_v<Object>);

  absl::Status Open() {
    void* const page =
        mmap(nullptr, sizeof(Object), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return ErrnoStatus(errno, "mmap");
    page_ = MappedMemory(static_cast<uint8_t*>(page), Unmap{sizeof(Object)});
    object_ = new (page) Object;
    return absl::OkStatus();
  }
  Object* operator->() const { return object_; }

 private:
  MappedMemory page_;
  Object* object_ = nullptr;  // there
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_OBJECTS_H_
