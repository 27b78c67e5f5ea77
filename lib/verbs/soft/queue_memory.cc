#include "lib/verbs/soft/queue_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/mapped_memory.h"
#include "lib/base/status.h"

namespace baton::verbs::soft {
namespace {

// A page takes memory once something is written to it. Inherited files are smaller, because a
// native worker touches all pages that it has before it waits (lib/native/mappings.h).
constexpr uint64_t kFileBytes = 64 << 20;
constexpr uint64_t kInheritedFileBytes = 4 << 20;
constexpr uint64_t kPage = 4096;

constexpr uint64_t RoundUp(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

class QueueMemory::File {
 public:
  File(MappedMemory memory, uint32_t number) : memory_(std::move(memory)), number_(number) {}

  uint64_t size() const { return memory_.get_deleter().bytes; }
  // madvise fails only for memory that is not mapped.
  void KeepFromChildren() const { madvise(memory_.get(), size(), MADV_DONTFORK); }
  Place At(uint64_t offset, uint64_t bytes) const {
    return {memory_.get() + offset, bytes, {number_, 0, offset}};
  }

 private:
  const MappedMemory memory_;
  const uint32_t number_;
};

QueueMemory::QueueMemory(nic::Client* client, bool inherited)
    : client_(client), inherited_(inherited) {}
QueueMemory::~QueueMemory() = default;

void QueueMemory::KeepFromChildren() const {
  for (const auto& file : files_) file->KeepFromChildren();
}

absl::Status QueueMemory::AddFile(uint64_t bytes) {
  const uint64_t size =
      std::max(inherited_ ? kInheritedFileBytes : kFileBytes, RoundUp(bytes, kPage));
  const FileDescriptor fd(memfd_create("baton-queues", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoStatus(errno, absl::StrCat("a memfd of ", size, " bytes for queues"));
  }
  void* const begin = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (begin == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mapping ", size, " bytes for queues"));
  }
  MappedMemory memory(static_cast<uint8_t*>(begin), Unmap{size});
  // Core dumps must not contain inline data. madvise fails only for memory that is not mapped.
  madvise(begin, size, MADV_DONTDUMP);
  BATON_ASSIGN_OR_RETURN(const uint32_t number, client_->AddFile(fd.get()));
  files_.push_back(std::make_unique<File>(std::move(memory), number));
  if (!inherited_) files_.back()->KeepFromChildren();
  used_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<QueueMemory::Block> QueueMemory::Allocate(uint64_t bytes, uint64_t alignment) {
  // Blocks of one size have one alignment, because doorbell pages and queues never have the same
  // size.
  const uint64_t size = RoundUp(bytes, alignment);
  if (std::vector<Place>& free = free_[size]; !free.empty()) {
    const Place place = free.back();
    free.pop_back();
    std::memset(place.begin, 0, place.bytes);
    return Block(this, place);
  }
  if (files_.empty() || RoundUp(used_, alignment) + size > files_.back()->size()) {
    BATON_RETURN_IF_ERROR(AddFile(size));
  }
  const uint64_t at = RoundUp(used_, alignment);
  used_ = at + size;
  return Block(this, files_.back()->At(at, size));
}

}  // namespace baton::verbs::soft
