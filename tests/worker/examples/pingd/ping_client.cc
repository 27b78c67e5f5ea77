#include "tests/worker/examples/pingd/ping_client.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::pingd {
namespace {

// A machine that has no processor for us for long has lost nothing.
constexpr std::chrono::seconds kTimeout{120};
constexpr int kLookMs = 20;
constexpr uint64_t kSendId = 1, kReceiveId = 2;
constexpr uint8_t kSpoiltSource = '#', kSpoiltSink = 0xee;

}  // namespace

// ---------------------------------------------------------------- connection

absl::StatusOr<std::unique_ptr<ClientConnection>> ClientConnection::Connect(uint16_t port,
                                                                            uint32_t data_bytes) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device,
                         verbs::testing::OpenDevice(verbs::testing::FabricUnderTest()));
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory,
                         examples::SharedMemory::Allocate(kDataAt + 2 * size_t{data_bytes}));
  std::unique_ptr<ClientConnection> connection(
      new ClientConnection(std::move(device), std::move(memory), data_bytes));
  BATON_RETURN_IF_ERROR(connection->Open(port));
  return connection;
}

absl::Status ClientConnection::Open(uint16_t port) {
  BATON_ASSIGN_OR_RETURN(messages_,
                         device_->RegisterMemory(memory_.base(), kDataAt, verbs::kLocalWrite));
  BATON_ASSIGN_OR_RETURN(data_, device_->RegisterMemory(
                                    source(), 2 * size_t{data_bytes_},
                                    verbs::kLocalWrite | verbs::kRemoteRead | verbs::kRemoteWrite));
  BATON_ASSIGN_OR_RETURN(queue_, device_->CreateCompletionQueue(32));
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = queue_.get();
  options.max_send_requests = 16;
  options.max_receive_requests = 2;
  BATON_ASSIGN_OR_RETURN(queue_pair_, device_->CreateQueuePair(options));
  BATON_RETURN_IF_ERROR(PostReceive());
  verbs::ConnectionParameters parameters;
  parameters.responder_resources = parameters.initiator_depth = 1;
  BATON_ASSIGN_OR_RETURN(id_, device_->Connect({verbs::testing::FabricUnderTest().host, port},
                                               queue_pair_.get(), parameters));
  return WaitFor("the connection", established_);
}

Advertisement ClientConnection::SourceAddress() const {
  return {reinterpret_cast<uint64_t>(source()), data_->rkey(), data_bytes_};
}
Advertisement ClientConnection::SinkAddress() const {
  return {reinterpret_cast<uint64_t>(sink()), data_->rkey(), data_bytes_};
}

absl::Status ClientConnection::PostReceive() {
  const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(memory_.base() + kReceiveAt),
                                 kMessageBytes, messages_->lkey()};
  const verbs::ReceiveRequest request{kReceiveId, {&sge, 1}};
  size_t posted = 0;
  return queue_pair_->PostReceive({&request, 1}, &posted);
}

absl::Status ClientConnection::Send(const Advertisement& advertisement) {
  // rping does not wait for the completion of its last message either, but its buffer is free: the
  // server has answered it.
  const Advertisement message = SwapBytes(advertisement);
  std::memcpy(memory_.base() + kMessageAt, &message, sizeof(message));
  const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(memory_.base() + kMessageAt),
                                 kMessageBytes, messages_->lkey()};
  verbs::SendRequest request;
  request.wr_id = kSendId;
  request.sges = {&sge, 1};
  size_t posted = 0;
  return queue_pair_->PostSend({&request, 1}, &posted);
}

absl::StatusOr<ServerMessage> ClientConnection::Receive() {
  BATON_RETURN_IF_ERROR(WaitFor("a message of the server's", received_));
  received_ = false;
  ServerMessage message;
  std::memcpy(&message, memory_.base() + kReceiveAt, sizeof(message));
  BATON_RETURN_IF_ERROR(PostReceive());
  return message;
}

absl::Status ClientConnection::Disconnect() {
  BATON_RETURN_IF_ERROR(id_->Disconnect());
  return WaitUntilDisconnected();
}

absl::Status ClientConnection::WaitUntilDisconnected() {
  return WaitFor("the end of the connection", disconnected_);
}

// One turn: what has completed, and what has happened.
absl::Status ClientConnection::Look() {
  device_->Progress();
  std::array<verbs::Completion, 8> completions;
  BATON_ASSIGN_OR_RETURN(const int count, queue_->Poll(absl::MakeSpan(completions)));
  for (int i = 0; i < count; ++i) {
    const verbs::Completion& completion = completions[i];
    if (completion.status == verbs::CompletionStatus::kFlushError) continue;
    if (completion.status != verbs::CompletionStatus::kSuccess) {
      end_ = absl::StrCat("a request failed: ",
                          std::string(verbs::CompletionStatusName(completion.status)));
    } else if (completion.wr_id == kReceiveId) {
      if (received_) return absl::InternalError("a message came where none was expected");
      if (completion.byte_len != kMessageBytes) {
        return absl::InternalError(absl::StrCat("a message of ", completion.byte_len, " bytes"));
      }
      received_ = true;
    }
  }
  verbs::CmEvent event;
  while (device_->NextEvent(&event)) {
    established_ |= event.type == verbs::CmEventType::kEstablished;
    disconnected_ |= event.type == verbs::CmEventType::kDisconnected;
    if (event.type != verbs::CmEventType::kEstablished) {
      if (end_.empty()) end_ = absl::StrCat("the server ended it ", event.status.ToString());
    }
  }
  return absl::OkStatus();
}

absl::Status ClientConnection::WaitFor(const char* what, const bool& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  for (;;) {
    BATON_RETURN_IF_ERROR(Look());
    if (condition) return absl::OkStatus();
    if (!end_.empty() && &condition != &disconnected_) {
      return absl::UnavailableError(absl::StrCat("instead of ", what, ": ", end_));
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("waited in vain for ", what));
    }
    BATON_RETURN_IF_ERROR(queue_->RequestNotification());
    BATON_RETURN_IF_ERROR(Look());
    if (condition) return absl::OkStatus();
    pollfd entry = {device_->event_fd(), POLLIN, 0};
    (void)poll(&entry, 1, kLookMs);
  }
}

// ---------------------------------------------------------------- rping

absl::StatusOr<std::unique_ptr<PingClient>> PingClient::Connect(uint16_t port,
                                                                uint32_t data_bytes) {
  BATON_ASSIGN_OR_RETURN(auto connection, ClientConnection::Connect(port, data_bytes));
  std::memset(connection->sink(), kSpoiltSink, data_bytes);
  return std::unique_ptr<PingClient>(new PingClient(std::move(connection)));
}

absl::Status PingClient::AwaitGoAhead() {
  BATON_ASSIGN_OR_RETURN(const ServerMessage message, connection_->Receive());
  if (message.number != ++messages_) {
    return absl::DataLossError(absl::StrCat("message ", message.number, " of the server's where ",
                                            messages_, " was expected"));
  }
  version_ = message.version;
  return absl::OkStatus();
}

absl::Status PingClient::CheckSpoilt() {
  const uint8_t* sink = connection_->sink();
  if (std::all_of(sink, sink + connection_->data_bytes(),
                  [](uint8_t byte) { return byte == kSpoiltSink; })) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("after ping ", pings_, " its data were written once more"));
}

absl::Status PingClient::Ping() {
  const uint32_t size = connection_->data_bytes();
  std::string text = absl::StrCat("rdma-ping-", pings_, ": ");
  for (char c = static_cast<char>('A' + pings_ % 58); text.size() < size; ++c) {
    if (c > 'z') c = 'A';
    text += c;
  }
  text.resize(size);
  text[size - 1] = '\0';
  std::memcpy(connection_->source(), text.data(), size);

  BATON_RETURN_IF_ERROR(connection_->Send(connection_->SourceAddress()));
  BATON_RETURN_IF_ERROR(AwaitGoAhead());
  std::memset(connection_->source(), kSpoiltSource, size);
  BATON_RETURN_IF_ERROR(CheckSpoilt());
  BATON_RETURN_IF_ERROR(connection_->Send(connection_->SinkAddress()));
  BATON_RETURN_IF_ERROR(AwaitGoAhead());
  if (std::memcmp(connection_->sink(), text.data(), size) != 0) {
    return absl::DataLossError(absl::StrCat("the data of ping ", pings_, " came back changed"));
  }
  std::memset(connection_->sink(), kSpoiltSink, size);
  ++pings_;
  return absl::OkStatus();
}

absl::Status PingClient::Disconnect() {
  BATON_RETURN_IF_ERROR(connection_->Disconnect());
  return CheckSpoilt();
}

}  // namespace baton::pingd
