#include "tests/bench/file_ways.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/layout.h"
#include "lib/base/crc32c.h"
#include "lib/base/mapped_memory.h"
#include "lib/base/status.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::bench {
namespace {

absl::Status ReadAll(const SentFile& file, uint64_t offset, uint64_t bytes, uint8_t* to) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = pread(file.fd, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (got == 0) return absl::DataLossError("the file is shorter than it was");
    if (got < 0 && errno != EINTR) return ErrnoStatus(errno, "reading a file");
    if (got > 0) done += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

// Memory of its own, registered for local reads. The region goes first.
struct RegisteredMemory {
  static absl::StatusOr<RegisteredMemory> Make(FileLink* link, uint64_t bytes) {
    BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory, examples::SharedMemory::Allocate(bytes));
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::MemoryRegion> region,
                           link->device().RegisterMemory(memory.base(), memory.bytes(), 0));
    return RegisteredMemory{std::move(memory), std::move(region)};
  }

  examples::SharedMemory memory;
  std::unique_ptr<verbs::MemoryRegion> region;
};

class PlainWay : public FileWay {
 public:
  PlainWay(FileLink* link, SentFile file) : link_(*link), file_(file) {}
  absl::Status SendAndCheck() override {
    BATON_RETURN_IF_ERROR(Send());
    return link_.Check(file_.bytes);
  }

 protected:
  FileLink& link_;
  const SentFile file_;
};

class StaticCopy final : public PlainWay {
 public:
  StaticCopy(FileLink* link, SentFile file, bool checks, RegisteredMemory buffer)
      : PlainWay(link, file), checks_(checks), buffer_(std::move(buffer)) {}

  absl::Status Send() override {
    BATON_RETURN_IF_ERROR(ReadAll(file_, 0, file_.bytes, buffer_.memory.base()));
    if (checks_) crc_ = Crc32c(0, buffer_.memory.base(), file_.bytes);
    BATON_RETURN_IF_ERROR(
        link_.Write(buffer_.memory.base(), buffer_.region->lkey(), file_.bytes, 0));
    return link_.AwaitWrite(link_.last_write());
  }
  uint64_t registered_bytes() const override { return buffer_.memory.bytes(); }

 private:
  const bool checks_;
  const RegisteredMemory buffer_;
  volatile uint32_t crc_ = 0;  // which nobody takes
};

class InPlace final : public PlainWay {
 public:
  InPlace(FileLink* link, SentFile file, bool keeps) : PlainWay(link, file), keeps_(keeps) {}

  absl::Status Register() {
    // Linux up to 6.1 pins for writing whatever is asked.
    void* const mapped =
        mmap(nullptr, file_.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd, 0);
    if (mapped == MAP_FAILED) return ErrnoStatus(errno, "mapping a file");
    memory_ = MappedMemory(static_cast<uint8_t*>(mapped), Unmap{file_.bytes});
    BATON_ASSIGN_OR_RETURN(region_, link_.device().RegisterMemory(mapped, file_.bytes, 0));
    return absl::OkStatus();
  }
  absl::Status Send() override {
    if (!keeps_) BATON_RETURN_IF_ERROR(Register());
    BATON_RETURN_IF_ERROR(link_.Write(memory_.get(), region_->lkey(), file_.bytes, 0));
    BATON_RETURN_IF_ERROR(link_.AwaitWrite(link_.last_write()));
    if (!keeps_) {
      region_.reset();
      memory_.reset();
    }
    return absl::OkStatus();
  }
  uint64_t registered_bytes() const override { return file_.bytes; }

 private:
  const bool keeps_;
  MappedMemory memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;  // goes first
};

class Pipelined final : public PlainWay {
 public:
  Pipelined(FileLink* link, SentFile file, RegisteredMemory buffers, uint32_t pipes)
      : PlainWay(link, file), buffers_(std::move(buffers)), last_writes_(pipes) {}

  absl::Status Send() override {
    const uint64_t piece = buffers_.memory.bytes() / last_writes_.size();
    size_t pipe = 0;
    for (uint64_t offset = 0; offset < file_.bytes; offset += piece) {
      const uint64_t bytes = std::min(piece, file_.bytes - offset);
      uint8_t* const buffer = buffers_.memory.base() + pipe * piece;
      BATON_RETURN_IF_ERROR(link_.AwaitWrite(last_writes_[pipe]));
      BATON_RETURN_IF_ERROR(ReadAll(file_, offset, bytes, buffer));
      BATON_RETURN_IF_ERROR(link_.Write(buffer, buffers_.region->lkey(), bytes, offset));
      last_writes_[pipe] = link_.last_write();
      pipe = (pipe + 1) % last_writes_.size();
    }
    return link_.AwaitWrite(link_.last_write());
  }
  uint64_t registered_bytes() const override { return buffers_.memory.bytes(); }

 private:
  const RegisteredMemory buffers_;
  std::vector<uint64_t> last_writes_;  // of each pipe
};

}  // namespace

absl::StatusOr<std::unique_ptr<FileWay>> MakeStaticCopy(FileLink* link, SentFile file,
                                                        bool checks) {
  BATON_ASSIGN_OR_RETURN(RegisteredMemory buffer, RegisteredMemory::Make(link, file.bytes));
  return std::make_unique<StaticCopy>(link, file, checks, std::move(buffer));
}

absl::StatusOr<std::unique_ptr<FileWay>> MakeInPlace(FileLink* link, SentFile file, bool keeps) {
  auto way = std::make_unique<InPlace>(link, file, keeps);
  if (keeps) BATON_RETURN_IF_ERROR(way->Register());
  return way;
}

absl::StatusOr<std::unique_ptr<FileWay>> MakePipelined(FileLink* link, SentFile file,
                                                       uint32_t pipes, uint32_t pages) {
  const uint64_t bytes = uint64_t{pipes} * pages * arena::kPageBytes;
  BATON_ASSIGN_OR_RETURN(RegisteredMemory buffers, RegisteredMemory::Make(link, bytes));
  return std::make_unique<Pipelined>(link, file, std::move(buffers), pipes);
}

}  // namespace baton::bench
