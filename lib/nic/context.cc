#include "lib/nic/context.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/nic/limits.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/queue_layout.h"

namespace baton::nic {
namespace {

using verbs::QueuePairState;
using verbs::mlx5::DoorbellPage;
using verbs::mlx5::kMaxSlots;
using verbs::mlx5::kSegmentBytes;

constexpr uint64_t kRecordBytes = 8;
constexpr uint64_t kQueueRecordBytes = 12;  // and `failed`

absl::Status CheckSize(absl::string_view what, uint32_t value, uint32_t least, uint32_t most) {
  if (std::has_single_bit(value) && value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", value, ", not a power of two from ", least, " to ", most));
}

// The window takes memory for each request in flight. A client that does not say how large its
// sends are gets a small window, because each request then takes the most memory.
verbs::soft::WindowLimits WindowOf(const control::QueuePair& message) {
  constexpr uint32_t kMostInline = 512;
  if (message.send_sges == 0) return {128, verbs::soft::kMaxScatterGather, kMostInline};
  return {message.send_slots, std::min<uint32_t>(message.send_sges, verbs::soft::kMaxScatterGather),
          std::min(message.send_inline, kMostInline)};
}

absl::Status NoSuch(absl::string_view what, uint32_t number) {
  return absl::NotFoundError(absl::StrCat(what, ": this file has no ", number));
}

absl::Status InUse(absl::string_view what, uint32_t number) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, " ", number, ": in use; destroy what was made with it first"));
}

absl::Status CheckRoom(absl::string_view what, size_t count, size_t limit) {
  if (count < limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(what, ": there are ", limit, " already"));
}

}  // namespace

// A file gets at most half of what the other files leave.
absl::Status Context::CheckShare(absl::string_view what, size_t ours, size_t all,
                                 size_t limit) const {
  BATON_RETURN_IF_ERROR(CheckRoom(what, all, limit));
  const size_t share = (limit - (all - ours) + 1) / 2;
  if (host_->own_addresses || ours < share) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": this file has ", ours, ", its share of ", limit));
}

Context::~Context() {
  Objects& objects = *host_->objects;
  absl::erase_if(objects.queue_pairs, [this](const auto& entry) {
    return entry.second->parts().domain.owner == owner_;
  });
  absl::erase_if(objects.shared_receive_queues,
                 [this](const auto& entry) { return entry.second->owner == owner_; });
  absl::erase_if(objects.completion_queues,
                 [this](const auto& entry) { return entry.second.owner == owner_; });
  absl::erase_if(objects.regions,
                 [this](const auto& entry) { return entry.second.domain.owner == owner_; });
}

Context::Value Context::Execute(Call* call) {
  return Dispatch(this, call, "objects", &Context::AddFile, &Context::AddRegion,
                  &Context::AddRegister, &Context::AddChannel, &Context::AddCompletionQueue,
                  &Context::AddQueuePair, &Context::AddSharedReceiveQueue, &Context::ArmLimit,
                  &Context::NextDeviceEvent, &Context::Modify, &Context::Query, &Context::Destroy);
}

absl::StatusOr<uint8_t*> Context::Find(const control::Place& place, uint64_t bytes,
                                       uint64_t alignment, absl::string_view what,
                                       std::shared_ptr<MappedFile>* file) const {
  const auto found = files_.find(place.file);
  if (found == files_.end()) return NoSuch(absl::StrCat(what, ".file"), place.file);
  if (place.reserved != 0) return absl::InvalidArgumentError(absl::StrCat(what, ".reserved"));
  uint8_t* const at = found->second->At(place.offset, bytes, alignment);
  if (at == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", bytes, " bytes at ", place.offset,
                                                   ": not in the file, or not at ", alignment));
  }
  *file = found->second;
  return at;
}

absl::StatusOr<QueuePair*> Context::FindOurs(uint32_t qp_number) const {
  QueuePair* const found = host_->objects->FindQueuePair(qp_number);
  if (found == nullptr || found->parts().domain.owner != owner_)
    return NoSuch("queue pair", qp_number);
  return found;
}

OwnedCompletionQueue* Context::FindQueue(uint32_t number) const {
  const auto found = host_->objects->completion_queues.find(number);
  if (found == host_->objects->completion_queues.end() || found->second.owner != owner_) {
    return nullptr;
  }
  return &found->second;
}

OwnedSharedReceiveQueue* Context::FindShared(uint32_t number) const {
  const auto& queues = host_->objects->shared_receive_queues;
  const auto found = queues.find(number);
  if (found == queues.end() || found->second->owner != owner_) return nullptr;
  return found->second.get();
}

// A file whose number was destroyed stays mapped as long as an object lies in it.
Context::Value Context::AddFile(const control::File&, Call* call) {
  if (!call->passed) return absl::InvalidArgumentError("file: none was passed");
  BATON_ASSIGN_OR_RETURN(const MappedFile::Identity identity,
                         MappedFile::IdentityOf(call->passed.get()));
  for (const auto& [number, file] : files_) {
    if (file->identity() == identity) return number;
  }
  std::erase_if(mapped_, [](const auto& file) { return file.expired(); });
  BATON_RETURN_IF_ERROR(CheckRoom("files", mapped_.size(), kMaxFiles));
  uint64_t bytes = 0;
  std::shared_ptr<MappedFile> mapped;
  for (const auto& entry : mapped_) {
    const std::shared_ptr<MappedFile> file = entry.lock();
    bytes += file->size();
    if (file->identity() == identity) mapped = file;
  }
  if (mapped == nullptr) {
    BATON_ASSIGN_OR_RETURN(mapped, MappedFile::Map(call->passed.get(), kMaxFileBytes - bytes));
    mapped_.push_back(mapped);
  }
  files_[++last_number_] = std::move(mapped);
  return last_number_;
}

Context::Value Context::AddRegion(const control::Region& message, Call*) {
  constexpr uint32_t kKnown = verbs::kLocalWrite | verbs::kRemoteWrite | verbs::kRemoteRead |
                              verbs::kRemoteAtomic | verbs::soft::kSoftRemoteInvalidate;
  BATON_RETURN_IF_ERROR(
      CheckShare("regions", regions_, host_->objects->regions.size(), kMaxRegions));
  if (message.length == 0 || message.address + message.length < message.address) {
    return absl::InvalidArgumentError(
        absl::StrCat("length: ", message.length, " at address ", message.address));
  }
  if ((message.access & ~kKnown) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("access: unknown bits ", message.access));
  }
  if ((message.access & (verbs::kRemoteWrite | verbs::kRemoteAtomic)) != 0 &&
      (message.access & verbs::kLocalWrite) == 0) {
    return absl::InvalidArgumentError("access: remote write and atomics need local write");
  }
  Region region;
  region.domain = {owner_, message.domain};
  if (message.place.file == 0 && host_->own_addresses) {
    region.begin = reinterpret_cast<uint8_t*>(message.address);
  } else {
    BATON_ASSIGN_OR_RETURN(region.begin,
                           Find(message.place, message.length, 1, "place", &region.file));
  }
  region.address = message.address;
  region.length = message.length;
  region.access = message.access;
  const uint32_t key = host_->objects->NewKey();
  host_->objects->regions[key] = std::move(region);
  ++regions_;
  return key;
}

Context::Value Context::AddRegister(const control::Register& message, Call* call) {
  BATON_RETURN_IF_ERROR(CheckRoom("registers", registers_.size(), kMaxRegisters));
  std::shared_ptr<MappedFile> file;
  BATON_ASSIGN_OR_RETURN(uint8_t* const page, Find(message.page, sizeof(DoorbellPage),
                                                   sizeof(DoorbellPage), "page", &file));
  Bells bells(std::move(file), reinterpret_cast<DoorbellPage*>(page));
  BATON_ASSIGN_OR_RETURN(call->answer, registers_.Add(last_number_ + 1, std::move(bells)));
  return ++last_number_;
}

Context::Value Context::AddChannel(const control::Channel& message, Call* call) {
  if (message.events != 0) {
    BATON_ASSIGN_OR_RETURN(event_channel_, MakeChannel(call));
    if (!events_.empty()) Notify(event_channel_);
    return 0u;
  }
  BATON_RETURN_IF_ERROR(CheckRoom("channels", channels_.size(), kMaxChannels));
  BATON_ASSIGN_OR_RETURN(FileDescriptor channel, MakeChannel(call));
  channels_[++last_number_] = std::make_shared<FileDescriptor>(std::move(channel));
  return last_number_;
}

Context::Value Context::AddCompletionQueue(const control::CompletionQueue& message, Call*) {
  Objects& objects = *host_->objects;
  BATON_RETURN_IF_ERROR(CheckShare("completion queues", completion_queues_,
                                   objects.completion_queues.size(), kMaxCompletionQueues));
  BATON_RETURN_IF_ERROR(CheckSize("entry_count", message.entry_count, 1, kMaxQueueEntries));
  BATON_RETURN_IF_ERROR(CheckSize("entry_bytes", message.entry_bytes, 64, 128));
  if (!registers_.Contains(message.reg)) return NoSuch("register", message.reg);
  std::shared_ptr<FileDescriptor> channel;
  if (message.channel != 0) {
    const auto found = channels_.find(message.channel);
    if (found == channels_.end()) return NoSuch("channel", message.channel);
    channel = found->second;
  }
  OwnedCompletionQueue made;
  BATON_ASSIGN_OR_RETURN(uint8_t* const entries,
                         Find(message.entries, uint64_t{message.entry_count} * message.entry_bytes,
                              verbs::mlx5::kLineBytes, "entries", &made.files[0]));
  BATON_ASSIGN_OR_RETURN(uint8_t* const records_at, Find(message.records, kQueueRecordBytes,
                                                         kRecordBytes, "records", &made.files[1]));
  const auto* const records = reinterpret_cast<const __be32*>(records_at);
  made.owner = owner_;
  made.reg = message.reg;
  const uint32_t number = objects.NewNumber();
  auto* const failed = reinterpret_cast<uint32_t*>(records_at + kRecordBytes);
  made.queue = std::make_unique<CompletionQueue>(
      verbs::mlx5::FoundCompletionQueue{entries, records, message.entry_count, message.entry_bytes},
      records + 1, std::move(channel), [this, number, failed](absl::string_view why) {
        std::atomic_ref(*failed).store(1, std::memory_order_release);
        host_->complain(owner_, absl::StrCat("completion queue ", number, ": ", why));
        registers_.FailUsersOf(number);
        Tell(verbs::DeviceEventType::kCompletionQueueFailed, number);
      });
  const verbs::soft::NicBehaviour& behaviour = host_->options->behaviour;
  made.queue->DelayOwnerBytes(behaviour.owner_byte_us, behaviour.seed + number);
  objects.completion_queues[number] = std::move(made);
  registers_.QueuesOf(message.reg).completion_queues.insert(number);
  ++completion_queues_;
  return number;
}

Context::Value Context::AddQueuePair(const control::QueuePair& message, Call*) {
  Objects& objects = *host_->objects;
  BATON_RETURN_IF_ERROR(CheckShare("queue pairs", queue_pairs_, objects.queue_pairs.size(),
                                   host_->options->max_queue_pairs));
  BATON_RETURN_IF_ERROR(CheckSize("send_slots", message.send_slots, 1, kMaxSlots));
  if (!registers_.Contains(message.reg)) return NoSuch("register", message.reg);
  OwnedCompletionQueue* const send_queue = FindQueue(message.send_queue);
  if (send_queue == nullptr) return NoSuch("send_queue", message.send_queue);
  OwnedCompletionQueue* const receive_queue = FindQueue(message.receive_queue);
  if (receive_queue == nullptr) return NoSuch("receive_queue", message.receive_queue);

  QueuePairParts made;
  BATON_ASSIGN_OR_RETURN(made.sends.slots,
                         Find(message.sends, uint64_t{message.send_slots} * verbs::mlx5::kSlotBytes,
                              verbs::mlx5::kSlotBytes, "sends", &made.files[0]));
  BATON_RETURN_IF_ERROR(FindReceives(message, &made));
  BATON_ASSIGN_OR_RETURN(uint8_t* const records, Find(message.records, kQueueRecordBytes,
                                                      kRecordBytes, "records", &made.files[2]));
  made.records = reinterpret_cast<const __be32*>(records);
  made.failed = reinterpret_cast<uint32_t*>(records + kRecordBytes);
  made.domain = {owner_, message.domain};
  made.number = made.sends.qp_number = objects.NewNumber();
  made.reg = message.reg;
  made.sends.slot_count = message.send_slots;
  made.window = WindowOf(message);
  made.tell = [this](verbs::DeviceEventType type, uint32_t object) { Tell(type, object); };
  made.flush_later = [this](uint32_t object) { registers_.Flush(object); };
  made.send_queue_number = message.send_queue;
  made.receive_queue_number = message.receive_queue;
  made.send_queue = send_queue->queue.get();
  made.receive_queue = receive_queue->queue.get();
  const uint32_t number = made.number;
  auto queue_pair = std::make_unique<QueuePair>(std::move(made), host_);
  BATON_RETURN_IF_ERROR(queue_pair->Init());
  ++send_queue->users;
  ++receive_queue->users;
  const QueuePairParts& parts = queue_pair->parts();
  if (parts.shared_receive_queue != nullptr) ++parts.shared_receive_queue->users;
  objects.queue_pairs[number] = std::move(queue_pair);
  registers_.QueuesOf(message.reg).queue_pairs.insert(number);
  ++queue_pairs_;
  return number;
}

absl::Status Context::FindReceives(const control::QueuePair& message, QueuePairParts* parts) const {
  if (message.shared_receive_queue != 0) {
    parts->shared_receive_queue_number = message.shared_receive_queue;
    parts->shared_receive_queue = FindShared(message.shared_receive_queue);
    if (parts->shared_receive_queue == nullptr) {
      return NoSuch("shared_receive_queue", message.shared_receive_queue);
    }
    if (message.receive_slots == 0) return absl::OkStatus();
    return absl::InvalidArgumentError("receive_slots: not 0, and receives are shared");
  }
  BATON_RETURN_IF_ERROR(CheckSize("receive_slots", message.receive_slots, 1, kMaxSlots));
  BATON_RETURN_IF_ERROR(
      CheckSize("receive_bytes", message.receive_bytes, kSegmentBytes, kMaxReceiveBytes));
  BATON_ASSIGN_OR_RETURN(
      parts->receives.slots,
      Find(message.receives, uint64_t{message.receive_slots} * message.receive_bytes, kSegmentBytes,
           "receives", &parts->files[1]));
  parts->receives.slot_count = message.receive_slots;
  parts->receives.slot_bytes = message.receive_bytes;
  return absl::OkStatus();
}

Context::Value Context::AddSharedReceiveQueue(const control::SharedReceiveQueue& message, Call*) {
  Objects& objects = *host_->objects;
  BATON_RETURN_IF_ERROR(CheckShare("shared receive queues", shared_receive_queues_,
                                   objects.shared_receive_queues.size(), kMaxSharedReceiveQueues));
  BATON_RETURN_IF_ERROR(CheckSize("slot_count", message.slot_count, 2, kMaxSlots));
  BATON_RETURN_IF_ERROR(
      CheckSize("slot_bytes", message.slot_bytes, 2 * kSegmentBytes, 2 * kMaxReceiveBytes));
  auto made = std::make_unique<OwnedSharedReceiveQueue>();
  BATON_ASSIGN_OR_RETURN(const uint8_t* const slots,
                         Find(message.slots, uint64_t{message.slot_count} * message.slot_bytes,
                              kSegmentBytes, "slots", &made->files[0]));
  BATON_ASSIGN_OR_RETURN(
      const uint8_t* const record,
      Find(message.record, sizeof(__be32), kRecordBytes, "record", &made->files[1]));
  made->owner = owner_;
  made->max_sges =
      std::min<uint32_t>(message.slot_bytes / kSegmentBytes - 1, verbs::soft::kMaxScatterGather);
  made->reader =
      std::make_unique<verbs::mlx5::SharedReceiveReader>(verbs::mlx5::FoundSharedReceiveQueue{
          slots, reinterpret_cast<const __be32*>(record), message.slot_count, message.slot_bytes});
  const uint32_t number = objects.NewNumber();
  objects.shared_receive_queues[number] = std::move(made);
  ++shared_receive_queues_;
  return number;
}

absl::Status Context::ArmLimit(const control::ArmLimit& message, Call*) {
  OwnedSharedReceiveQueue* const shared = FindShared(message.number);
  if (shared == nullptr) return NoSuch("shared receive queue", message.number);
  shared->limit = message.limit;
  return absl::OkStatus();
}

void Context::Tell(verbs::DeviceEventType type, uint32_t number) {
  for (const Event& event : events_) {
    if (event.type == type && event.number == number && !event.given) return;
  }
  events_.push_back({.type = type, .number = number});
  ++host_->objects->events;
  if (event_channel_) Notify(event_channel_);
}

void Context::ForgetEventsOf(uint32_t number) {
  std::erase_if(events_, [number](const Event& event) { return event.number == number; });
}

// Returns 1 more than the event's type. 0: there is no event.
Context::Value Context::NextDeviceEvent(const control::NextDeviceEvent& message, Call* call) {
  if (message.handled != 0 && !events_.empty() && events_.front().given) events_.pop_front();
  if (events_.empty()) return 0u;
  Event& event = events_.front();
  event.given = true;
  call->more = event.number;
  return static_cast<uint32_t>(event.type) + 1;
}

absl::Status Context::Modify(const control::Modify& message, Call*) {
  BATON_ASSIGN_OR_RETURN(QueuePair* const queue_pair, FindOurs(message.number));
  const auto to = static_cast<QueuePairState>(message.state);
  const bool connects = message.state == static_cast<uint32_t>(QueuePairState::kReadyToSend);
  const bool has_more =
      message.peer != 0 || message.rnr_retry_count != 0 || message.rnr_timer_us != 0;
  if (message.reserved != 0 || (has_more && !connects) ||
      message.state > static_cast<uint32_t>(QueuePairState::kError)) {
    return absl::InvalidArgumentError(absl::StrCat("state: ", message.state, ", or what is not 0"));
  }
  const QueuePairState from = queue_pair->state();
  if (to == QueuePairState::kReset) {
    queue_pair->Reset();
    ForgetEventsOf(message.number);
  } else if (to == QueuePairState::kInit && from == QueuePairState::kReset) {
    return queue_pair->Init();
  } else if (connects && from == QueuePairState::kInit && host_->options->connect) {
    return host_->options->connect(*host_, message, queue_pair);
  } else if (to == QueuePairState::kError && from != QueuePairState::kReset) {
    queue_pair->SetError();
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("state: ", message.state, " does not follow ", static_cast<uint32_t>(from)));
  }
  return absl::OkStatus();
}

Context::Value Context::Query(const control::Query& message, Call*) {
  if (message.reserved != 0) return absl::InvalidArgumentError("reserved: not 0");
  BATON_ASSIGN_OR_RETURN(const QueuePair* const queue_pair, FindOurs(message.number));
  return static_cast<uint32_t>(queue_pair->state());
}

absl::Status Context::DestroyRegion(uint32_t number) {
  auto& regions = host_->objects->regions;
  const auto region = regions.find(number);
  if (region == regions.end() || region->second.domain.owner != owner_) {
    return NoSuch("region", number);
  }
  regions.erase(region);
  --regions_;
  return absl::OkStatus();
}

absl::Status Context::DestroyRegister(uint32_t number) {
  if (registers_.IsUsed(number)) return InUse("register", number);
  if (!registers_.Contains(number)) return NoSuch("register", number);
  registers_.Erase(number);
  return absl::OkStatus();
}

absl::Status Context::DestroyCompletionQueue(uint32_t number) {
  const OwnedCompletionQueue* const queue = FindQueue(number);
  if (queue == nullptr) return NoSuch("completion queue", number);
  if (queue->users > 0) return InUse("completion queue", number);
  ForgetEventsOf(number);
  registers_.QueuesOf(queue->reg).completion_queues.erase(number);
  host_->objects->completion_queues.erase(number);
  --completion_queues_;
  return absl::OkStatus();
}

absl::Status Context::DestroyQueuePair(uint32_t number) {
  BATON_ASSIGN_OR_RETURN(const QueuePair* const queue_pair, FindOurs(number));
  --FindQueue(queue_pair->parts().send_queue_number)->users;
  --FindQueue(queue_pair->parts().receive_queue_number)->users;
  OwnedSharedReceiveQueue* const shared = queue_pair->parts().shared_receive_queue;
  if (shared != nullptr) --shared->users;
  registers_.QueuesOf(queue_pair->parts().reg).queue_pairs.erase(number);
  host_->objects->queue_pairs.erase(number);
  --queue_pairs_;
  ForgetEventsOf(number);
  return absl::OkStatus();
}

absl::Status Context::DestroySharedReceiveQueue(uint32_t number) {
  const OwnedSharedReceiveQueue* const shared = FindShared(number);
  if (shared == nullptr) return NoSuch("shared receive queue", number);
  if (shared->users > 0) return InUse("shared receive queue", number);
  ForgetEventsOf(number);
  host_->objects->shared_receive_queues.erase(number);
  --shared_receive_queues_;
  return absl::OkStatus();
}

absl::Status Context::Destroy(const control::Destroy& message, Call*) {
  const uint32_t number = message.number;
  switch (static_cast<control::Kind>(message.kind)) {
    case control::Kind::kFile:
      return files_.erase(number) > 0 ? absl::OkStatus() : NoSuch("file", number);
    case control::Kind::kRegion:
      return DestroyRegion(number);
    case control::Kind::kRegister:
      return DestroyRegister(number);
    case control::Kind::kChannel:
      return channels_.erase(number) > 0 ? absl::OkStatus() : NoSuch("channel", number);
    case control::Kind::kCompletionQueue:
      return DestroyCompletionQueue(number);
    case control::Kind::kQueuePair:
      return DestroyQueuePair(number);
    case control::Kind::kSharedReceiveQueue:
      return DestroySharedReceiveQueue(number);
    case control::Kind::kConnectionId:
    case control::Kind::kListener:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("kind: ", message.kind));
}

}  // namespace baton::nic
