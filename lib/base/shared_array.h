#ifndef LIB_BASE_SHARED_ARRAY_H_
#define LIB_BASE_SHARED_ARRAY_H_

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/mapped_memory.h"
#include "lib/base/status.h"

namespace baton {

// An array in memory that a process shares with those forked from it while SetInherited(true) was
// in effect. Others that it forks do not have the memory. Thread-compatible.
template <typename T>
class SharedArray {
 public:
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

  // The elements are as T{} makes them, and forked processes do not inherit them.
  static absl::StatusOr<SharedArray> Make(size_t count) {
    const size_t bytes = std::max<size_t>(count, 1) * sizeof(T);
    void* const mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return ErrnoStatus(errno, "mmap of an array");
    SharedArray array(MappedMemory(static_cast<uint8_t*>(mapped), {bytes}), count);
    for (T& element : array) new (&element) T{};
    BATON_RETURN_IF_ERROR(array.SetInherited(false));
    return array;
  }

  absl::Status SetInherited(bool inherited) {
    const int advice = inherited ? MADV_DOFORK : MADV_DONTFORK;
    if (madvise(memory_.get(), memory_.get_deleter().bytes, advice) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "madvise of an array");
  }

  size_t size() const { return count_; }
  T* begin() const { return reinterpret_cast<T*>(memory_.get()); }
  T* end() const { return begin() + count_; }
  T& operator[](size_t index) const { return begin()[index]; }

 private:
  SharedArray(MappedMemory memory, size_t count) : memory_(std::move(memory)), count_(count) {}

  MappedMemory memory_;
  size_t count_;
};

}  // namespace baton

#endif  // LIB_BASE_SHARED_ARRAY_H_
