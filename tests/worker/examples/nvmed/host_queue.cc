#include "tests/worker/examples/nvmed/host_queue.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::nvmed {
namespace {

// A machine that has no processor for us for long has lost nothing.
constexpr std::chrono::seconds kTimeout{120};
constexpr int kLookMs = 20;
constexpr uint32_t kCommandBytes = sizeof(SubmissionEntry);
constexpr uint32_t kResponseRoom = 64;  // more than an answer has, to see longer ones
constexpr uint64_t kSendId = 1 << 16;   // those of receives are below
constexpr uint8_t kSpoilt = 0xee;
// Command ids go round; of so many back it is known that they were answered.
constexpr uint16_t kRemembered = 16384;

}  // namespace

// ---------------------------------------------------------------- fabric

absl::StatusOr<std::unique_ptr<HostFabric>> HostFabric::Open() {
  const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device, verbs::testing::OpenDevice(fabric));
  // Keys of ordinary regions cannot be invalidated by peers; the soft device has a right for it.
  return std::unique_ptr<HostFabric>(new HostFabric(std::move(device), fabric.device == "soft"));
}

absl::Status HostFabric::Look() {
  device_->Progress();
  verbs::CmEvent event;
  while (device_->NextEvent(&event)) {
    if (event.id != nullptr) static_cast<HostQueue*>(event.id->context)->OnEvent(event);
  }
  absl::Status first;
  for (HostQueue* queue : queues_) first.Update(queue->Look());
  return first;
}

absl::Status HostFabric::WaitFor(const std::string& what, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  for (;;) {
    BATON_RETURN_IF_ERROR(Look());
    if (condition()) return absl::OkStatus();
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("waited in vain for ", what));
    }
    for (HostQueue* queue : queues_) {
      BATON_RETURN_IF_ERROR(queue->completions_->RequestNotification());
    }
    BATON_RETURN_IF_ERROR(Look());
    if (condition()) return absl::OkStatus();
    pollfd entry = {device_->event_fd(), POLLIN, 0};
    (void)poll(&entry, 1, kLookMs);
  }
}

// ---------------------------------------------------------------- connection

HostQueue::HostQueue(HostFabric& fabric, const HostQueueOptions& options,
                     examples::SharedMemory memory)
    : fabric_(fabric), options_(options), memory_(std::move(memory)) {
  fabric_.queues_.insert(this);
}

HostQueue::~HostQueue() {
  fabric_.queues_.erase(this);
  connection_.reset();
  queue_pair_.reset();
}

uint8_t* HostQueue::capsule(uint16_t slot) const {
  return memory_.base() + size_t{slot} * (kCommandBytes + options_.in_capsule_bytes);
}
uint8_t* HostQueue::response(uint16_t index) const {
  return capsule(options_.entries) + size_t{index} * kResponseRoom;
}
uint8_t* HostQueue::data(uint16_t slot) const {
  return response(receives()) + size_t{slot} * options_.data_bytes;
}

absl::StatusOr<std::unique_ptr<HostQueue>> HostQueue::Open(HostFabric& fabric,
                                                           const HostQueueOptions& options) {
  const size_t bytes =
      size_t{options.entries} * (kCommandBytes + options.in_capsule_bytes + options.data_bytes) +
      (size_t{options.entries} + 8) * kResponseRoom;
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory, examples::SharedMemory::Allocate(bytes));
  std::unique_ptr<HostQueue> queue(new HostQueue(fabric, options, std::move(memory)));
  BATON_RETURN_IF_ERROR(queue->Connect());
  return queue;
}

absl::Status HostQueue::Connect() {
  verbs::Device& device = fabric_.device();
  const size_t message_bytes = static_cast<size_t>(data(0) - memory_.base());
  BATON_ASSIGN_OR_RETURN(messages_,
                         device.RegisterMemory(memory_.base(), message_bytes, verbs::kLocalWrite));
  regions_.resize(options_.entries);
  spoilt_.resize(options_.entries);
  // One fewer than entries may be outstanding: a full queue looks like an empty one.
  for (uint16_t slot = 0; slot + 1 < options_.entries; ++slot) {
    BATON_RETURN_IF_ERROR(Register(slot));
    free_.push_back(slot);
  }
  BATON_ASSIGN_OR_RETURN(completions_,
                         device.CreateCompletionQueue(uint32_t{4} * options_.entries + 16));
  verbs::QueuePairOptions queue_pair;
  queue_pair.send_queue = queue_pair.receive_queue = completions_.get();
  queue_pair.max_send_requests = uint32_t{2} * options_.entries;
  queue_pair.max_receive_requests = receives();
  BATON_ASSIGN_OR_RETURN(queue_pair_, device.CreateQueuePair(queue_pair));
  for (uint16_t i = 0; i < receives(); ++i) BATON_RETURN_IF_ERROR(PostReceive(i));

  RdmaRequest request = {};
  request.qid = options_.id;
  request.hrqsize = options_.entries;
  request.hsqsize = static_cast<uint16_t>(options_.entries - 1);
  verbs::ConnectionParameters parameters;
  parameters.private_data = options_.private_data;
  if (parameters.private_data.empty()) {
    parameters.private_data.assign(reinterpret_cast<const char*>(&request), sizeof(request));
  }
  const verbs::Address address{verbs::testing::FabricUnderTest().host, options_.port};
  BATON_ASSIGN_OR_RETURN(connection_, device.Connect(address, queue_pair_.get(), parameters));
  connection_->context = this;
  BATON_RETURN_IF_ERROR(fabric_.WaitFor(absl::StrCat("the connection of queue ", options_.id),
                                        [&] { return established_ || !end_.empty(); }));
  if (rejected_) return absl::AbortedError(absl::StrCat("rejected with status ", *rejected_));
  return established_ ? absl::OkStatus() : absl::UnavailableError(end_);
}

void HostQueue::OnEvent(const verbs::CmEvent& event) {
  switch (event.type) {
    case verbs::CmEventType::kEstablished: {
      established_ = true;
      RdmaAccept accept = {};
      if (event.private_data.size() < sizeof(accept)) {
        finding_ = absl::DataLossError("an accept without the transport's private data");
        return;
      }
      std::memcpy(&accept, event.private_data.data(), sizeof(accept));
      if (accept.recfmt != 0 || accept.crqsize < options_.entries) {
        finding_ = absl::DataLossError(absl::StrCat("an accept of format ", accept.recfmt, " with ",
                                                    accept.crqsize, " entries, of a queue of ",
                                                    options_.entries));
      }
      return;
    }
    case verbs::CmEventType::kRejected: {
      RdmaReject reject = {};
      std::memcpy(&reject, event.private_data.data(),
                  std::min(event.private_data.size(), sizeof(reject)));
      rejected_ = static_cast<uint16_t>(reject.sts);
      break;
    }
    case verbs::CmEventType::kDisconnected:
      disconnected_ = true;
      break;
    default:
      break;
  }
  if (end_.empty()) end_ = absl::StrCat("the connection has ended ", event.status.ToString());
}

absl::Status HostQueue::Disconnect() {
  BATON_RETURN_IF_ERROR(connection_->Disconnect());
  return WaitUntilDisconnected();
}

absl::Status HostQueue::WaitUntilDisconnected() {
  return fabric_.WaitFor(absl::StrCat("the end of queue ", options_.id),
                         [&] { return disconnected_; });
}

// ---------------------------------------------------------------- commands

absl::Status HostQueue::Register(uint16_t slot) {
  uint32_t access = verbs::kLocalWrite | verbs::kRemoteRead | verbs::kRemoteWrite;
  if (fabric_.invalidates()) access |= verbs::soft::kSoftRemoteInvalidate;
  regions_[slot].reset();
  BATON_ASSIGN_OR_RETURN(regions_[slot],
                         fabric_.device().RegisterMemory(data(slot), options_.data_bytes, access));
  return absl::OkStatus();
}

absl::Status HostQueue::PostReceive(uint16_t index) {
  const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(response(index)), kResponseRoom,
                                 messages_->lkey()};
  const verbs::ReceiveRequest request{index, {&sge, 1}};
  size_t posted = 0;
  return queue_pair_->PostReceive({&request, 1}, &posted);
}

absl::Status HostQueue::PostSend(uint16_t slot, uint32_t bytes) {
  const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(capsule(slot)), bytes,
                                 messages_->lkey()};
  verbs::SendRequest request;
  request.wr_id = kSendId;
  request.sges = {&sge, 1};
  size_t posted = 0;
  return queue_pair_->PostSend({&request, 1}, &posted);
}

absl::Status HostQueue::SendBytes(absl::Span<const uint8_t> bytes) {
  if (free_.empty()) return absl::ResourceExhaustedError("the queue is full");
  std::copy(bytes.begin(), bytes.end(), capsule(free_.back()));
  return PostSend(free_.back(), static_cast<uint32_t>(bytes.size()));
}

void HostQueue::PutData(const Transfer& transfer, Command* command, SubmissionEntry* entry) {
  const auto bytes = static_cast<uint32_t>(transfer.data.size());
  command->kind = transfer.kind;
  command->length = transfer.kind == Transfer::Kind::kToHost ? transfer.length : bytes;
  command->invalidate_key = transfer.invalidate_key && fabric_.invalidates();
  switch (transfer.kind) {
    case Transfer::Kind::kNone:
      return;
    case Transfer::Kind::kInCapsule:
      std::copy(transfer.data.begin(), transfer.data.end(), capsule(command->slot) + kCommandBytes);
      entry->sgl1 = InCapsuleSgl(0, bytes);
      return;
    case Transfer::Kind::kToController:
      std::copy(transfer.data.begin(), transfer.data.end(), data(command->slot));
      break;
    case Transfer::Kind::kToHost:
      std::memset(data(command->slot), kSpoilt, command->length);
      break;
  }
  entry->sgl1 = KeyedSgl(reinterpret_cast<uint64_t>(data(command->slot)), command->length,
                         regions_[command->slot]->rkey(), command->invalidate_key);
}

absl::StatusOr<uint16_t> HostQueue::Submit(const SubmissionEntry& command,
                                           const Transfer& transfer) {
  BATON_RETURN_IF_ERROR(finding_);
  if (!end_.empty()) return absl::UnavailableError(end_);
  if (free_.empty()) return absl::ResourceExhaustedError("the queue is full");
  Command submitted;
  submitted.slot = free_.back();
  BATON_RETURN_IF_ERROR(CheckSpoilt(submitted.slot));
  free_.pop_back();
  SubmissionEntry entry = command;
  while (commands_.contains(next_cid_)) ++next_cid_;  // of one that is held for long
  entry.cid = next_cid_++;
  entry.flags |= static_cast<uint8_t>(Psdt::kSglContiguousMetadata) << kPsdtShift;
  PutData(transfer, &submitted, &entry);
  if (transfer.spoil) transfer.spoil(&entry);
  std::memcpy(capsule(submitted.slot), &entry, sizeof(entry));
  given_.erase(static_cast<uint16_t>(entry.cid + kRemembered));
  commands_[entry.cid] = submitted;
  const bool in_capsule = transfer.kind == Transfer::Kind::kInCapsule;
  BATON_RETURN_IF_ERROR(
      PostSend(submitted.slot, kCommandBytes + (in_capsule ? submitted.length : 0)));
  return entry.cid;
}

// What the command before had there is as it was left.
absl::Status HostQueue::CheckSpoilt(uint16_t slot) {
  const uint8_t* const begin = data(slot);
  const size_t bytes = spoilt_[slot];
  // Each byte is the one before it.
  if (bytes == 0 || (begin[0] == kSpoilt && std::memcmp(begin, begin + 1, bytes - 1) == 0)) {
    return absl::OkStatus();
  }
  return Find(absl::DataLossError(
      absl::StrCat("queue ", options_.id, ": data of a command were written after its answer")));
}

void HostQueue::ForgetHeld(uint16_t cid) {
  const auto command = commands_.find(cid);
  if (command == commands_.end()) return;
  free_.push_back(command->second.slot);
  commands_.erase(command);
}

std::optional<Response> HostQueue::Take() {
  if (taken_.empty()) return std::nullopt;
  Response response = std::move(taken_.front());
  taken_.pop_front();
  return response;
}

absl::StatusOr<Response> HostQueue::Await(uint16_t cid) {
  const auto answer = [&] {
    return std::find_if(taken_.begin(), taken_.end(),
                        [&](const Response& one) { return one.cid == cid; });
  };
  BATON_RETURN_IF_ERROR(
      fabric_.WaitFor(absl::StrCat("the answer to command ", cid, " of queue ", options_.id),
                      [&] { return answer() != taken_.end() || !end_.empty(); }));
  const auto found = answer();
  if (found == taken_.end()) {
    return absl::UnavailableError(absl::StrCat("instead of an answer: ", end_));
  }
  Response response = std::move(*found);
  taken_.erase(found);
  return response;
}

absl::StatusOr<Response> HostQueue::Execute(const SubmissionEntry& command,
                                            const Transfer& transfer) {
  BATON_ASSIGN_OR_RETURN(const uint16_t cid, Submit(command, transfer));
  return Await(cid);
}

// ---------------------------------------------------------------- answers

absl::Status HostQueue::Find(const absl::Status& finding) {
  finding_.Update(finding);
  return finding_;
}

absl::Status HostQueue::Look() {
  std::array<verbs::Completion, 16> completions;
  while (finding_.ok() && completions_ != nullptr) {
    BATON_ASSIGN_OR_RETURN(const int count, completions_->Poll(absl::MakeSpan(completions)));
    if (count == 0) break;
    for (int i = 0; i < count && finding_.ok(); ++i) {
      const verbs::Completion& completion = completions[i];
      if (completion.status == verbs::CompletionStatus::kFlushError) continue;
      if (completion.status != verbs::CompletionStatus::kSuccess) {
        if (end_.empty()) {
          end_ = absl::StrCat("a request failed: ",
                              std::string(verbs::CompletionStatusName(completion.status)));
        }
        continue;
      }
      if (completion.wr_id == kSendId) continue;
      CompletionEntry entry;
      if (completion.byte_len != sizeof(entry)) {
        return Find(absl::DataLossError(
            absl::StrCat("queue ", options_.id, ": an answer of ", completion.byte_len, " bytes")));
      }
      const auto index = static_cast<uint16_t>(completion.wr_id);
      std::memcpy(&entry, response(index), sizeof(entry));
      (void)PostReceive(index);  // of a connection that has ended it is refused
      finding_.Update(OnResponse(
          entry, completion.has_invalidate ? std::optional(completion.immediate) : std::nullopt));
    }
  }
  return finding_;
}

absl::Status HostQueue::OnResponse(const CompletionEntry& entry,
                                   std::optional<uint32_t> invalidated) {
  const auto place = commands_.find(entry.cid);
  if (place == commands_.end()) {
    return absl::DataLossError(
        absl::StrCat("queue ", options_.id, ": ", given_.contains(entry.cid) ? "a second" : "an",
                     " answer to command ", entry.cid, ", status ", entry.status,
                     given_.contains(entry.cid) ? "" : ", which nobody has sent"));
  }
  const uint64_t head = ++answered_ % options_.entries;
  if (flow_control_ && entry.sqhd != head) {
    return absl::DataLossError(absl::StrCat("queue ", options_.id, ": head ", entry.sqhd,
                                            " in the answer to command ", entry.cid, ", not ", head,
                                            ": answers were lost or repeated"));
  }
  const Command command = place->second;
  commands_.erase(place);
  given_.insert(entry.cid);
  Response response;
  response.cid = entry.cid;
  response.status = CodeOf(entry.status);
  response.do_not_retry = (entry.status & kStatusDoNotRetry) != 0;
  response.result = entry.result;
  response.invalidated = invalidated.has_value();
  if (command.kind == Transfer::Kind::kToHost) {
    response.data.assign(data(command.slot), data(command.slot) + command.length);
  }
  BATON_RETURN_IF_ERROR(CheckKey(command, response, invalidated));
  std::memset(data(command.slot), kSpoilt, command.length);
  spoilt_[command.slot] = command.length;
  // The last that is free: it is used again as late as possible.
  free_.insert(free_.begin(), command.slot);
  taken_.push_back(std::move(response));
  return absl::OkStatus();
}

absl::Status HostQueue::CheckKey(const Command& command, const Response& response,
                                 std::optional<uint32_t> invalidated) {
  if (invalidated) {
    const uint32_t key = regions_[command.slot]->rkey();
    if (!command.invalidate_key || *invalidated != key) {
      return absl::DataLossError(absl::StrCat("queue ", options_.id, ": key ", *invalidated,
                                              " was invalidated by the answer to command ",
                                              response.cid, ", whose key is ", key));
    }
    return Register(command.slot);
  }
  // One that is refused need not: its data pointer may never have been looked at.
  if (command.invalidate_key && response.ok()) {
    return absl::DataLossError(absl::StrCat("queue ", options_.id, ": the key of command ",
                                            response.cid, " was not invalidated"));
  }
  return absl::OkStatus();
}

}  // namespace baton::nvmed
