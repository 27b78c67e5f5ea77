#ifndef LIB_NIC_CLIENT_H_
#define LIB_NIC_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/nic/call_socket.h"
#include "lib/nic/control_format.h"
#include "lib/verbs/mlx5/queue_layout.h"
#include "lib/verbs/mlx5/queue_pair.h"

namespace baton::nic {

// Makes objects on a NIC. Errors are those of CallSocket. Thread-compatible.
class Client final : public verbs::mlx5::Commands {
 public:
  // The number of an object, and the descriptor that came with it.
  struct Made {
    uint32_t number = 0;
    FileDescriptor descriptor;
  };

  // `turn`: see CallSocket::Open.
  static absl::StatusOr<std::unique_ptr<Client>> Open(FileDescriptor socket,
                                                      std::function<void()> turn = {});
  // `calls`: see CallSocket::Inherit.
  static std::unique_ptr<Client> Inherit(CallSocket calls) {
    return std::unique_ptr<Client>(new Client(std::move(calls)));
  }

  // A forked process calls it first. Destroying objects in that process then leaves the NIC's
  // objects alone.
  absl::Status AfterFork() { return calls_.AfterFork(); }

  int file() const { return calls_.file(); }
  CallSocket& calls() { return calls_; }
  const CallSocket& calls() const { return calls_; }

  absl::StatusOr<uint32_t> AddFile(int memfd) { return Add(control::File(), memfd); }
  // Returns the key: lkey and rkey.
  absl::StatusOr<uint32_t> AddRegion(const control::Place& place, uint64_t length, uint64_t address,
                                     uint32_t access, uint32_t domain = 0);
  absl::StatusOr<Made> AddRegister(const control::Place& page);  // with the eventfd
  absl::StatusOr<Made> AddChannel();                             // with the socket
  // Returns the socket that tells of events of the file itself.
  absl::StatusOr<FileDescriptor> AddEventChannel();

  // Makes the object that `message` describes, and returns its number. Sets the message's header.
  template <typename Message>
  absl::StatusOr<uint32_t> Add(const Message& message, int passed = -1) {
    BATON_ASSIGN_OR_RETURN(const CallSocket::Answer answer, calls_.Call(message, passed));
    return answer.value;
  }

  // Make a completion queue, or a queue pair, that lies at `place` in the given layout. `message`
  // has what the layout does not say about the queue pair.
  absl::StatusOr<uint32_t> AddCompletionQueue(const control::Place& place,
                                              const verbs::mlx5::CompletionQueueLayout& layout,
                                              uint32_t reg, uint32_t channel);
  absl::StatusOr<uint32_t> AddQueuePair(const control::Place& place,
                                        const verbs::mlx5::QueuePairLayout& layout,
                                        control::QueuePair message);
  absl::Status Destroy(control::Kind kind, uint32_t number);

  absl::Status Modify(uint32_t qp_number, verbs::QueuePairState state) override;
  absl::StatusOr<verbs::QueuePairState> Query(uint32_t qp_number) override;
  void DestroyQueuePair(uint32_t qp_number) override;
  absl::Status ArmLimit(uint32_t srq_number, uint32_t limit) override;

 private:
  explicit Client(CallSocket calls) : calls_(std::move(calls)) {}

  template <typename Message>
  absl::StatusOr<Made> Make(const Message& message);

  CallSocket calls_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_CLIENT_H_
