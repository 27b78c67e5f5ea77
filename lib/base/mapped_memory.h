#ifndef LIB_BASE_MAPPED_MEMORY_H_
#define LIB_BASE_MAPPED_MEMORY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace baton {

struct Unmap {
  size_t bytes = 0;
  void operator()(uint8_t* begin) const { (void)munmap(begin, bytes); }
};
// Owns memory that mmap(2) has mapped. The deleter has its length.
using MappedMemory = std::unique_ptr<uint8_t, Unmap>;

}  // namespace baton

#endif  // LIB_BASE_MAPPED_MEMORY_H_
