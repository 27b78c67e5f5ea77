// The part of a NIC that executes queues, without its sockets: calls are calls, and an input of a
// fuzzer makes no system calls but those of the engine's turns.
#ifndef TESTS_FUZZ_DIRECT_NIC_H_
#define TESTS_FUZZ_DIRECT_NIC_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/call.h"
#include "lib/nic/context.h"
#include "lib/nic/control_format.h"
#include "lib/nic/engine.h"
#include "lib/nic/host.h"
#include "lib/nic/objects.h"
#include "lib/nic/soft_options.h"
#include "lib/verbs/mlx5/commands.h"
#include "tests/lib/nic/loopback_link.h"

namespace baton::fuzz {

// The file of one client, whose objects end with it.
class DirectFile final : public verbs::mlx5::Commands {
 public:
  DirectFile(nic::Owner owner, const nic::Host* host) : context_(owner, host) {}

  // Returns the value of the reply.
  template <typename Message>
  absl::StatusOr<uint32_t> Call(Message message, int passed = -1) {
    message.header = {static_cast<uint16_t>(Message::kOp), sizeof(message), 0};
    return Execute({reinterpret_cast<const uint8_t*>(&message), sizeof(message)}, passed);
  }
  // What came with the latest reply.
  FileDescriptor TakeAnswer() { return std::move(answer_); }
  nic::Context& context() { return context_; }

  absl::Status Modify(uint32_t qp_number, verbs::QueuePairState state) override;
  absl::StatusOr<verbs::QueuePairState> Query(uint32_t qp_number) override;
  void DestroyQueuePair(uint32_t) override {}

 private:
  absl::StatusOr<uint32_t> Execute(absl::Span<const uint8_t> message, int passed);

  nic::Context context_;
  FileDescriptor answer_;
};

class DirectNic {
 public:
  // `complain` is called with the file of a client that does what no correct client does.
  explicit DirectNic(nic::ComplainOf complain);
  DirectNic(const DirectNic&) = delete;
  DirectNic& operator=(const DirectNic&) = delete;

  DirectFile* Open();
  // What nic::Nic::Execute does.
  void Turn();

 private:
  const verbs::soft::SoftDeviceOptions options_ = nic::WithLoopback();
  const FileDescriptor wake_ups_;
  const std::unique_ptr<verbs::soft::Engine> engine_;
  nic::Objects objects_{/*seed=*/1};
  const nic::Host host_;
  std::vector<std::unique_ptr<DirectFile>> files_;  // the owner of each is its place, and 1
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_DIRECT_NIC_H_
