#include "worker/examples/guide/line_client.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::guide {
namespace {

constexpr int kLookMs = 20;
constexpr uint64_t kSendId = ~uint64_t{0};  // a receive's is its number

}  // namespace

LineClient::~LineClient() = default;

absl::StatusOr<std::unique_ptr<LineClient>> LineClient::Connect(
    std::unique_ptr<verbs::Device> device, const verbs::Address& address,
    std::chrono::seconds patience) {
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory,
                         examples::SharedMemory::Allocate(size_t{1 + kWindow} * kMostBytes));
  std::unique_ptr<LineClient> client(
      new LineClient(std::move(device), std::move(memory), patience));
  BATON_RETURN_IF_ERROR(client->Open(address));
  return client;
}

absl::Status LineClient::Open(const verbs::Address& address) {
  BATON_ASSIGN_OR_RETURN(
      region_, device_->RegisterMemory(memory_.base(), memory_.bytes(), verbs::kLocalWrite));
  BATON_ASSIGN_OR_RETURN(queue_, device_->CreateCompletionQueue(2 * kWindow));
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = queue_.get();
  options.max_send_requests = 2;
  options.max_receive_requests = kWindow;
  BATON_ASSIGN_OR_RETURN(queue_pair_, device_->CreateQueuePair(options));
  for (uint64_t number = 0; number < kWindow; ++number) {
    BATON_RETURN_IF_ERROR(PostReceive(number));
  }
  BATON_ASSIGN_OR_RETURN(id_, device_->Connect(address, queue_pair_.get(), {}));
  return WaitFor("the connection", established_);
}

uint8_t* LineClient::ReceiveBuffer(uint64_t number) const {
  return memory_.base() + (1 + number % kWindow) * kMostBytes;
}

absl::Status LineClient::PostReceive(uint64_t number) {
  const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(ReceiveBuffer(number)), kMostBytes,
                                 region_->lkey()};
  const verbs::ReceiveRequest request{number, {&sge, 1}};
  size_t posted = 0;
  return queue_pair_->PostReceive({&request, 1}, &posted);
}

absl::Status LineClient::Post(verbs::SendRequest request, uint32_t length) {
  const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(memory_.base()), length,
                                 region_->lkey()};
  request.wr_id = kSendId;
  request.sges = {&sge, 1};
  size_t posted = 0;
  sent_ = false;
  return queue_pair_->PostSend({&request, 1}, &posted);
}

absl::StatusOr<std::string> LineClient::Ask(std::string_view line) {
  BATON_RETURN_IF_ERROR(Send(line));
  return Receive();
}

absl::Status LineClient::Send(std::string_view line) {
  if (line.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", line.size(), " bytes: choose at most ", kMostBytes));
  }
  std::copy(line.begin(), line.end(), memory_.base());
  BATON_RETURN_IF_ERROR(Post({}, static_cast<uint32_t>(line.size())));
  const absl::Status sent = WaitFor("the send", sent_);
  // Its buffer is in use, and no other can be told from it by its completion.
  if (absl::IsDeadlineExceeded(sent)) end_ = "an earlier send was not acknowledged";
  return sent;
}

absl::StatusOr<std::string> LineClient::Receive() {
  received_ = taken_ < completed_;
  BATON_RETURN_IF_ERROR(WaitFor("an answer", received_));
  const uint64_t number = taken_++;
  std::string line(reinterpret_cast<const char*>(ReceiveBuffer(number)),
                   lengths_[number % kWindow]);
  BATON_RETURN_IF_ERROR(PostReceive(number + kWindow));
  return line;
}

absl::StatusOr<uint64_t> LineClient::Read(uint64_t remote_address, uint32_t rkey) {
  verbs::SendRequest request;
  request.opcode = verbs::Opcode::kRead;
  request.remote_address = remote_address;
  request.rkey = rkey;
  uint64_t value = 0;
  BATON_RETURN_IF_ERROR(Post(request, sizeof(value)));
  BATON_RETURN_IF_ERROR(WaitFor("the READ", sent_));
  std::memcpy(&value, memory_.base(), sizeof(value));
  return value;
}

absl::Status LineClient::Write(uint64_t remote_address, uint32_t rkey, uint64_t value,
                               uint32_t immediate) {
  verbs::SendRequest request;
  request.opcode = verbs::Opcode::kWriteWithImmediate;
  request.remote_address = remote_address;
  request.rkey = rkey;
  request.immediate = immediate;
  std::memcpy(memory_.base(), &value, sizeof(value));
  BATON_RETURN_IF_ERROR(Post(request, sizeof(value)));
  return WaitFor("the WRITE", sent_);
}

absl::Status LineClient::WaitUntilDisconnected() {
  return WaitFor("the end of the connection", ended_);
}

// Takes completions and connection events.
absl::Status LineClient::Look() {
  device_->Progress();
  std::array<verbs::Completion, 4> completions;
  BATON_ASSIGN_OR_RETURN(const int count, queue_->Poll(absl::MakeSpan(completions)));
  for (int i = 0; i < count; ++i) {
    const verbs::Completion& completion = completions[i];
    if (completion.status == verbs::CompletionStatus::kFlushError) continue;  // see its event
    if (completion.status != verbs::CompletionStatus::kSuccess) {
      if (end_.empty()) end_ = verbs::CompletionStatusName(completion.status);
    } else if (completion.wr_id == kSendId) {
      sent_ = true;
    } else {
      received_ = true;
      lengths_[completed_++ % kWindow] = completion.byte_len;
    }
  }
  verbs::CmEvent event;
  while (device_->NextEvent(&event)) {
    if (event.type == verbs::CmEventType::kEstablished) {
      established_ = true;
      continue;
    }
    ended_ = true;
    if (end_.empty()) end_ = event.status.ok() ? "disconnected" : event.status.ToString();
  }
  return absl::OkStatus();
}

absl::Status LineClient::WaitFor(const char* what, const bool& condition) {
  const auto deadline = std::chrono::steady_clock::now() + patience_;
  for (;;) {
    BATON_RETURN_IF_ERROR(Look());
    if (condition) return absl::OkStatus();
    if (!end_.empty() && &condition != &ended_) {
      return absl::UnavailableError(absl::StrCat("instead of ", what, ": ", end_));
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", patience_.count(), " s for ", what));
    }
    // A completion between the look and the request would not be reported: look once more.
    BATON_RETURN_IF_ERROR(queue_->RequestNotification());
    BATON_RETURN_IF_ERROR(Look());
    if (condition) return absl::OkStatus();
    pollfd entry = {device_->event_fd(), POLLIN, 0};
    (void)poll(&entry, 1, kLookMs);
  }
}

}  // namespace baton::guide
