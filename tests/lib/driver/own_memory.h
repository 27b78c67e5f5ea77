// Memory as a worker registers it on demand: a memfd, and the worker's own mapping of it.
#ifndef TESTS_LIB_DRIVER_OWN_MEMORY_H_
#define TESTS_LIB_DRIVER_OWN_MEMORY_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/mapped_memory.h"

namespace baton::driver::testing {

class OwnMemory {
 public:
  static constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

  explicit OwnMemory(size_t bytes = 64 << 10, int seals = kSeals)
      : file_(memfd_create("own memory", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    BATON_CHECK(file_ && ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0);
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    BATON_CHECK(mapped != MAP_FAILED);
    memory_ = MappedMemory(static_cast<uint8_t*>(mapped), Unmap{bytes});
    // F_SEAL_WRITE cannot be added while there is a writable mapping; F_SEAL_FUTURE_WRITE can.
    BATON_CHECK(seals == 0 || fcntl(file_.get(), F_ADD_SEALS, seals) == 0);
  }

  int fd() const { return file_.get(); }
  uint8_t* data() const { return memory_.get(); }
  void Put(uint64_t offset, std::string_view text) {
    std::copy(text.begin(), text.end(), data() + offset);
  }

 private:
  FileDescriptor file_;
  MappedMemory memory_;
};

}  // namespace baton::driver::testing

#endif  // TESTS_LIB_DRIVER_OWN_MEMORY_H_
