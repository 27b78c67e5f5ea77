#include "lib/nic/client.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::nic {

using verbs::mlx5::CompletionQueueLayout;
using verbs::mlx5::QueuePairLayout;

absl::StatusOr<std::unique_ptr<Client>> Client::Open(FileDescriptor socket,
                                                     std::function<void()> turn) {
  BATON_ASSIGN_OR_RETURN(
      CallSocket calls,
      CallSocket::Open(std::move(socket), control::Op::kOpenObjects, std::move(turn)));
  return std::unique_ptr<Client>(new Client(std::move(calls)));
}

template <typename Message>
absl::StatusOr<Client::Made> Client::Make(const Message& message) {
  BATON_ASSIGN_OR_RETURN(CallSocket::Answer answer, calls_.Call(message));
  return Made{answer.value, std::move(answer.descriptor)};
}

absl::StatusOr<uint32_t> Client::AddRegion(const control::Place& place, uint64_t length,
                                           uint64_t address, uint32_t access, uint32_t domain) {
  return Add(control::Region{
      .place = place, .length = length, .address = address, .access = access, .domain = domain});
}

absl::StatusOr<Client::Made> Client::AddRegister(const control::Place& page) {
  return Make(control::Register{.page = page});
}

absl::StatusOr<Client::Made> Client::AddChannel() { return Make(control::Channel()); }

absl::StatusOr<FileDescriptor> Client::AddEventChannel() {
  BATON_ASSIGN_OR_RETURN(Made made, Make(control::Channel{.events = 1}));
  return std::move(made.descriptor);
}

absl::Status Client::ArmLimit(uint32_t srq_number, uint32_t limit) {
  return calls_.Call(control::ArmLimit{.number = srq_number, .limit = limit}).status();
}

absl::StatusOr<uint32_t> Client::AddCompletionQueue(const control::Place& place,
                                                    const CompletionQueueLayout& layout,
                                                    uint32_t reg, uint32_t channel) {
  return Add(control::CompletionQueue{.entries = place.Behind(CompletionQueueLayout::kEntries),
                                      .records = place.Behind(CompletionQueueLayout::kRecords),
                                      .entry_count = layout.entry_count,
                                      .entry_bytes = sizeof(mlx5_cqe64),
                                      .reg = reg,
                                      .channel = channel});
}

absl::StatusOr<uint32_t> Client::AddQueuePair(const control::Place& place,
                                              const QueuePairLayout& layout,
                                              control::QueuePair message) {
  message.sends = place.Behind(QueuePairLayout::kSends);
  message.receives = place.Behind(layout.receives());
  message.records = place.Behind(QueuePairLayout::kRecords);
  message.send_slots = layout.send_slots;
  message.receive_slots = layout.receive_slots;
  message.receive_bytes = layout.receive_bytes;
  return Add(message);
}

absl::Status Client::Modify(uint32_t qp_number, verbs::QueuePairState state) {
  const auto number = static_cast<uint32_t>(state);
  return calls_.Call(control::Modify{.number = qp_number, .state = number}).status();
}

absl::StatusOr<verbs::QueuePairState> Client::Query(uint32_t qp_number) {
  BATON_ASSIGN_OR_RETURN(const CallSocket::Answer answer,
                         calls_.Call(control::Query{.number = qp_number}));
  if (answer.value > static_cast<uint32_t>(verbs::QueuePairState::kError)) {
    return absl::InternalError(absl::StrCat("the NIC knows a state ", answer.value));
  }
  return static_cast<verbs::QueuePairState>(answer.value);
}

absl::Status Client::Destroy(control::Kind kind, uint32_t number) {
  if (calls_.forked()) return absl::OkStatus();
  return calls_.Call(control::Destroy{.kind = static_cast<uint32_t>(kind), .number = number})
      .status();
}

void Client::DestroyQueuePair(uint32_t qp_number) {
  (void)Destroy(control::Kind::kQueuePair, qp_number);
}

}  // namespace baton::nic
