#include "tests/fuzz/hostile_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "lib/base/check.h"
#include "tests/fuzz/shared_reads.h"

namespace baton::fuzz {
namespace {

constexpr uint8_t kUntouched = 0xa7;
void* watched_mapping = nullptr;

}  // namespace

HostileMemory::HostileMemory() : file_(kBytes) {}

void HostileMemory::Clear() {
  std::memset(file_.begin(), 0, kCanary);
  std::memset(file_.begin() + kCanary, kUntouched, kPage);
  watched_ = true;
}

void HostileMemory::Watch() const { SharedReads::Watch(watched_mapping, kBytes); }

void HostileMemory::NoteObject(uint64_t offset, uint64_t bytes) {
  BATON_CHECK(offset <= kBytes && bytes <= kBytes - offset);
  if (offset + bytes > kCanary) watched_ = false;
}

void HostileMemory::Check() const {
  BATON_CHECK(!watched_ || std::all_of(file_.begin() + kCanary, file_.begin() + kBytes,
                                       [](uint8_t byte) { return byte == kUntouched; }));
}

}  // namespace baton::fuzz

// Names that the linker (--wrap) gives. The newest mapping of the file is the one that is watched.
// NOLINTBEGIN
extern "C" {
using baton::fuzz::HostileMemory;
using baton::fuzz::SharedReads;
using baton::fuzz::watched_mapping;
void* __real_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset);
void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  void* const made = __real_mmap(at, bytes, protection, flags, fd, offset);
  if (bytes == HostileMemory::kBytes && fd >= 0 && made != MAP_FAILED) {
    watched_mapping = made;
    SharedReads::Watch(made, bytes);
  }
  return made;
}
int __real_munmap(void* at, size_t bytes);
int __wrap_munmap(void* at, size_t bytes) {
  if (at == watched_mapping) SharedReads::Forget();
  return __real_munmap(at, bytes);
}
}
// NOLINTEND
