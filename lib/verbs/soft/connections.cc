#include "lib/verbs/soft/connections.h"

#include <sys/socket.h>

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/nic/control_socket.h"
#include "lib/nic/wire.h"
#include "lib/verbs/port_taken.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs::soft {
namespace {

using nic::ToControl;
using nic::control::EventType;
using nic::control::Kind;

absl::Status CheckPrivateData(absl::string_view call, size_t bytes, uint32_t limit) {
  if (bytes <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": the size of the private data is ", bytes, ", the limit is ", limit));
}

}  // namespace

// ---------------------------------------------------------------- listener

class SoftConnections::SoftListener final : public Listener {
 public:
  SoftListener(SoftConnections* connections, uint32_t number, Address address, int backlog)
      : connections_(connections),
        number_(number),
        address_(std::move(address)),
        backlog_(backlog) {
    connections_->listeners_[number_] = this;
  }
  ~SoftListener() override {
    connections_->listeners_.erase(number_);
    connections_->Destroy(Kind::kListener, number_);
  }

  Address address() const override { return address_; }
  // A former opener has stopped listening, and nobody knows that.
  absl::Status ListenAgain() {
    const nic::control::Listen message = {.address = ToControl(address_), .backlog = backlog_};
    BATON_ASSIGN_OR_RETURN(const nic::CallSocket::Answer answer,
                           connections_->calls_.Call(message));
    connections_->listeners_.erase(number_);
    number_ = answer.value;
    connections_->listeners_[number_] = this;
    return absl::OkStatus();
  }

 private:
  SoftConnections* const connections_;
  uint32_t number_;
  const Address address_;
  const int backlog_;
};

// ---------------------------------------------------------------- id

SoftConnectionId::SoftConnectionId(SoftConnections* connections, uint32_t number)
    : connections_(connections), number_(number), openers_(connections->openers_) {
  connections_->ids_[number_] = this;
}

SoftConnectionId::~SoftConnectionId() {
  if (openers_ != connections_->openers_) return;
  connections_->ids_.erase(number_);
  connections_->Destroy(Kind::kConnectionId, number_);
}

absl::Status SoftConnectionId::Accept(QueuePair* queue_pair,
                                      const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(
      CheckPrivateData("accept", parameters.private_data.size(), kMaxAcceptPrivateData));
  const nic::control::Accept message = {
      .id = number_, .queue_pair = queue_pair->number(), .parameters = ToControl(parameters)};
  BATON_RETURN_IF_ERROR(connections_->calls_.Call(message).status());
  queue_pair_ = queue_pair;
  return absl::OkStatus();
}

absl::Status SoftConnectionId::Reject(std::string_view private_data) {
  BATON_RETURN_IF_ERROR(CheckPrivateData("reject", private_data.size(), kMaxRejectPrivateData));
  ConnectionParameters parameters;
  parameters.private_data = std::string(private_data);
  const nic::control::Reject message = {.id = number_, .parameters = ToControl(parameters)};
  return connections_->calls_.Call(message).status();
}

absl::Status SoftConnectionId::Disconnect() {
  return connections_->calls_.Call(nic::control::Disconnect{.id = number_}).status();
}

void SoftConnectionId::Note(const nic::control::Event& event) {
  local_ = nic::FromControl(event.local);
  peer_ = nic::FromControl(event.peer);
  depths_ = {event.our_reads, event.their_reads};
}

// ---------------------------------------------------------------- all of them

absl::StatusOr<std::unique_ptr<SoftConnections>> SoftConnections::Make(nic::CallSocket calls) {
  BATON_ASSIGN_OR_RETURN(nic::CallSocket::Answer answer,
                         calls.Call(nic::control::Channel{.events = 1}));
  return std::unique_ptr<SoftConnections>(
      new SoftConnections(std::move(calls), std::move(answer.descriptor)));
}

void SoftConnections::Destroy(Kind kind, uint32_t number) {
  if (calls_.forked()) return;
  (void)calls_.Call(nic::control::Destroy{.kind = static_cast<uint32_t>(kind), .number = number});
}

absl::StatusOr<std::unique_ptr<Listener>> SoftConnections::Listen(const Address& address,
                                                                  int backlog) {
  BATON_RETURN_IF_ERROR(ToSocketAddress(address).status());
  const absl::StatusOr<nic::CallSocket::Answer> answer =
      calls_.Call(nic::control::Listen{.address = ToControl(address), .backlog = backlog});
  // The NIC's reply has no room for the payload that NamePortOwner reads, so the status is made
  // here.
  if (absl::IsAlreadyExists(answer.status())) return PortTakenError({PortSpace::kTcp, address});
  if (!answer.ok()) return answer.status();
  return std::make_unique<SoftListener>(
      this, answer->value, Address{address.host, static_cast<uint16_t>(answer->more)}, backlog);
}

absl::StatusOr<std::unique_ptr<ConnectionId>> SoftConnections::Connect(
    const Address& address, QueuePair* queue_pair, const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(
      CheckPrivateData("connect", parameters.private_data.size(), kMaxConnectPrivateData));
  const nic::control::Connect message = {.address = ToControl(address),
                                         .queue_pair = queue_pair->number(),
                                         .ask_route = parameters.check_route ? 1u : 0u,
                                         .parameters = ToControl(parameters)};
  BATON_ASSIGN_OR_RETURN(const nic::CallSocket::Answer answer, calls_.Call(message));
  auto id = std::make_unique<SoftConnectionId>(this, answer.value);
  id->queue_pair_ = queue_pair;
  id->peer_ = address;
  id->check_route_ = parameters.check_route;
  return id;
}

// A byte that is read here stands for events that NextEvent has not taken yet.
bool SoftConnections::LookForEvents() {
  uint8_t bytes[64];
  if (recv(channel_.get(), bytes, sizeof(bytes), MSG_DONTWAIT) > 0) more_ = true;
  return more_;
}

bool SoftConnections::NextEvent(CmEvent* event) {
  while (more_) {
    const absl::StatusOr<nic::CallSocket::Answer> answer =
        calls_.Call(nic::control::NextEvent{.handled = given_ ? 1u : 0u});
    given_ = more_ = answer.ok() && answer->value > 0;
    if (!answer.ok() || !answer->event.has_value()) return false;
    *event = {};
    if (Translate(*answer->event, event)) return true;
  }
  return false;
}

bool SoftConnections::Translate(const nic::control::Event& message, CmEvent* event) {
  const auto type = static_cast<EventType>(message.type);
  if (type == EventType::kNone || message.type > static_cast<uint32_t>(EventType::kRouteKnown)) {
    return false;
  }
  if (type == EventType::kConnectRequest) return TranslateRequest(message, event);
  const auto found = ids_.find(message.id);
  if (found == ids_.end()) return false;
  SoftConnectionId* const id = found->second;
  id->Note(message);
  if (type == EventType::kRouteKnown) {
    AnswerRoute(id);
    return false;
  }
  event->type = static_cast<CmEventType>(message.type - 1);
  event->id = id;
  event->private_data.assign(reinterpret_cast<const char*>(message.private_data),
                             message.private_bytes);
  if (message.error != 0) {
    event->status = absl::Status(nic::CodeOf(message.error), nic::TextOf(message.text));
  }
  if (type == EventType::kUnreachable && !id->refused_.ok()) event->status = id->refused_;
  if (type == EventType::kEstablished && id->queue_pair_ != nullptr) {
    id->queue_pair_->NoteConnected(id->depths_.ours > 0);
  }
  return true;
}

bool SoftConnections::TranslateRequest(const nic::control::Event& message, CmEvent* event) {
  if (ids_.contains(message.id)) return false;  // a former opener has dealt with it
  auto id = std::make_unique<SoftConnectionId>(this, message.id);
  id->Note(message);
  const auto listener = listeners_.find(message.listener);
  if (listener == listeners_.end()) return false;  // destroying `id` rejects the request
  event->type = CmEventType::kConnectRequest;
  event->listener = listener->second;
  event->new_id = std::move(id);
  event->private_data.assign(reinterpret_cast<const char*>(message.private_data),
                             message.private_bytes);
  return true;
}

absl::Status SoftConnections::BeginTakeOver() {
  ++openers_;
  return calls_.BeginTakeOver();
}

absl::Status SoftConnections::TakeOver() {
  ids_.clear();
  given_ = false;
  more_ = true;  // the former opener may have read what the channel told
  return calls_.TakeOver();
}

absl::StatusOr<Device::AdoptedId> SoftConnections::AdoptId(Device::FormerId former) {
  const uint32_t number = former.number;
  if (number == 0) return absl::NotFoundError("no connection has number 0");
  BATON_ASSIGN_OR_RETURN(const nic::CallSocket::Answer next,
                         calls_.Call(nic::control::NextId{.after = number - 1}));
  const auto kind = static_cast<nic::control::IdKind>(next.more);
  if (next.value != number || kind == nic::control::IdKind::kListener) {
    return absl::NotFoundError(absl::StrCat("there is no connection ", number));
  }
  auto id = std::make_unique<SoftConnectionId>(this, number);
  id->queue_pair_ = former.queue_pair;
  id->check_route_ = std::move(former.check_route);
  const bool unaccepted =
      kind == nic::control::IdKind::kUnaccepted || kind == nic::control::IdKind::kUntaken;
  return Device::AdoptedId{std::move(id), unaccepted};
}

absl::Status SoftConnections::DestroyUnknown() {
  absl::flat_hash_set<SoftListener*> gone;
  for (const auto& [number, listener] : listeners_) gone.insert(listener);
  for (uint32_t after = 0;;) {
    BATON_ASSIGN_OR_RETURN(const nic::CallSocket::Answer next,
                           calls_.Call(nic::control::NextId{.after = after}));
    if (next.value == 0) break;
    after = next.value;
    const auto kind = static_cast<nic::control::IdKind>(next.more);
    if (kind == nic::control::IdKind::kListener) {
      const auto known = listeners_.find(after);
      known != listeners_.end() ? (void)gone.erase(known->second) : Destroy(Kind::kListener, after);
    } else if (kind != nic::control::IdKind::kUntaken && !ids_.contains(after)) {
      Destroy(Kind::kConnectionId, after);
    }
  }
  for (SoftListener* const listener : gone) BATON_RETURN_IF_ERROR(listener->ListenAgain());
  return absl::OkStatus();
}

void SoftConnections::AnswerRoute(SoftConnectionId* id) {
  if (!id->check_route_) return;
  id->refused_ = id->check_route_(id->route());
  const uint32_t refused = id->refused_.ok() ? 0 : 1;
  (void)calls_.Call(nic::control::Proceed{.id = id->number_, .refused = refused});
}

}  // namespace baton::verbs::soft
