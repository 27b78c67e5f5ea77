#include "lib/nic/connections.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/nic/control_socket.h"
#include "lib/nic/limits.h"
#include "lib/nic/queue_pair.h"

namespace baton::nic {
namespace {

using verbs::soft::SoftConnection;
using verbs::soft::SoftListener;
using verbs::soft::WireQueuePair;

static_assert(static_cast<uint32_t>(control::EventType::kConnectRequest) ==
                  static_cast<uint32_t>(verbs::CmEventType::kConnectRequest) + 1 &&
              static_cast<uint32_t>(control::EventType::kDisconnected) ==
                  static_cast<uint32_t>(verbs::CmEventType::kDisconnected) + 1);

absl::Status NoSuch(absl::string_view what, uint32_t number) {
  return absl::NotFoundError(absl::StrCat(what, ": there is no ", number));
}

}  // namespace

Connections::Connections(const Host* host)
    : ConnectionCore(host->options, host->loop), host_(host) {}

// The ids are destroyed here, while all members exist, because they tell their peers and may report
// events.
Connections::~Connections() {
  listeners_.clear();
  half_open.clear();
  ids_.clear();
}

absl::StatusOr<uint32_t> Connections::Execute(Call* call) {
  return Dispatch(this, call, "ids", &Connections::Listen, &Connections::Connect,
                  &Connections::Proceed, &Connections::Accept, &Connections::Reject,
                  &Connections::Disconnect, &Connections::NextEvent, &Connections::NextId,
                  &Connections::AddChannel, &Connections::Destroy);
}

absl::StatusOr<SoftConnection*> Connections::FindId(uint32_t number) const {
  const auto found = ids_.find(number);
  if (found == ids_.end()) return NoSuch("id", number);
  return found->second.get();
}

absl::StatusOr<WireQueuePair*> Connections::FindQueuePair(uint32_t number) const {
  QueuePair* const found = host_->objects->FindQueuePair(number);
  if (found == nullptr) return NoSuch("queue_pair", number);
  if (found->use() == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("queue_pair: ", number, " is in RESET"));
  }
  return &found->use()->wire();
}

uint32_t Connections::NumberOf(const SoftConnection* id) const {
  const auto found = numbers_.find(id);
  return found == numbers_.end() ? 0 : found->second;
}

Connections::Value Connections::Listen(const control::Listen& message, Call* call) {
  if (listeners_.size() >= kMaxListeners) {
    return absl::ResourceExhaustedError(absl::StrCat("listeners: there are ", kMaxListeners));
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<SoftListener> listener,
                         SoftListener::Create(this, FromControl(message.address), message.backlog));
  call->more = listener->address().port;  // the client knows the rest of the address
  listeners_[++last_number_] = std::move(listener);
  return last_number_;
}

Connections::Value Connections::Connect(const control::Connect& message, Call*) {
  if (ids_.size() >= kMaxIds) {
    return absl::ResourceExhaustedError(absl::StrCat("ids: there are ", kMaxIds));
  }
  verbs::ConnectionParameters parameters;
  BATON_RETURN_IF_ERROR(FromControl(message.parameters, &parameters));
  BATON_ASSIGN_OR_RETURN(WireQueuePair* const queue_pair, FindQueuePair(message.queue_pair));
  auto made = std::make_unique<SoftConnection>(this);
  SoftConnection* const id = made.get();
  const uint32_t number = ++last_number_;
  numbers_[id] = number;
  ids_[number] = std::move(made);
  if (message.ask_route != 0) id->AskRoute();
  const absl::Status status = id->Connect(FromControl(message.address), queue_pair, parameters);
  if (status.ok()) return number;
  Erase(number);
  return status;
}

absl::Status Connections::Proceed(const control::Proceed& message, Call*) {
  BATON_ASSIGN_OR_RETURN(SoftConnection* const id, FindId(message.id));
  const absl::Status may =
      message.refused == 0 ? absl::OkStatus() : absl::CancelledError("its user refused the route");
  return id->Proceed(may);
}

absl::Status Connections::Accept(const control::Accept& message, Call*) {
  verbs::ConnectionParameters parameters;
  BATON_RETURN_IF_ERROR(FromControl(message.parameters, &parameters));
  BATON_ASSIGN_OR_RETURN(SoftConnection* const id, FindId(message.id));
  BATON_ASSIGN_OR_RETURN(WireQueuePair* const queue_pair, FindQueuePair(message.queue_pair));
  return id->Accept(queue_pair, parameters);
}

absl::Status Connections::Reject(const control::Reject& message, Call*) {
  verbs::ConnectionParameters parameters;
  BATON_RETURN_IF_ERROR(FromControl(message.parameters, &parameters));
  BATON_ASSIGN_OR_RETURN(SoftConnection* const id, FindId(message.id));
  return id->Reject(parameters.private_data);
}

absl::Status Connections::Disconnect(const control::Disconnect& message, Call*) {
  BATON_ASSIGN_OR_RETURN(SoftConnection* const id, FindId(message.id));
  return id->Disconnect();
}

// The reply says how many events are in the queue. If none was, the next event notifies the client
// again.
Connections::Value Connections::NextEvent(const control::NextEvent& message, Call* call) {
  if (message.handled != 0 && given_) DropFirstEvent();
  call->event.emplace();
  if (events_.empty()) return 0u;
  *call->event = events_.front();
  if (!std::exchange(given_, true)) NoteGiven(events_.front());
  return static_cast<uint32_t>(events_.size());
}

void Connections::DropFirstEvent() {
  events_.pop_front();
  given_ = false;
}

void Connections::NoteGiven(const control::Event& event) {
  const auto type = static_cast<control::EventType>(event.type);
  if (type == control::EventType::kConnectRequest) {
    const auto listener = listeners_.find(event.listener);
    if (listener != listeners_.end()) listener->second->RequestTaken();
  } else if (type != control::EventType::kRouteKnown) {
    const auto id = ids_.find(event.id);
    if (id != ids_.end()) id->second->EventTaken();
  }
}

Connections::Value Connections::NextId(const control::NextId& message, Call* call) {
  const auto id_behind = ids_.upper_bound(message.after);
  const auto listener_behind = listeners_.upper_bound(message.after);
  uint32_t next = id_behind == ids_.end() ? 0 : id_behind->first;
  if (listener_behind != listeners_.end() && (next == 0 || listener_behind->first < next)) {
    next = listener_behind->first;
  }
  const bool waits =
      std::any_of(events_.begin(), events_.end(), [next](const control::Event& event) {
        return event.id == next &&
               event.type == static_cast<uint32_t>(control::EventType::kConnectRequest);
      });
  control::IdKind kind = control::IdKind::kOther;
  if (const auto id = ids_.find(next); id == ids_.end()) {
    kind = control::IdKind::kListener;
  } else if (waits) {
    kind = control::IdKind::kUntaken;
  } else if (id->second->is_unaccepted()) {
    kind = control::IdKind::kUnaccepted;
  }
  call->more = static_cast<uint32_t>(kind);
  return next;
}

absl::Status Connections::AddChannel(const control::Channel&, Call* call) {
  BATON_ASSIGN_OR_RETURN(channel_, MakeChannel(call));
  if (!events_.empty()) Notify(channel_);
  return absl::OkStatus();
}

absl::Status Connections::Destroy(const control::Destroy& message, Call*) {
  if (message.kind == static_cast<uint32_t>(control::Kind::kListener)) {
    if (!listeners_.contains(message.number)) return NoSuch("listener", message.number);
    RejectRequestsOf(message.number);
    listeners_.erase(message.number);
    return absl::OkStatus();
  }
  if (message.kind != static_cast<uint32_t>(control::Kind::kConnectionId)) {
    return absl::InvalidArgumentError(absl::StrCat("kind: ", message.kind));
  }
  BATON_RETURN_IF_ERROR(FindId(message.number).status());
  if (given_ && events_.front().id == message.number) DropFirstEvent();
  std::erase_if(events_, [this, &message](const control::Event& event) {
    if (event.id != message.number) return false;
    const auto listener = listeners_.find(event.listener);  // of a request that nobody took
    if (listener != listeners_.end()) listener->second->RequestTaken();
    return true;
  });
  Erase(message.number);
  return absl::OkStatus();
}

void Connections::Queue(const control::Event& event) {
  events_.push_back(event);
  ++host_->objects->events;
  if (events_.size() == 1 && channel_) Notify(channel_);
}

void Connections::Fill(const SoftConnection& id, control::Event* event) const {
  event->id = NumberOf(&id);
  event->local = ToControl(id.local_address());
  event->peer = ToControl(id.peer_address());
  event->our_reads = id.depths().ours;
  event->their_reads = id.depths().theirs;
}

void Connections::PushEvent(verbs::soft::ConnectionEvent event) {
  if (event.new_id == nullptr && NumberOf(event.id) == 0) return;  // the id is being destroyed
  control::Event message;
  message.type = static_cast<uint32_t>(event.type) + 1;
  message.error = ErrnoOf(event.status);
  PutText(event.status.message(), message.text);
  const size_t bytes = std::min(event.private_data.size(), sizeof(message.private_data));
  message.private_bytes = static_cast<uint16_t>(bytes);
  std::copy_n(event.private_data.data(), bytes, message.private_data);
  if (event.new_id != nullptr) {
    Id id = std::move(event.new_id);
    numbers_[id.get()] = ++last_number_;
    for (const auto& [number, listener] : listeners_) {
      if (listener.get() == event.listener) message.listener = number;
    }
    Fill(*id, &message);
    ids_[last_number_] = std::move(id);
  } else {
    Fill(*event.id, &message);
  }
  Queue(message);
}

void Connections::RouteKnown(SoftConnection* id) {
  control::Event message;
  message.type = static_cast<uint32_t>(control::EventType::kRouteKnown);
  Fill(*id, &message);
  Queue(message);
}

// Destroying an id rejects its request. The client has the id of an event that was given to it.
void Connections::RejectRequestsOf(uint32_t listener) {
  std::vector<uint32_t> waiting;
  if (given_ && events_.front().listener == listener) DropFirstEvent();
  std::erase_if(events_, [&waiting, listener](const control::Event& event) {
    if (event.listener == listener) waiting.push_back(event.id);
    return event.listener == listener;
  });
  for (const uint32_t id : waiting) Erase(id);
}

// The id is destroyed last, because its destructor may call PushEvent().
void Connections::Erase(uint32_t id) {
  auto node = ids_.extract(id);
  if (node.empty()) return;  // its user has destroyed it
  numbers_.erase(node.mapped().get());
}

}  // namespace baton::nic
