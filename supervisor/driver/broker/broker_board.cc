#include "supervisor/driver/broker/broker_board.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "lib/base/robust_mutex.h"
#include "lib/base/status.h"

namespace baton::driver_process {

void BoardStatus::Store(const absl::Status& status) {
  if (code.load(std::memory_order_relaxed) != 0) return;
  const std::string_view text = MessageOf(status);
  const size_t length = std::min(text.size(), sizeof(message) - 1);
  std::memcpy(message, text.data(), length);
  message[length] = 0;
  code.store(static_cast<uint32_t>(status.raw_code()), std::memory_order_release);
}

absl::Status BoardStatus::Load() const {
  const auto stored = static_cast<absl::StatusCode>(code.load(std::memory_order_acquire));
  return stored == absl::StatusCode::kOk ? absl::OkStatus() : absl::Status(stored, message);
}

absl::StatusOr<SharedBoard> SharedBoard::Make() {
  void* const begin = mmap(nullptr, sizeof(BrokerBoard), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (begin == MAP_FAILED) return ErrnoStatus(errno, "memory that brokers share");
  SharedBoard board;
  board.memory_ = MappedMemory(static_cast<uint8_t*>(begin), Unmap{sizeof(BrokerBoard)});
  new (begin) BrokerBoard;
  const int error = InitRobustMutex(&board->drives);
  if (error != 0) return ErrnoStatus(error, "the lock of brokers");
  return board;
}

absl::Status TakeDrive(BrokerBoard* board) {
  int error = pthread_mutex_lock(&board->drives);
  if (error == EOWNERDEAD) error = pthread_mutex_consistent(&board->drives);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "taking the lock of brokers");
}

}  // namespace baton::driver_process
