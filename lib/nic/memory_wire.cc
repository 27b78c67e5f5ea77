#include "lib/nic/memory_wire.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton::nic {

absl::StatusOr<std::unique_ptr<MemoryWire>> MemoryWire::Make(FileDescriptor* memfd) {
  memfd->Reset(memfd_create("baton-wire", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!*memfd || ftruncate(memfd->get(), sizeof(MemoryWireLayout)) != 0 ||
      fcntl(memfd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "memory between NICs (see RLIMIT_NOFILE)");
  }
  return Map(memfd->get(), /*maker=*/true);
}

absl::StatusOr<std::unique_ptr<MemoryWire>> MemoryWire::Map(int memfd, bool maker) {
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<MappedFile> file, MappedFile::Map(memfd));
  if (file->size() != sizeof(MemoryWireLayout)) {
    return absl::InvalidArgumentError(absl::StrCat("memory between NICs: ", file->size(),
                                                   " bytes, not ", sizeof(MemoryWireLayout)));
  }
  auto* const layout = reinterpret_cast<MemoryWireLayout*>(
      file->At(0, sizeof(MemoryWireLayout), alignof(MemoryWireLayout)));
  return std::unique_ptr<MemoryWire>(new MemoryWire(std::move(file), layout, maker));
}

// This side's reader sleeps at first, so the peer wakes it until it knows that frames come this
// way.
MemoryWire::MemoryWire(std::shared_ptr<MappedFile> file, MemoryWireLayout* layout, bool maker)
    : file_(std::move(file)),
      out_(maker ? &layout->to_peer : &layout->from_peer,
           maker ? layout->to_peer_bytes : layout->from_peer_bytes),
      in_(maker ? &layout->from_peer : &layout->to_peer,
          maker ? layout->from_peer_bytes : layout->to_peer_bytes) {
  (void)in_.PrepareToSleep();
}

}  // namespace baton::nic
