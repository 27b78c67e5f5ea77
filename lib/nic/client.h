#ifndef LIB_NIC_CLIENT_H_
#define LIB_NIC_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/control_format.h"
#include "lib/verbs/mlx5/queue_layout.h"
#include "lib/verbs/mlx5/queue_pair.h"

namespace baton::nic {

// Makes objects on a NIC. They end when the last copy of file() is closed, in whichever process.
//
// Every call waits for the reply: kUnavailable, two seconds later at the latest, means that the
// device is lost. All other errors are the NIC's answers. Thread-compatible.
class Client final : public verbs::mlx5::Commands {
 public:
  // The number of an object, and the descriptor that came with it.
  struct Made {
    uint32_t number = 0;
    FileDescriptor descriptor;
  };

  // `turn` (may be empty) is called while a call waits: it turns a NIC of the same thread.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& path);
  static absl::StatusOr<std::unique_ptr<Client>> Open(FileDescriptor socket,
                                                      std::function<void()> turn = {});

  // A forked process calls it first, and gets a call socket of its own. After it, the destruction
  // of objects here takes nothing from the NIC.
  absl::Status AfterFork();

  int file() const { return file_.get(); }

  absl::StatusOr<uint32_t> AddFile(int memfd);
  // Returns the key: lkey and rkey.
  absl::StatusOr<uint32_t> AddRegion(const control::Place& place, uint64_t length, uint64_t address,
                                     uint32_t access, uint32_t domain = 0);
  absl::StatusOr<Made> AddRegister(const control::Place& page);  // with the eventfd
  absl::StatusOr<Made> AddChannel();                             // with the socket

  // A completion queue and a queue pair that lie where the message says. The client sets its
  // header.
  absl::StatusOr<uint32_t> Add(const control::CompletionQueue& message);
  absl::StatusOr<uint32_t> Add(const control::QueuePair& message);

  // A completion queue and a queue pair that lie at `place` as their layouts say.
  absl::StatusOr<uint32_t> AddCompletionQueue(const control::Place& place,
                                              const verbs::mlx5::CompletionQueueLayout& layout,
                                              uint32_t reg, uint32_t channel);
  struct QueuePairOptions {
    uint32_t domain = 0;
    uint32_t reg = 0;
    uint32_t send_queue = 0;
    uint32_t receive_queue = 0;
  };
  absl::StatusOr<uint32_t> AddQueuePair(const control::Place& place,
                                        const verbs::mlx5::QueuePairLayout& layout,
                                        const QueuePairOptions& options);
  absl::Status ConnectQueuePair(uint32_t number, uint32_t peer, uint32_t rnr_retry_count = 7,
                                uint32_t rnr_timer_us = 100);
  absl::Status Destroy(control::Kind kind, uint32_t number);

  absl::Status Modify(uint32_t qp_number, verbs::QueuePairState state) override;
  absl::StatusOr<verbs::QueuePairState> Query(uint32_t qp_number) override;
  void DestroyQueuePair(uint32_t qp_number) override;

 private:
  Client(FileDescriptor file, std::function<void()> turn)
      : file_(std::move(file)), turn_(std::move(turn)) {}

  absl::Status Attach();
  template <typename Message>
  absl::StatusOr<Made> Call(Message message, int passed = -1);
  absl::StatusOr<Made> Wait(int socket, uint32_t tag);
  absl::Status AwaitReadable(int socket, uint64_t deadline_ns) const;
  absl::Status Lost(absl::string_view why);

  FileDescriptor file_;
  const std::function<void()> turn_;
  FileDescriptor calls_;
  uint32_t last_tag_ = 0;
  bool forked_ = false;
  bool lost_ = false;
};

}  // namespace baton::nic

#endif  // LIB_NIC_CLIENT_H_
