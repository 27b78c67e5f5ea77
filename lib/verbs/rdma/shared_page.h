// An object that a process shares with those that are forked from it.
#ifndef LIB_VERBS_RDMA_SHARED_PAGE_H_
#define LIB_VERBS_RDMA_SHARED_PAGE_H_

#include <sys/mman.h>

#include <cerrno>
#include <new>
#include <type_traits>

#include "absl/status/status.h"
#include "lib/base/errno_status.h"

namespace baton::verbs::rdma {

template <typename Object>
class SharedPage {
 public:
  static_assert(std::is_trivially_destructible_v<Object>);

  SharedPage() = default;
  ~SharedPage() {
    if (object_ != nullptr) (void)munmap(object_, sizeof(Object));
  }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  absl::Status Open() {
    void* const page =
        mmap(nullptr, sizeof(Object), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return ErrnoStatus(errno, "mmap");
    object_ = new (page) Object;
    return absl::OkStatus();
  }
  Object* operator->() const { return object_; }

 private:
  Object* object_ = nullptr;
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_SHARED_PAGE_H_
