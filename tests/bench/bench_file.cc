#include "tests/bench/bench_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/mapped_memory.h"
#include "lib/base/status.h"

namespace baton::bench {
namespace {

uint64_t WordAt(uint64_t index) { return (index + 1) * 0x9e3779b97f4a7c15u; }

}  // namespace

absl::StatusOr<FileDescriptor> MakeFile(uint64_t bytes) {
  FileDescriptor file(memfd_create("bench-file", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("a file of ", bytes, " bytes in memory"));
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoStatus(errno, "sealing a file in memory");
  }
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return ErrnoStatus(errno, "mapping a file");
  const MappedMemory memory(static_cast<uint8_t*>(mapped), Unmap{bytes});
  for (uint64_t offset = 0; offset < bytes; offset += sizeof(uint64_t)) {
    const uint64_t word = WordAt(offset / sizeof(uint64_t));
    std::memcpy(memory.get() + offset, &word, sizeof(word));
  }
  return file;
}

std::optional<uint64_t> FirstWrong(absl::Span<const uint8_t> memory, uint64_t offset) {
  for (size_t i = 0; i < memory.size(); i += sizeof(uint64_t)) {
    const uint64_t word = WordAt((offset + i) / sizeof(uint64_t));
    if (std::memcmp(memory.data() + i, &word, sizeof(word)) != 0) return offset + i;
  }
  return std::nullopt;
}

}  // namespace baton::bench
